"""``privctl report`` as a user meets it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.cli.report import FORMATS
from privctl.reports.files import file_artifact, write_report
from privctl.storage.arrays import write_arrays
from tests.conftest import WriteModel
from tests.show.browser import Browser, browser, found
from tests.show.made import audited

FACTS = ("--epochs", "1", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "10")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, write_model: WriteModel) -> Path:
    """A genuine noise run and a genuine plan."""
    folder = tmp_path_factory.mktemp("released")
    model = write_model(folder / "m.safetensors", {"w": np.ones((30, 20), np.float32), "b": np.ones(20, np.float32)})
    assert run(["noise", str(model), "--epsilon", "1", *FACTS, "-q"]) == 0
    plan = [
        "account",
        "--noise-multiplier",
        "1",
        "--delta",
        "1e-5",
        "--steps",
        "10",
        "--sample-rate",
        "0.1",
        "--no-peers",
    ]
    assert run([*plan, "-q", "-o", str(folder / "plan.report.json")]) == 0
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit of 20,000 records by eleven attacks, with 2,000 canaries."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    member, included = rng.random(20_000) < 0.5, rng.random(2_000) < 0.5
    arrays = {f"score.attack-{i}": rng.normal(size=20_000) + i * 0.2 * member for i in range(11)}
    write_arrays(
        folder / "a.scores.safetensors",
        {
            "member": member,
            **arrays,
            "canary.exposure": np.minimum(rng.exponential(1.44, 2_000) + included, 10.0),
            "canary.included": included,
            "canary.copies": np.where(rng.random(2_000) < 0.5, 1, 10),
            "canary.scored": np.ones(2_000, dtype=np.bool_),
            "canary.among": np.full(2_000, 1025),
        },
        {},
    )
    path = folder / "a.report.json"
    report = audited()
    evidence = [replace(e, method="attack-10") if e.method == "loss" else e for e in report.evidence]
    scores = file_artifact("scores", folder / "a.scores.safetensors", path)
    write_report(path, replace(report, outputs=(scores,), evidence=tuple(evidence)))
    assert run(["report", str(path), "-o", str(folder / "page.html"), "-q"]) == 0
    return folder / "page.html"


def test_a_noise_run_makes_a_page_beside_its_report(released: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = next(released.glob("m.private*.report.json"))
    assert run(["report", str(report), str(released / "plan.report.json")]) == 0
    page = report.with_name(report.name.replace(".report.json", ".html"))
    assert capfd.readouterr().err == f"privctl: wrote {page}\n"
    text = page.read_text()
    for words in ("published", "claimed", "conditional", "Noise against weights", "privacy loss distribution"):
        assert words in text
    assert run(["report", str(report)]) == 2
    assert "--force" in capfd.readouterr().err
    assert run(["report", str(report), "--force", "-q", "--title", "A <b>title</b>"]) == 0
    assert "<title>A &lt;b&gt;title&lt;/b&gt;</title>" in page.read_text()
    assert page.read_text() == _again(report, page)


def _again(report: Path, page: Path) -> str:
    assert run(["report", str(report), "--force", "-q", "--title", "A <b>title</b>"]) == 0
    return page.read_text()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_goes_to_standard_output(released: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = next(released.glob("m.private*.report.json"))
    assert run(["report", str(report), "--format", kind, "-o", "-"]) == 0
    done = capfd.readouterr()
    assert done.err == ""
    begins = {"html": "<!DOCTYPE html>", "markdown": "# Privacy report", "model-card": "---\n", "intoto": "{\n"}
    assert done.out.startswith(begins[kind])
    if kind == "intoto":
        (subject,) = json.loads(done.out)["subject"]
        assert set(subject["digest"]) == {"blake3", "sha256"}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("page.md", "html", "page.md would hold html; give --format markdown, or a name that ends in .html"),
        ("page.HTML", "markdown", "page.HTML would hold markdown; give --format html, or a name that ends in .md"),
        ("page.json", "html", "page.json would hold html; give --format intoto, or a name that ends in .html"),
        ("page.pdf", None, "page.pdf would hold html; give a name that ends in .html"),
    ],
)
def test_a_name_that_promises_another_format_is_refused(
    released: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kind: str | None, message: str
) -> None:
    report = next(released.glob("m.*.report.json"))
    asked = () if kind is None else ("--format", kind)
    assert run(["report", str(report), *asked, "-o", str(tmp_path / name), "-q"]) == 2
    assert message in " ".join(capfd.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_page_says_its_format(released: Path, tmp_path: Path) -> None:
    report = next(released.glob("m.*.report.json"))
    for name, begins in (
        ("page.md", "# Privacy report"),
        ("page.html", "<!doctype html>"),
        ("page", "<!doctype html>"),
    ):
        assert run(["report", str(report), "-o", str(tmp_path / name), "-q"]) == 0
        assert (tmp_path / name).read_text().lower().startswith(begins.lower()), name


def test_a_model_card_is_put_into_the_readme_and_leaves_the_rest(released: Path, tmp_path: Path) -> None:
    report = next(released.glob("m.private*.report.json"))
    readme = tmp_path / "README.md"
    readme.write_bytes(b"---\nlicense: mit\n---\n# Mine\n")
    for _ in range(2):
        assert run(["report", str(report), "--format", "model-card", "-o", str(readme), "-q"]) == 0
    text = readme.read_text()
    assert text.count("## Privacy") == 1
    assert text.startswith("---\nlicense: mit\n# privctl:begin\n")
    assert "---\n# Mine\n" in text


def test_a_model_card_is_never_put_outside_the_report_s_folder(released: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    text = next(released.glob("m.private*.report.json")).read_text()
    (inside / "r.report.json").write_text(re.sub(r'"path": "m.private[^"]*"', '"path": "../out/m.safetensors"', text))
    assert run(["report", str(inside / "r.report.json"), "--format", "model-card", "-q"]) == 0
    assert (inside / "README.md").is_file()
    assert not (outside / "README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["absent.json"], 3, "absent.json"),
        (["bad.json"], 3, "not valid JSON"),
        (["old.json"], 3, "schema_version 0"),
        (["deep.json"], 3, "nested too deeply"),
        (["infinite.json"], 3, "not a finite number"),
        (["plan.report.json", "--format", "intoto"], 3, "no report given is of a step that wrote a model"),
        (["plan.report.json", "--format", "model-card"], 3, "are of plans"),
        (["plan.report.json", "-o", "plan.report.json"], 2, "one of the reports"),
        (["plan.report.json", "--title", ""], 2, "--title has 0 characters"),
        (["plan.report.json", "-o", "no/where/page.html"], 2, "is not a folder"),
        ([], 2, "Missing argument"),
    ],
)
def test_mistakes_are_one_sentence(
    released: Path, arguments: list[str], code: int, says: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(released)
    Path("bad.json").write_text("{")
    Path("old.json").write_text('{"schema_version": 0}')
    Path("deep.json").write_text("[" * 100_000 + "]" * 100_000)
    Path("infinite.json").write_text('{"schema_version": 1, "x": NaN}')
    assert run(["report", *arguments]) == code
    done = capfd.readouterr()
    assert says in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


def test_the_page_of_20_000_records_is_small(large: Path) -> None:
    assert large.stat().st_size < 400_000
    assert "of 220,011 corners" in large.read_text()


needs_browser = pytest.mark.skipif(found() is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_draws_everything_and_has_nothing_to_complain_of(
    large: Path, tab: Browser, width: int, dark: bool
) -> None:
    tab.open(large, width=width, dark=dark)
    assert tab.complaints() == []
    assert tab.run("document.documentElement.scrollWidth") <= width
    boxes = tab.run(
        "[...document.querySelectorAll('svg.plot')].map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert len(boxes) >= 4
    assert all(w > 200 and h > 50 for w, h in boxes)
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 20, 23)") == dark
    tab.run("document.getElementById('theme').click()")
    assert tab.run("getComputedStyle(document.body).backgroundColor") != ground


@needs_browser
@pytest.mark.slow
def test_the_page_of_20_000_records_opens_in_a_second(large: Path, tab: Browser) -> None:
    tab.open(large)
    times = "performance.timing.loadEventEnd - performance.timing.navigationStart"
    assert 0 < tab.run(times) < 1000


@needs_browser
@pytest.mark.slow
def test_a_browser_that_meets_a_forbidden_script_does_complain(large: Path, tab: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(large.read_text().replace("<footer>", "<script>document.title='run'</script><footer>"))
    tab.open(bad)
    assert any("Content Security Policy" in line for line in tab.complaints())
    assert tab.run("document.title") != "run"


@needs_browser
@pytest.mark.slow
def test_a_printed_page_is_light_and_without_what_paper_cannot_do(large: Path, tab: Browser) -> None:
    tab.open(large, dark=True, media="print")
    assert tab.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert tab.run("getComputedStyle(document.querySelector('h1')).color") == "rgb(25, 27, 31)"


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (360, False)])
def test_axe_finds_nothing(large: Path, tab: Browser, width: int, dark: bool) -> None:
    import os

    axe = os.environ.get("AXE_CORE")
    if not axe:
        pytest.skip("AXE_CORE does not name axe-core's axe.min.js")
    tab.call("Page.setBypassCSP", enabled=True)
    tab.open(large, width=width, dark=dark)
    tab.run(Path(axe).read_text(encoding="utf-8") + ";0")
    rules = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}"
    violations = tab.run(f"axe.run(document, {rules}).then(r => r.violations.map(v => v.id + ': ' + v.nodes[0].html))")
    tab.call("Page.setBypassCSP", enabled=False)
    assert violations == []


@pytest.mark.parametrize("kind", ["html", "markdown", "model-card", "gate"])
def test_what_shows_an_audit_is_its_owner_s(released: Path, large: Path, tmp_path: Path, kind: str) -> None:
    """It holds what the audit's report holds, which is not for release; that of the release is public."""
    pages = {"audit": large.parent / "a.report.json", "release": released / "m.private.report.json"}
    old = os.umask(0)
    try:
        for name, report in pages.items():
            asked = ["gate", "--max-epsilon", "8"] if kind == "gate" else ["report", "--format", kind]
            assert run([*asked, str(report), "-o", str(tmp_path / name), "-q"]) in (
                (0, 1, 3) if kind == "gate" else (0,)
            )
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "release").stat().st_mode) == 0o666
