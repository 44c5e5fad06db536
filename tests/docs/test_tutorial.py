"""Every command of the tutorial does what it shows, in order: in small here, as written in the slow test."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.demo.model import prepare
from tests.docs.outputs import missing, shown_after
from tests.docs.pages import blocks, command_lines, pages

TUTORIAL = pages()["tutorial.md"]
#: A verdict may go either way with other noise, and small files show less.
MAY_END = {"audit": (0, 1), "gate": (0, 1, 3)}
#: What only takes time, and the size of data that it was for.
SMALLER = {
    ("--epochs", "20"): "1",
    ("--epochs", "30"): "1",
    ("--count", "400"): "24",
    ("--dataset-size", "391"): "{members}",
    ("--batch-size", "64"): "16",
}
#: Options that make a call quick without changing what it does.
QUICKER = {"--canaries": ("--references", "63", "--no-exact")}


def calls() -> Iterator[tuple[list[str], str | None]]:
    """The words after ``privctl`` of each of the tutorial's calls, and the file that the output goes to."""
    for block in blocks(TUTORIAL, "sh"):
        joined = re.sub(r"\\\n\s*", "", block)
        for line, words in zip(
            [line for line in joined.splitlines() if line.strip()], command_lines(block), strict=True
        ):
            if words[0] == "privctl":
                found = re.search(r">\s*(\S+)$", line)
                yield words[1:], found and found[1]


CALLS = list(calls())


def smaller(words: list[str], members: int) -> list[str]:
    """The call with less of what only takes time."""
    less = [SMALLER.get(pair, pair[1]).format(members=members) for pair in pairwise(words)]
    return [words[0], *less, *(more for option, added in QUICKER.items() if option in words for more in added)]


def follow(every: list[tuple[list[str], str | None]]) -> None:
    for words, target in every:
        if target is None:
            code = run(words)
        else:
            with Path(target).open("w") as file, contextlib.redirect_stdout(file):
                code = run(words)
        assert code in MAY_END.get(words[0], (0,)), " ".join(words)


@contextlib.contextmanager
def silent(_: str, __: float, ___: str) -> Iterator[object]:
    yield lambda _: None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_tutorial_in_small(here: Path) -> None:
    (here / "demo").mkdir()
    prepare(here / "demo", silent, notes=48)  # type: ignore[arg-type]
    assert (
        run(
            [
                "noise",
                "demo/model",
                "--epsilon",
                "1",
                "--calibration",
                "published",
                "-o",
                "demo/model.noised-eps1",
                "-q",
            ]
        )
        == 0
    )
    members = len((here / "demo" / "members.jsonl").read_text().splitlines())
    small = [(smaller(words, members), target) for words, target in CALLS if words[0] not in ("demo", "--version")]
    follow(small)
    assert (here / "page.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_tutorial_as_it_is_written(here: Path) -> None:
    """And what it shows of each output is what was printed."""
    calls = iter(CALLS)
    for commands, examples in shown_after(TUTORIAL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            follow([next(calls) for words in command_lines(commands) if words[0] == "privctl"])
        for example in examples:
            assert missing(example, out.getvalue()) is None, f"{commands}printed:\n{out.getvalue()}"
    assert (here / "page.html").is_file()


def test_what_the_tutorial_shows_of_a_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The one output that needs no model, so that it can be compared each time."""
    ((commands, examples),) = [each for each in shown_after(TUTORIAL) if each[0].startswith("privctl account")]
    assert len(examples) == 2
    follow([(words[1:], None) for words in command_lines(commands)])
    out = capsys.readouterr().out
    assert [missing(example, out) for example in examples] == [None, None]
    assert missing(examples[0], out.replace("11.8649", "11.8648")) is not None


def test_outputs_of_the_tutorial_are_compared() -> None:
    assert sum(len(examples) for _, examples in shown_after(TUTORIAL)) >= 9


def test_the_tutorial_shows_every_act() -> None:
    commands = {words[0] for words, _ in CALLS}
    assert commands >= {"demo", "inspect", "verify", "noise", "account", "retrain", "audit", "canary", "gate", "report"}


def test_what_is_made_smaller_is_in_the_tutorial() -> None:
    pairs = {pair for words, _ in CALLS for pair in pairwise(words)}
    assert set(SMALLER) <= pairs
