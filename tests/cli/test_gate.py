"""``privctl gate`` from the command line: genuine reports, hostile ones, exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.gate.files import LARGEST_REPORT
from privctl.storage.digest import file_digest
from tests.bytecode import search_path
from tests.few import few
from tests.gate.genuine import genuine

OWN, AUDIT, MODEL = "release/model.report.json", "release/model.audit.report.json", "release/model"


@pytest.fixture
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a copy of the genuine one that a test may change."""
    folder = tmp_path / "work"
    shutil.copytree(genuine(tmp_path_factory), folder)
    monkeypatch.chdir(folder)
    return folder


def edit(path: str, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(Path(path).read_text())
    change(data)
    Path(path).write_text(json.dumps(data, indent=2))


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("reports", "mode"), [([OWN], 0o644), ([OWN, AUDIT], 0o600), ([OWN, "release/verified.report.json"], 0o600)]
)
def test_a_result_that_shows_an_audit_is_the_owner_s(here: Path, reports: list[str], mode: int) -> None:
    """Planted: an audit that only a verification names, whose figures anyone could read."""
    if reports[-1].startswith("release/verified"):
        assert run(["verify", AUDIT, "-q", "-o", reports[-1]]) == 0
    before = os.umask(0o022)
    try:
        run(["gate", *reports, "--max-auc", "0.9", "-o", "result.md", "--format", "markdown", "-q"])
    finally:
        os.umask(before)
    shown = "AUC" in Path("result.md").read_text().replace("max_auc", "")
    assert (Path("result.md").stat().st_mode & 0o777, shown) == (mode, mode == 0o600)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([OWN, "--max-epsilon", "3"], 0, "PASS"),
        ([OWN, "--max-epsilon", "2.9"], 1, "above 2.9"),
        ([OWN, "--max-epsilon", "3", "--require", "proved"], 1, "dp-sgd is conditional"),
        ([OWN, AUDIT, "--model", MODEL, "--max-epsilon", "3", "--max-auc", "0.7"], 0, "the model given is the one"),
        ([OWN, AUDIT, "--max-auc", "0.51"], 3, "the upper bound is above 0.51"),
        ([OWN, "--max-auc", "0.7"], 3, "no audit given for this model measured it"),
        ([OWN, AUDIT, "--max-extracted", "0.1"], 0, "PASS"),
        ([OWN, AUDIT, "--max-tpr", "0.5"], 0, "PASS"),
        ([OWN, AUDIT, "--max-tpr", "0.5", "--at-fpr", "0.001"], 3, "needs at least 1000 non-members"),
        ([OWN, AUDIT, "--min-power", "auc=0.65"], 0, "would have been detected"),
        ([OWN, AUDIT, "--min-power", "auc=0.51"], 3, "a smaller leak may have been missed"),
        ([OWN, AUDIT, "--max-exposure", "10"], 3, "measured it"),
        ([OWN, AUDIT, "--required-steps", "audit,retrain"], 0, "PASS"),
        ([OWN, AUDIT, "--required-steps", "verify"], 3, "privctl verify"),
        ([OWN, AUDIT, "--forbid-outcomes", "INCONCLUSIVE", "--max-auc", "0.99"], 3, "INCONCLUSIVE by audit"),
        ([OWN, AUDIT, "--max-age-days", "1"], 0, "PASS"),
        ([OWN, "--max-epsilon", "3", "--require-model", "true"], 3, "was not given"),
        # The one that learnt by heart.
        (["release/clipped.report.json", "--max-epsilon", "8"], 1, "the reports state none"),
        (["release/clipped.report.json", "release/clipped.audit.report.json", "--max-auc", "0.5"], 1, "REFUTED"),
        # The one with noise: nothing small follows, and what is small does not follow.
        (["release/noised.report.json", "--max-epsilon", "8"], 1, "if this holds: training-rounding"),
        (["release/noised.report.json", "--max-epsilon", "8", "--require", "claimed"], 1, "adjacency unstated"),
        (
            ["release/noised.report.json", "--max-epsilon", "8", "--require", "claimed", "--adjacencies", "unstated"],
            0,
            "published",
        ),
        # Reports of another model.
        (["release/noised.report.json", "--model", MODEL, "--max-epsilon", "8"], 1, "is about another model"),
        ([OWN, "release/clipped.audit.report.json", "--model", MODEL, "--max-auc", "0.7"], 1, "about another model"),
        ([AUDIT, "--model", MODEL, "--max-auc", "0.7"], 0, "PASS"),  # the audit names the model's own report
    ],
)  # fmt: skip
def test_genuine_reports(here: Path, capsys: Capture, arguments: list[str], code: int, says: str) -> None:
    assert run(["gate", "-q", *arguments]) == code
    captured = capsys.readouterr()
    assert says in " ".join(captured.out.split()), captured.out
    assert captured.err == ""
    assert captured.out.startswith(f"gate: {({0: 'PASS', 1: 'FAIL', 3: 'INCONCLUSIVE'})[code]} (")


