"""Searches that were begun before: logged, counted by their data, stated in reports, and not hidden by an edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.domain.errors import InputError
from privctl.train.search.made_before import count_searches, log_of, log_search

DATA, OTHER = "blake3:" + "a" * 64, "blake3:" + "b" * 64


def enter(output: Path, data: str, messages: list[str] | None = None) -> None:
    with log_search(output, output.with_name("absent"), data, [].append if messages is None else messages.append):
        pass


def test_searches_are_counted_by_their_data(tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert count_searches(output, DATA) == 0
    assert not log_of(output).exists(), "counting writes nothing"
    for number, data in enumerate((DATA, OTHER, DATA), start=1):
        enter(output, data)
        assert count_searches(output, DATA) + count_searches(output, OTHER) == number
    assert (count_searches(output, DATA), count_searches(output, OTHER)) == (2, 1)
    assert log_of(output).stat().st_mode & 0o077 == 0


def test_an_edited_log_is_refused_and_half_a_line_is_none(tmp_path: Path) -> None:
    output = tmp_path / "out"
    for _ in range(3):
        enter(output, DATA)
    whole = log_of(output).read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    for forged in (second + third, first + third, whole.replace(b"a" * 64, b"b" * 64, 1)):
        log_of(output).write_bytes(forged)
        with pytest.raises(InputError, match="was edited"):
            count_searches(output, DATA)
        with pytest.raises(InputError, match="was edited"):
            enter(output, DATA)
        assert log_of(output).read_bytes() == forged
    log_of(output).write_bytes(whole + third[:20])
    assert count_searches(output, DATA) == 3
    enter(output, DATA)
    assert count_searches(output, DATA) == 4
    log_of(output).write_bytes(first)  # cut at its end: nothing shows it, as the guide says
    assert count_searches(output, DATA) == 1
