"""Options drawn together, as a user may give them: a command does it or refuses in a sentence, and what it wrote holds.

Options come from the commands' own definitions, so a new one takes part as soon as it is there, at the ends of its
range. Reports are verified by ``tests/reports_verified.py`` as soon as they are written.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from privctl.cli import root, run
from privctl.storage.digest import file_digest
from tests.audits.tiny import save_model, sentences

pytestmark = pytest.mark.slow

METHODS: dict[str, Sequence[str]] = {
    "dp-sgd": ["--epsilon", "8"],
    "dp-zo": ["--epsilon", "8", "--learning-rate", "1e-3"],
    "ferret": ["--epsilon", "8", "--release", "gaussian", "--fire-probability", "0.5"],
    "dpquant": ["--noise-multiplier", "1", "--format", "luq-fp4"],
    "clipped": [],
    "plain": [],
}
#: What a run takes long with, what needs other files or packages than there are, and what only shows or replaces.
_LEFT_OUT = {
    *("--data", "--output", "--epochs", "--steps", "--batch-size", "--epsilon", "--noise-multiplier", "--release"),
    *("--format", "--device", "--fsdp", "--base", "--base-bits", "--resume", "--dry-run", "--force", "--json"),
    *("--quiet", "--verbose", "--debug", "--log", "--cache", "--replay", "--secrets", "--vocabulary", "--search"),
    *("--members", "--nonmembers", "--train", "--split", "--canaries", "--commitment", "--canary-data"),
    *("--shadow", "--claim", "--adversarial-budget", "--plan", "--gradient-canaries", "--help", "--help-all"),
}
_FILES = {"--held-out": "others", "--public": "public", "--measure-on": "public", "--prompts": "others"}
#: Values that are no number's ends.
_VALUES: dict[str, Sequence[str]] = {
    "--text-column": ["text"],
    "--unit": ["user", "fold(user)"],
    "--group-by": ["user"],
    "--full-precision": ["*attn*"],
    "--public-seed": ["0123456789abcdef0123456789abcdef"],
    "--groups": ["max", "2"],
    "--learning-rate": ["1e-3", "1e-6"],
    "--prefix-tokens": ["1", "3"],
    "--suffix-tokens": ["1", "3"],
    "--micro-tokens": ["16", "4096"],
    "--perturbation": ["1e-2"],
    "--clip-norm": ["1e-3", "1", "1e3"],
    "--temperature": ["0.5", "2"],
}


def options_of(*names: str) -> list[click.Option]:
    """The options of a command that may be drawn."""
    command: Any = root
    for name in names:
        command = command.get_command(click.Context(command), name)
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    left_out = {*_LEFT_OUT, "--held-out"} if names[0] == "audit" else _LEFT_OUT
    return [each for each in found if _flag(each) not in left_out]


def _flag(option: click.Option) -> str:
    return max(option.opts, key=len)


def drawn(option: click.Option, source: random.Random, folder: Path) -> list[str]:
    """``option`` with a value; nothing where none is known that fits."""
    flag, within = _flag(option), getattr(option.type, "within", None)
    if option.is_flag:
        return [source.choice([flag, *option.secondary_opts])]
    if flag in _FILES:
        return [flag, str(folder / f"{_FILES[flag]}.jsonl")]
    if flag in _VALUES:
        return [flag, source.choice(_VALUES[flag])]
    if isinstance(option.type, click.Choice):
        return [flag, str(source.choice(list(option.type.choices)))]
    if option.nargs != 1:
        return []
    if isinstance(option.type, click.types.IntParamType):
        return [flag, str(source.choice([int(getattr(within, "low", 1)), 2, 3]))]
    if isinstance(option.type, click.types.FloatParamType):
        low = 1e-6 if within is None or within.open_low else within.low
        return [flag, repr(source.choice([low, 0.5, 0.99]))]
    return []


def extras(names: Sequence[str], most: int, source: random.Random, folder: Path) -> list[str]:
    every = options_of(*names)
    chosen = source.sample(every, min(source.randint(0, most), len(every)))
    return [word for option in chosen for word in drawn(option, source, folder)]


def contents(folder: Path) -> dict[str, str]:
    return {str(path): file_digest(path) for path in folder.rglob("*") if path.is_file()}


def done(words: Sequence[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> bool:
    """Whether the command succeeded; AssertionError where it neither did nor refused, leaving files as they were."""
    before = contents(folder)
    capfd.readouterr()
    code, captured = run(list(words)), capfd.readouterr()
    transcript = f"privctl {' '.join(words)}\nexit code {code}\n{captured.out[-3000:]}{captured.err[-3000:]}"
    after = contents(folder)
    kept = {name: digest for name, digest in before.items() if not name.endswith(".audits.jsonl")}
    assert {name: after.get(name) for name in kept} == kept, transcript
    if code == 0:
        return True
    assert code in (2, 3), transcript
    assert captured.err.splitlines()[-1].startswith(("privctl: ", "Error: ")), transcript
    kept_of_what_ended = (".audits.jsonl", ".run")
    assert {name for name in after if not any(part in name for part in kept_of_what_ended)} <= before.keys(), transcript
    return False


def write_records(path: Path, count: int, seed: int) -> None:
    rows = [{"text": text, "user": f"u{i % 7}"} for i, text in enumerate(sentences(count, seed))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def trained(folder: Path, source: random.Random) -> Iterator[tuple[Path, list[str]]]:
    """Calls that train, each with fewer options than the one before, and where their models will be."""
    method = source.choice(list(METHODS))
    length = ["--epochs", "1"] if method in ("clipped", "plain") else ["--steps", str(source.choice([1, 2]))]
    for attempt, most in enumerate((4, 2, 1, 0)):
        output = folder / f"out{attempt}"
        usual = ["--data", str(folder / "train.jsonl"), "-o", str(output), "-q", "--batch-size", "4", *length]
        more = extras(("retrain", method), most, source, folder)
        yield output, ["retrain", method, str(folder / "model"), *usual, *METHODS[method], *more]


@pytest.mark.parametrize("seed", range(30))
def test_a_drawn_flow(seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = random.Random(seed)
    save_model(tmp_path / "model", source.choice(["gpt2", "llama"]))
    for number, (name, count) in enumerate((("train", 24), ("others", 12), ("public", 6))):
        write_records(tmp_path / f"{name}.jsonl", count, 3 * seed + number)
    output = next(output for output, words in trained(tmp_path, source) if done(words, tmp_path, capfd))
    if (tmp_path / f"{output.name}.report.json").is_file() and source.random() < 0.5:
        noised = tmp_path / "noised"
        words = ["noise", str(output), "-o", str(noised), "--epsilon", "1"]
        output = noised if done(words, tmp_path, capfd) else output
    audited = []
    for number, kind in enumerate(("membership", "extraction")):
        sides = ("--members", "--nonmembers") if kind == "membership" else ("--train", "--held-out")
        records = [sides[0], str(tmp_path / "train.jsonl"), sides[1], str(tmp_path / "others.jsonl")]
        report = tmp_path / f"audit{number}.report.json"
        short = [] if kind == "membership" else ["--prefix-tokens", "1", "--suffix-tokens", "2"]
        words = ["audit", kind, str(output), *records, *short, "-o", str(report)]
        if done([*words, *extras(("audit", kind), 3, source, tmp_path)], tmp_path, capfd):
            audited.append(report)
    reports = [str(report) for report in (tmp_path / f"{output.name}.report.json", *audited)]
    assert done(["inspect", str(output)], tmp_path, capfd)
    assert done(["report", *reports, "--format", "html", "-o", str(tmp_path / "page.html")], tmp_path, capfd)
    policy = ["--max-age-days", "9", "--recompute", "true", "--model", str(output)]
    if all(_finds_nothing(report) for report in audited):
        assert done(["gate", *reports, *policy], tmp_path, capfd)


def _finds_nothing(report: Path) -> bool:
    return all(verdict["outcome"] != "REJECTED" for verdict in json.loads(report.read_text())["verdicts"])
