"""Tables and paragraphs: at most 80 columns, nothing lost, colour that takes no room."""

import os

import pytest

from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.show.text.style import Colour, assumption_lines, coloured, paragraph, plain, table

WORDS = "the quick brown fox jumps over the lazy dog and " * 6


def widths(text: str) -> list[int]:
    return [len(plain(line)) for line in text.splitlines()]


def test_a_narrow_table_is_as_wide_as_its_cells() -> None:
    assert (
        table(["name", "value"], [["a", "1.5"], ["bcd", "-"]]) == "name  value\n----  -----\na       1.5\nbcd       -\n"
    )


def test_a_wide_table_folds_its_widest_text() -> None:
    rendered = table(["method", "reason", "epsilon"], [["a", WORDS, "1.5"], ["b", "short", "2"]])
    assert max(widths(rendered)) <= 80
    first, *rest = [line for line in rendered.splitlines() if "fox" in line]
    assert first.rstrip().endswith("1.5")
    assert all(line.startswith("   ") for line in rest)
    assert sum(line.count("fox") for line in rendered.splitlines()) == WORDS.count("fox")


def test_a_table_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 60 and 120 columns the text fills what there is; what fits is not folded."""
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        found = widths(table(["method", "reason", "epsilon"], [["a", WORDS, "1.5"]]))
        assert columns - 9 <= max(found) <= columns
        assert max(widths(paragraph(WORDS))) <= min(columns, 80)


def test_a_pipe_gets_a_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is no terminal under pytest."""
    monkeypatch.delenv("COLUMNS")
    assert len(table(["method", "reason"], [["a", WORDS], ["b", "short"]]).splitlines()) == 4
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((70, 20)))
    assert max(widths(table(["method", "reason"], [["a", WORDS], ["b", "short"]]))) <= 70


def test_numbers_and_long_words_are_never_broken() -> None:
    path = "/a/very/long/path/" + "x" * 90
    assert path in table(["path", "n"], [[path, "1"]])
    assert path in paragraph(f"see {path} there", indent=2)


def test_headings_fold_above_the_rule() -> None:
    rendered = table([f"heading number {i}" for i in range(8)], [["some words here"] * 8])
    lines = rendered.splitlines()
    assert max(widths(rendered)) <= 8 * 14
    rule = next(i for i, line in enumerate(lines) if set(line) <= {"-", " "})
    assert "".join(lines[:rule]).count("number") == 8
    assert "".join(lines[rule:]).count("words") == 8


def test_paragraphs_fold_and_hang() -> None:
    rendered = paragraph(WORDS.strip(), indent=2, hanging=6)
    lines = rendered.splitlines()
    assert max(widths(rendered)) <= 80
    assert lines[0].startswith("  the")
    assert all(line.startswith("      ") and line[6] != " " for line in lines[1:])
    assert rendered.split() == WORDS.split()


def test_colour_takes_no_room() -> None:
    word = coloured("VIOLATED", Colour.BAD)
    assert plain(word) == "VIOLATED"
    assert plain(paragraph(f"{word}: {WORDS}")) == paragraph(f"VIOLATED: {WORDS}")
    assert plain(table(["a", "b"], [[word, WORDS]])) == table(["a", "b"], [["VIOLATED", WORDS]])


@pytest.mark.parametrize("verbose", [False, True])
def test_what_was_enforced_is_counted(verbose: bool) -> None:
    assumptions = [
        Assumption(name=str(i), statement=f"statement {i}", state=state)
        for i, state in enumerate((AssumptionState.ENFORCED, AssumptionState.ASSERTED, AssumptionState.ENFORCED))
    ]
    text = assumption_lines(assumptions, verbose=verbose)
    assert "asserted: statement 1" in text
    assert ("enforced: statement 0" in text) == verbose
    assert ("(2 more that were enforced" in text) != verbose