@pytest.mark.parametrize(
    ("file", "change", "code", "says"),
    [
        (OWN, lambda d: d["guarantees"][0].update(status="proved"), 1, "conditional by its own assumptions"),
        (OWN, lambda d: d["guarantees"][0].update(status="proved", assumptions=[]), 1, "states proved, but no"),
        (OWN, lambda d: d["guarantees"][0].update(epsilon=-1), 3, "at least 0"),
        (OWN, lambda d: d["guarantees"][0].update(epsilon=float("inf")), 3, "not a finite number"),
        (OWN, lambda d: d["guarantees"][0].update(epsilon=float("nan")), 3, "not a finite number"),
        (OWN, lambda d: d["guarantees"][0].update(epsilon="0.1"), 3, "expected a finite number"),
        (OWN, lambda d: d["guarantees"][0].update(status="certified"), 3, "expected one of"),
        (OWN, lambda d: d["guarantees"][0].update(delta=1.0), 3, "below 1"),
        (OWN, lambda d: d.update(schema_version=2), 3, "schema_version 2"),
        (OWN, lambda d: d.update(schema_version=0), 3, "schema_version 0"),
        (OWN, lambda d: d.pop("schema_version"), 3, "has no schema_version"),
        (OWN, lambda d: d.update(extra=1), 3, "unknown key"),
        (AUDIT, lambda d: d["evidence"][0].update(upper=0.01), 1, "is above its upper bound"),
        (AUDIT, lambda d: d["inputs"][0].update(digest="blake3:" + "0" * 64), 1, "no audit given for this model"),
        (AUDIT, lambda d: d["verdicts"][0].update(outcome="PROVED"), 1, "no attack can prove"),
        (AUDIT, lambda d: d["verdicts"][0].update(outcome="REFUTED"), 1, "REJECTED by audit"),
        (AUDIT, lambda d: d.update(evidence=[]), 1, "was asked for"),
        (AUDIT, lambda d: d["parents"][0].update(digest="blake3:" + "0" * 64), 1, "its digest differs"),
        (AUDIT, lambda d: d["parents"][0].update(path="\0"), 1, "not a file's name"),
    ],
)
def test_a_report_that_was_changed(
    here: Path, capsys: Capture, file: str, change: Callable[[dict[str, Any]], object], code: int, says: str
) -> None:
    untouched = ["gate", OWN, "--max-epsilon", "3"]
    if file == AUDIT:
        untouched += [AUDIT, "--max-auc", "0.7"]
    edit(file, change)
    if "\0" in json.loads(Path(AUDIT).read_text())["parents"][0]["path"]:
        edit(AUDIT, lambda d: d["parents"][0].update(digest="blake3:00"))
    assert run(untouched) == code
    captured = capsys.readouterr()
    assert says in " ".join(captured.out.split()), captured.out
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b'{"schema_version": 1, "step": "retr', "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"schema_version": 1, "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"null", "no schema_version"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "whole number too long"),
        (b'{"a": "\\ud800"}', "surrogate"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_report_is_inconclusive(here: Path, capsys: Capture, content: bytes, says: str) -> None:
    Path("bad.json").write_bytes(content)
    assert run(["gate", OWN, "bad.json", "--max-epsilon", "3"]) == 3
    stdout = capsys.readouterr().out
    assert says in " ".join(stdout.split())
    assert "max_epsilon: dp-sgd: epsilon 3" in stdout  # the others are judged all the same
    assert run(["gate", OWN, "bad.json", "--max-epsilon", "1"]) == 1  # and a failure wins


def test_what_is_no_readable_file_is_refused(here: Path, capsys: Capture) -> None:
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("link").symlink_to(OWN)
    with open("huge.json", "wb") as stream:
        stream.truncate(LARGEST_REPORT + 1)
    for name, says in (
        ("pipe", "not a regular file"),
        ("loop", "cannot be read"),
        ("huge.json", "more than 32 MiB"),
        ("none.json", "does not exist"),
        ("/dev/zero", "not a regular file"),
    ):
        assert run(["gate", name, "--max-epsilon", "3"]) == 3, name
        assert says in " ".join(capsys.readouterr().out.split())
    assert run(["gate", "release", "--max-epsilon", "3"]) == 3
    assert "release is neither a report nor a model" in capsys.readouterr().err
    assert run(["gate", "link", "--max-epsilon", "3"]) == 0


@pytest.mark.parametrize("what", ["weights", "config.json", "gone"])
def test_another_model_at_hand(here: Path, capsys: Capture, what: str) -> None:
    if what == "weights":
        path = here / MODEL / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif what == "config.json":
        (here / MODEL / what).write_text("{}")
    else:
        (here / MODEL / "tokenizer.json").unlink()
    assert run(["gate", OWN, "--model", MODEL, "--max-epsilon", "3", "-q"]) == (3 if what == "gone" else 1)
    assert {"weights": "about another model", "gone": "missing"}.get(what, "not the one recorded") in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no reports to judge"),
        ([OWN], "no policy was found"),
        ([OWN, "--max-epsilon", "-1"], "--max-epsilon is -1"),
        ([OWN, "--max-epsilon", "nan"], "--max-epsilon is 'nan'"),
        ([OWN, "--policy", "none.toml"], "none.toml does not exist"),
        ([OWN, "--policy", OWN], "not valid TOML"),
        ([OWN, "--max-epsilon", "3", "--json", "--format", "text"], "contradict"),
        ([OWN, "--max-epsilon", "3", "-o", OWN], "is an input of this command"),
        ([OWN, "--max-epsilon", "3", "-o", "release/../release/model.report.json"], "is an input of this command"),
        ([OWN, "--max-epsilon", "3", "--format", "html"], "html"),
    ],
)
def test_wrong_usage_is_refused_without_output(here: Path, capsys: Capture, arguments: list[str], says: str) -> None:
    assert run(["gate", *arguments]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


def test_a_model_that_is_none_is_bad_input(here: Path, capsys: Capture) -> None:
    assert run(["gate", OWN, "--model", "none", "--max-epsilon", "3"]) == 3
    assert "none" in capsys.readouterr().err


def test_init_prints_a_policy_that_works(here: Path, capsys: Capture) -> None:
    assert run(["gate", "--init"]) == 0
    Path("privctl-policy.toml").write_text(capsys.readouterr().out)
    assert run(["gate", OWN, AUDIT, "--model", MODEL]) == 0
    assert "max_epsilon = 8  (privctl-policy.toml:" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit", "github", "markdown"])
def test_every_format_to_a_file(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    call = ["gate", OWN, AUDIT, "--max-epsilon", "1", "--format", form]
    assert run(call) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    assert run([*call, "-o", "out"]) == 1
    assert Path("out").read_text() == printed.out
    assert capsys.readouterr() == ("", "privctl: gate: FAIL (1 failed, 4 passed); wrote out\n")


def test_json_by_its_short_name(here: Path, capsys: Capture) -> None:
    assert run(["gate", OWN, "--max-epsilon", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "pass"


def test_the_step_summary_is_appended_to(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("summary").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    assert run(["gate", OWN, "--max-epsilon", "1", "--format", "github"]) == 1
    assert Path("summary").read_text().startswith("before\n## privctl gate: FAIL")
    assert capsys.readouterr().out.startswith(f"::error file={OWN},line=")
    capsys.readouterr()
    assert run(["gate", MODEL, "--max-epsilon", "1", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith(f"::error file={OWN},line="), "reports that were found, not given"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder")
    assert run(["gate", OWN, "--max-epsilon", "3", "--format", "github"]) == 4


def test_a_line_named_is_the_line_of_the_value(here: Path, capsys: Capture) -> None:
    assert run(["gate", OWN, AUDIT, "--max-epsilon", "1", "--max-auc", "0.51", "--json"]) == 1
    found = {finding["rule"]: finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["fix"]}
    epsilon, auc = found["max_epsilon"], found["max_auc"]
    assert '"epsilon": 2.9' in Path(OWN).read_text().splitlines()[epsilon["line"] - 1]
    assert '"upper": 0.5' in Path(AUDIT).read_text().splitlines()[auc["line"] - 1]


@pytest.mark.parametrize("recompute", few([True, False], 0))
def test_a_gate_needs_no_engine(here: Path, recompute: bool) -> None:
    """Judging takes click and blake3; computing guarantees again numpy, scipy and python-flint as well."""
    asked = [OWN, AUDIT, "--model", MODEL, "--max-epsilon", "3", "--format", "sarif"]
    script = (
        "import sys\nfrom privctl.cli import run\n"
        f"code = run(['gate', *{asked!r}, '--recompute', '{str(recompute).lower()}'])\n"
        "print(code, sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search_path(root)},
        capture_output=True,
        text=True,
    )
    assert done.stderr.startswith("0 "), done.stderr
    heavy = ["torch", "rich", "transformers", "cryptography", "safetensors", "z3", "highspy", "matplotlib", "jinja2"]
    heavy += [] if recompute else ["numpy", "scipy", "flint"]
    assert not [name for name in heavy if f"'{name}'" in done.stderr]
    assert "'blake3'" in done.stderr


def test_whatever_is_done_to_a_report_there_is_an_answer(here: Path, capsys: Capture) -> None:
    """Any value anywhere replaced by any other: never a crash, an error beside the judgement, or a command."""
    drawn = random.Random(0)
    values = [
        None,
        True,
        -1,
        0,
        1e308,
        2**70,
        "",
        "proved",
        "a\n::error::b",
        [],
        {},
        [[]],
        {"type": "ledger"},
        "\0/../..",
    ]
    whole = [(path, json.loads(Path(path).read_text())) for path in (OWN, AUDIT)]
    seen = set()
    for _ in range(50):
        path, data = drawn.choice(whole)
        changed = json.loads(json.dumps(data))
        node: Any = changed
        while True:
            key = drawn.choice(list(node)) if isinstance(node, dict) else drawn.randrange(len(node))
            below = node[key]
            if not isinstance(below, dict | list) or not below or drawn.random() < 0.15:
                break
            node = below
        node[key] = drawn.choice(values)
        Path("x.json").write_text(json.dumps(changed))
        other = AUDIT if path == OWN else OWN
        code = run(["gate", "x.json", other, "--model", MODEL, "--max-epsilon", "3", "--max-auc", "0.7", "-q"])
        captured = capsys.readouterr()
        assert code in (0, 1, 3), (code, key, captured.err)
        assert captured.err == ""
        assert not any(line.lstrip().startswith("::") for line in captured.out.splitlines())
        seen.add(code)
    assert seen == {0, 1, 3}


def verified(report: str) -> str:
    """The report of a genuine verification of ``report``."""
    report_path = report.replace(".report.json", ".verify.report.json")
    assert run(["verify", report, "-q", "-o", report_path]) == 0
    return report_path


def test_a_genuine_verification_counts_and_what_is_only_claimed_fails_nothing(here: Path, capsys: Capture) -> None:
    noised = "release/noised.report.json"
    checked = verified(noised)
    asked = ["--required-steps", "verify", "--forbid-outcomes", "INCONCLUSIVE"]
    assert run(["gate", noised, checked, *asked]) == 0
    assert "1 more on guarantees that a report itself marks as only claimed" in " ".join(
        capsys.readouterr().out.split()
    )
    # Programs that count claims see that this one is open.
    assert run(["gate", noised, checked, *asked, "--require", "claimed"]) == 3
    assert "published: INCONCLUSIVE by verify" in " ".join(capsys.readouterr().out.split())


def test_verifying_an_earlier_model_or_an_audit_is_not_verifying_this_one(here: Path, capsys: Capture) -> None:
    asked = ["--required-steps", "verify"]
    assert run(["gate", "release/noised.report.json", verified("release/clipped.report.json"), *asked]) == 3
    assert "on this model's own report" in " ".join(capsys.readouterr().out.split())
    assert run(["gate", OWN, AUDIT, verified(AUDIT), *asked]) == 3
    assert run(["gate", OWN, AUDIT, verified(OWN), *asked]) == 0


def test_an_audit_alone_is_about_the_model_that_its_own_report_made(here: Path, capsys: Capture) -> None:
    assert run(["gate", AUDIT, "--max-epsilon", "3"]) == 0


@pytest.mark.parametrize("name", ["release/clipped.report.json", "release/model/model.safetensors"])
def test_a_result_never_replaces_reports_or_weights(here: Path, capsys: Capture, name: str) -> None:
    before = file_digest(Path(name))
    assert run(["gate", OWN, "--max-epsilon", "3", "-o", name]) == 2
    assert run(["report", OWN, "-o", name, "-f"]) == 2
    assert run(["report", OWN, "--format", "model-card", "-o", name]) == 2
    assert run(["verify", OWN, "-q", "-o", name, "-f"]) == 2
    assert run(["gate", OWN, "--max-epsilon", "3", "-o", "gone/x.txt"]) == 2
    assert file_digest(Path(name)) == before
    assert "name another file" in capsys.readouterr().err


def test_text_fits_the_terminal_and_a_file_of_it_has_no_colour(here: Path, capsys: Capture) -> None:
    assert run(["gate", OWN, AUDIT, "--max-epsilon", "1", "--max-auc", "0.5", "-v"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("    at ")) <= 80
    assert sum(line.startswith("    at ") for line in lines) > 3
    assert run(["gate", OWN, "--max-epsilon", "1", "-o", "said.txt", "-q"]) == 1
    assert "\x1b" not in Path("said.txt").read_text()
    assert "policy" not in Path("said.txt").read_text()
