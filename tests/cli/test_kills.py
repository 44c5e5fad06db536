"""Killed before any rename, a command leaves the old set of files or the new one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from audits.split.drawn import read_split
from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.reports.audit_log import read_log
from privctl.reports.files import read_report
from privctl.storage.atomic import PendingFile
from privctl.storage.journal import recover
from privctl.storage.turns import Claim
from tests.audits import tiny
from tests.cli.killed import (
    FACTS,
    PLAN,
    WRITES,
    contents,
    copied,
    killed,
    left_by_kills,
    noise,
    plant,
    prepare,
    scan,
    stamped,
    touched,
)
from tests.shadow.test_shadow import call as shadow_call


def sign(folder: Path) -> list[str]:
    reports = [folder / f"{name}.report.json" for name in "ab"]
    if not (folder / "k.key").exists():
        assert run(["sign", "-q", "--new-key", str(folder / "k")]) == 0
        for report in reports:
            assert run([*PLAN, "-q", "-o", str(report)]) == 0
    return ["sign", *map(str, reports), "-q", "-f", "--key", str(folder / "k.key")]


def plan(folder: Path) -> list[str]:
    if not (folder / "s.jsonl").exists():
        assert run(scan(folder)) == 0
    call = ["secrets", "plan", str(folder / "d.jsonl"), "-q", "-f", "--secrets", str(folder / "s.jsonl")]
    return [*call, "--steps", "20", "--batch-size", "6", "-o", str(folder / "plan.safetensors")]


def account(folder: Path) -> list[str]:
    return [*PLAN, "-q", "-f", "--plot", str(folder / "a.svg"), "-o", str(folder / "a.json")]


def account_elsewhere(folder: Path) -> list[str]:
    """Plot and report lie in two folders."""
    (folder / "plots").mkdir(exist_ok=True)
    return [*PLAN, "-q", "-f", "--plot", str(folder / "plots" / "a.svg"), "-o", str(folder / "a.json")]


def verify(folder: Path) -> list[str]:
    if not (folder / "m.private.report.json").exists():
        assert run(["noise", str(folder / "m.safetensors"), "-q", "--epsilon", "1", *FACTS]) == 0
    place = ["--plot", str(folder / "v.svg"), "-o", str(folder / "v.json")]
    return ["verify", str(folder / "m.private.report.json"), "-q", "-f", *place]


def claims(folder: Path) -> list[str]:
    claim = ["--epsilon", "1", "--delta", "1e-6", "--noise-multiplier", "4.225"]
    place = ["-q", "-f", "-o", str(folder / "c.json"), "--export", str(folder / "proofs")]
    return ["claims", "check", "gaussian", *claim, *place]


def scan_of_nothing(folder: Path) -> list[str]:
    """The second of two scans finds nothing, and removes the book of the first."""
    name = "bare" if (folder / "s.jsonl").exists() else "d"
    return ["secrets", "scan", str(folder / f"{name}.jsonl"), "-q", "-f", "-o", str(folder / "s.jsonl")]


COMMANDS = {each.__name__: each for each in (noise, plant, scan, scan_of_nothing, account, sign)}
#: One way to put a set in place serves all commands: in quick tests one that replaces every file, and one that removes
#: one besides.
_QUICK = ("scan_of_nothing",)
TWICE = [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]


@pytest.mark.parametrize("command", TWICE)
def test_a_killed_command_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, write_model: Callable[..., Path], command: str
) -> None:
    arguments, first = COMMANDS[command], prepare(tmp_path / "first", write_model)
    assert run(arguments(first)) == 0
    assert outcomes(tmp_path, first, arguments) == {"old", "new"}


def outcomes(tmp_path: Path, first: Path, arguments: Callable[[Path], list[str]]) -> set[str]:
    """What is left of a command that is killed at every call, in a copy of ``first`` each."""
    whole = copied(first, tmp_path / "whole")
    before = stamped(whole)
    calls = killed(arguments(whole), 0)
    every = touched(before, stamped(whole))
    assert len(every) > 1
    seen = set()
    for fatal in range(1, calls + 1):
        folder = copied(first, tmp_path / str(fatal))
        before = stamped(folder)
        killed(arguments(folder), fatal)
        recover(folder)
        found = touched(before, stamped(folder))
        seen.add("new" if found == every else "mixed" if found else "old")
    return seen


def one_by_one(outputs: Sequence[PendingFile], *, replace: bool = True, remove: Sequence[Path] = ()) -> None:
    """What ``commit_together`` would be without a journal."""
    for path in remove:
        path.unlink()
    for pending in outputs:
        pending.commit(replace=replace)


@pytest.mark.parametrize("command", ["account", "scan_of_nothing"])
def test_a_set_that_is_not_one_is_noticed(
    tmp_path: Path, write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("privctl.reports.files.commit_together", one_by_one)
    monkeypatch.setattr("privctl.storage.commit.commit_together", one_by_one)
    arguments, first = COMMANDS[command], prepare(tmp_path / "first", write_model)
    assert run(arguments(first)) == 0
    assert "mixed" in outcomes(tmp_path, first, arguments)


# Commands that take seconds run once.


def audit(folder: Path) -> list[str]:
    model = tiny.save_model(folder / "model", "gpt2")
    files = [tiny.write_jsonl(folder / f"{i}.jsonl", tiny.sentences(12, i)) for i in range(2)]
    call = ["audit", str(model), "--members", str(files[0]), "--nonmembers", str(files[1]), "--device", "cpu"]
    return [*call, "-q", "-f", "-o", str(folder / "a.report.json")]


def records(folder: Path) -> Path:
    drawn = random.Random(0)
    lines = [" ".join(drawn.choices(("cat", "dog", "mat", "sat", "on", "the"), k=5)) for _ in range(24)]
    return tiny.write_jsonl(folder / "train.jsonl", lines)


def training(folder: Path, start: Path, method: str, *more: str) -> list[str]:
    call = ["retrain", method, str(start), "--data", str(records(folder)), "-o", str(folder / "out"), "--steps", "2"]
    return [*call, "--batch-size", "12", "--device", "cpu", "-q", "-f", "--show-unprotected", *more]


def dp_sgd(folder: Path, start: Path) -> list[str]:
    return training(folder, start, "dp-sgd", "--noise-multiplier", "1", "--delta", "1e-3")


def dp_zo(folder: Path, start: Path) -> list[str]:
    return training(folder, start, "dp-zo", "--noise-multiplier", "1", "--delta", "1e-3")


def ferret(folder: Path, start: Path) -> list[str]:
    return training(folder, start, "ferret", "--epsilon", "0.5", "--groups", "eighth")


def shadow(folder: Path, start: Path) -> list[str]:
    """The fifth model, whose weights are kept, comes to a folder of four."""
    assert run([*shadow_call(folder, folder / "shadows"), "--count", "4", "--steps", "1"]) == 0
    return [*shadow_call(folder, folder / "shadows"), "--count", "5", "--steps", "1", "--keep-models"]


def extraction(folder: Path) -> list[str]:
    """Prompts from outside and a split that was drawn before."""
    model, data = tiny.save_model(folder / "model", "gpt2"), tiny.write_jsonl(folder / "e.jsonl", tiny.sentences(30, 1))
    assert run(["audit", "split", str(data), "-q", "-f", "-o", str(folder / "drawn")]) == 0
    (folder / "prompts.txt").write_text("w1 w2 w3\nw4 w5\n")
    call = [
        "audit",
        "extraction",
        str(model),
        "--split",
        str(folder / "drawn"),
        "--prompts",
        str(folder / "prompts.txt"),
    ]
    call += ["--prefix-tokens", "3", "--suffix-tokens", "3", "--greedy-only", "--exact-only", "--device", "cpu"]
    return [*call, "-q", "-f", "-o", str(folder / "x.report.json")]


#: Commands, what they replace, and what they make or change besides.
SETS: dict[str, tuple[Callable[[Path, Path], list[str]], set[str], set[str]]] = {
    "plan": (lambda folder, _: plan(folder), {"plan.report.json", "plan.safetensors"}, set()),
    "account_elsewhere": (lambda folder, _: account_elsewhere(folder), {"a.json", "plots/a.svg"}, set()),
    "verify": (lambda folder, _: verify(folder), {"v.json", "v.svg"}, set()),
    "claims": (lambda folder, _: claims(folder), {"c.json"}, {"proofs"}),
    "audit": (lambda folder, _: audit(folder), {"a.report.json", "a.scores.safetensors"}, set()),
    "extraction": (lambda folder, _: extraction(folder), {"x.report.json", "x.scores.safetensors"}, set()),
    "dp_sgd": (dp_sgd, {"out.report.json", "out.private-history.json"}, {"out"}),
    "dp_zo": (dp_zo, {"out.report.json", "out.private-history.json"}, {"out"}),
    "ferret": (ferret, {"out.report.json", "out.private-history.json", "out.updates.safetensors"}, {"out"}),
    "shadow": (
        shadow,
        {"shadows/shadow-0004.report.json"},
        {"shadows/shadow-0004", "shadows/shadow-0004.scores.safetensors", "shadows/shadow.report.json"},
    ),
}


@pytest.mark.parametrize(
    "command",
    [name if name in ("verify", "ferret") else pytest.param(name, marks=pytest.mark.slow) for name in SETS],
)
def test_a_kill_of_a_longer_command_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, write_model: Callable[..., Path], start: Path, command: str
) -> None:
    arguments, replaced, created = SETS[command]
    folder = prepare(tmp_path / "f", write_model)
    call = arguments(folder, start)
    for name in replaced:
        (folder / name).write_text("old")
    before = contents(folder)
    copies = left_by_kills(call, folder, tmp_path / "copies")
    new = contents(folder)
    every = touched(before, new)
    assert all(any(Path(each).is_relative_to(name) for each in every) for name in replaced | created)
    seen = set()
    for copy in copies:
        for each in (copy, *(path for path in copy.iterdir() if path.is_dir())):
            recover(each)
        found = contents(copy)
        assert found in (before, new), touched(before, found)
        seen.add(found == before)
    assert seen == {True, False}


def split(folder: Path) -> list[str]:
    return ["audit", "split", str(folder / "d.jsonl"), "-q", "-o", str(folder / "split")]


def test_a_killed_draw_of_a_split_is_none_or_whole(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """And where it is none, it is drawn again; where it is whole, it is replaced with --force."""
    folder = prepare(tmp_path / "f", write_model)
    copies = left_by_kills(split(folder), folder, tmp_path / "copies", WRITES)
    names, codes = {"manifest.json", "members.jsonl", "nonmembers.jsonl"}, set()
    for copy in copies:
        if (code := run(split(copy))) != 0:
            assert "members.jsonl exists; give --force to replace it" in capsys.readouterr().err
            assert read_split(copy / "split" / "manifest.json").manifest.records == 40
            assert run([*split(copy), "-f"]) == 0
        codes.add(code)
        assert {path.name for path in (copy / "split").iterdir()} == names
        assert read_split(copy / "split" / "manifest.json").manifest.records == 40
    assert codes == {0, 2}


@pytest.mark.slow
def test_a_log_of_audits_is_whole_after_every_kill(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was begun is in it, and the next audit adds to it."""
    folder = prepare(tmp_path / "f", write_model)
    call = extraction(folder)
    copies = left_by_kills(call, folder, tmp_path / "copies", WRITES)
    ended = set()
    for copy in copies:
        log = next(iter(copy.glob("*.audits.jsonl")), None)
        audits = () if log is None or not log.stat().st_size else read_log(log).audits
        assert len(audits) <= 1
        ended.add(None if not audits else audits[0].end is not None)
    assert ended >= {None, False}
    copy = copies[-1]
    assert run([word.replace(str(folder), str(copy)) for word in call]) == 0
    (log,) = copy.glob("*.audits.jsonl")
    assert [audit.end is not None for audit in read_log(log).audits][-1]
    assert len(read_log(log).audits) == 2


@pytest.mark.slow
def test_shadow_models_are_added_after_every_kill(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    call = [*shadow_call(tmp_path / "f", tmp_path / "f" / "shadows"), "--count", "4", "--steps", "1"]
    copies = left_by_kills(call, tmp_path / "f", tmp_path / "copies", WRITES)
    with pytest.raises(CommandError, match="another process goes on with the shadow models in"):
        claim = Claim(tmp_path / "f" / "shadows", "shadow models")
        assert run(call) == 2
        Claim(tmp_path / "f" / "shadows", "shadow models")
    claim.close()
    for copy in copies[:: max(1, len(copies) // 12)]:
        assert run([word.replace(str(tmp_path / "f"), str(copy)) for word in call]) == 0
        stored = {path.name for path in (copy / "shadows").iterdir()}
        scores = {f"shadow-000{index}.scores.safetensors" for index in range(4)}
        assert stored == {"shadow.report.json", *scores}
        assert len(read_report(copy / "shadows" / "shadow.report.json").outputs) == 4
