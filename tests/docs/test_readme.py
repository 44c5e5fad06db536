"""The README's commands do what it shows: in small here, and word for word, output and all, in the slow test."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

import pytest

from privctl.cli import run
from tests.docs import picture
from tests.docs.outputs import Example, examples, missing
from tests.docs.pages import DOCS, ROOT, command_lines, pages

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: The examples between installing and testing, which need the network.
EXAMPLES = [each for each in examples(README) if "pip install" not in each.commands]
#: A model that is refused, and a claim that is refuted.
MAY_END = {"gate": (0, 1), "claims": (0, 1)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # tables are as wide as they are in a pipe
    return tmp_path


def printed(example: Example) -> str:
    """Run its commands in turn in this process; what they print."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for words in command_lines(example.commands.replace("&&", "\n")):
            if words[0] == "cd":
                os.chdir(words[1])
            elif words[0] == "privctl":
                assert run(words[1:]) in MAY_END.get(words[1], (0,)), shlex.join(words)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_readme_as_it_is_written(here: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["demo"]) == 0
    demonstrated = picture.of_demonstration(here / "privctl-demo")
    for example in EXAMPLES:
        found = printed(example)
        if example.shown is not None:
            assert missing(example, found) is None, f"{example.commands}printed:\n{found}"
    drawn = picture.numbers()
    assert [(m.name, m.status) for m in drawn.models] == [(m.name, m.status) for m in demonstrated.models]
    assert [m.found for m in drawn.models[:2]] == [m.found for m in demonstrated.models[:2]]
    for documented, measured in zip(drawn.models, demonstrated.models, strict=True):
        assert (documented.epsilon or 0) == pytest.approx(measured.epsilon or 0, rel=1e-6)
        assert documented.utility == pytest.approx(measured.utility, rel=0.25)


GUIDE = [each for each in examples(pages()["guide.md"]) if each.shown is not None]


@pytest.mark.parametrize("example", GUIDE, ids=[each.commands.split()[1] for each in GUIDE])
@pytest.mark.usefixtures("here")
def test_the_guide_shows_what_is_printed(example: Example) -> None:
    found = printed(example)
    assert missing(example, found) is None, found


def test_the_readme_shows_the_acts_in_order() -> None:
    acts = [words[1] for example in EXAMPLES for words in command_lines(example.commands) if words[0] == "privctl"]
    assert list(dict.fromkeys(acts)) == ["audit", "retrain", "noise", "verify", "gate"]
    assert len(README.splitlines()) <= 200


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_the_chart_can_be_read_in_light_and_dark(dark: bool) -> None:
    """Every text and dot against its ground, after the style that applies."""
    text = (DOCS / "demo.svg").read_text(encoding="utf-8")
    rules = dict(re.findall(r'\[fill="(#\w+)"\]\{fill:(#\w+)\}', text)) if dark else {}
    ground = rules.get("#FFFFFF", "#FFFFFF")
    inks = set(re.findall(r'<(?:text|circle)[^>]* fill="(#\w+)"', text))
    assert len(inks) >= 4
    assert all(contrast(rules.get(ink, ink), ground) >= 4.5 for ink in inks)
    assert contrast("#FFFFFF", "#0D1117") == pytest.approx(18.93, abs=0.05)


EXACT = Example(
    commands="", measured=("AUC", "seconds"), shown="a 1\n  b\n...\nx  seconds\n-  -------\n1      0.5\n...\n"
)
PRINTED = "a 1\n  b\nand more\n\nx  seconds\n-  -------\n1  12.25\n2  1\n\nthe end\n"


def test_what_is_printed_is_compared() -> None:
    assert missing(EXACT, PRINTED) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [("a 1", "a 2"), ("  b", "  c"), ("1  12.25", "3  12.25"), ("x  seconds", "y  seconds"), ("12.25", "slow")],
)
def test_a_difference_is_noticed(before: str, after: str) -> None:
    assert missing(EXACT, PRINTED.replace(before, after)) is not None


def test_the_end_counts_where_nothing_is_left_out() -> None:
    whole = Example(commands="", measured=(), shown="a\nb\n")
    assert missing(whole, "a\nb\n") is None
    assert missing(whole, "a\nb\nc\n") is not None
    assert missing(whole, "z\na\nb\n") is not None
