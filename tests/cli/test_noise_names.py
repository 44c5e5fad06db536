"""``privctl noise`` calls private only what a useful bound follows for, and says so where none does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from privctl.cli import run
from tests.cli.noised import FACTS, PUBLISHED, WEIGHTS, report_at


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", WEIGHTS)


@pytest.mark.parametrize(
    ("arguments", "follows"),
    [
        ([], None),
        (
            ["--calibration", "published"],
            "for any loss, epsilon is 306.23 at delta 1e-06, by which an attacker may find 100 %",
        ),
        (["--smoothness", "1", "--calibration", "published"], None),
        (["--smoothness", "1e5", "--calibration", "published"], "for a smooth loss, epsilon is 306.23 at"),
        (["--strong-convexity", "0.1", "--calibration", "published"], None),
        (["--calibration", "gaussian", "--regime", "convex"], None),
        (["--calibration", "gaussian", "--regime", "convex", "--epsilon", "60"], "for a convex loss, epsilon is 60 at"),
        (["--calibration", "gaussian", "--regime", "nonconvex"], None),
        (["--calibration", "gaussian", "--regime", "nonconvex", "--epsilon", "60"], "for any loss, epsilon is 60 at"),
        (["--calibration", "gaussian", "--regime", "convex", "--seed", "1"], "is violated (secret-noise)"),
    ],
)
def test_only_what_a_useful_bound_follows_for_is_called_private(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], follows: str | None
) -> None:
    assert run(["noise", str(model), "-q", *FACTS, *arguments]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    name, other = ("private", "noised") if follows is None else ("noised", "private")
    assert model.with_name(f"m.{name}.safetensors").is_file()
    assert not list(model.parent.glob(f"*.{other}*"))
    warnings = report_at(model.with_name(f"m.{name}.report.json")).warnings
    for text in (stdout, warnings[0]):
        assert ("NO USEFUL GUARANTEE" in text) is (follows is not None)
        assert follows is None or follows in text
        assert follows is None or "Do not call this model private" in text


def test_each_candidate_is_named_by_what_follows_for_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--calibration", "gaussian", "--regime", "nonconvex", "--epsilon", "2", "--epsilon", "60"]
    assert run(["noise", str(model), "--json", *FACTS, *chosen]) == 0
    assert {p.name for p in model.parent.glob("m.*.safetensors")} == {
        "m.private-eps2.safetensors",
        "m.noised-eps60.safetensors",
    }
    assert "m.noised-eps60.safetensors: NO USEFUL GUARANTEE" in capsys.readouterr().err


def test_a_card_leads_with_what_follows_not_with_a_convexity_nobody_stated(model: Path) -> None:
    assert run(["noise", str(model), "-q", *PUBLISHED]) == 0
    card = model.with_name("README.md")
    report = str(model.with_name("m.noised.report.json"))
    assert run(["report", report, "--format", "model-card", "-o", str(card), "-q"]) == 0
    text = card.read_text()
    assert "epsilon: 306.2" in text
    assert "tags:" not in text
    assert "It rules out little: an attacker may still find 100 % of the records" in text


def test_a_card_is_tagged_only_while_a_guarantee_holds(model: Path) -> None:
    card = model.with_name("README.md")
    reports = {}
    for name, arguments in (("private", FACTS), ("noised", PUBLISHED), ("void", [*FACTS, "--seed", "1"])):
        output = model.with_name(f"{name}.safetensors")
        assert run(["noise", str(model), "-q", "-o", str(output), *arguments]) == 0
        reports[name] = str(model.with_name(f"{name}.report.json"))
    for name, tagged in (("private", True), ("noised", False), ("private", False), ("void", False)):
        assert run(["report", reports[name], "--format", "model-card", "-o", str(card), "-q", "-f"]) == 0
        text = card.read_text()
        assert ("- differential-privacy" in text) is tagged, name
        assert ("tags:" in text) is tagged
    for tags, kept in (("- differential-privacy\n- text\n", "tags:\n- text\n"), ("- differential-privacy\n", "---\n#")):
        card.write_text(f"---\ntags:\n{tags}---\n# A model\n")
        assert run(["report", reports["noised"], "--format", "model-card", "-o", str(card), "-q", "-f"]) == 0
        assert "- differential-privacy" not in card.read_text()
        assert kept in card.read_text()
