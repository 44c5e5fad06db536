"""Records that occur more than once: which are left out gives no membership away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from audits.membership.records import left_out
from audits.scores.table import Skip
from privctl.data.records import Record
from tests.bench.audit_repeats import rejected, side_by_side
from tests.few import few


@pytest.mark.parametrize(("share", "copies"), few([(0.1, 2), (0.5, 2), (0.5, 4)], 1))
def test_repeats_do_not_look_like_membership(share: float, copies: int) -> None:
    """Of 100 at most 13 may reject where 5 do on average (one in 2000 such tests would see more)."""
    assert rejected(left_out, share, copies, 100) <= 13


def test_repeats_that_were_kept_together_count_once() -> None:
    assert rejected(left_out, 0.5, 2, 100, together=True) <= 13


def test_keeping_what_fell_on_one_side_is_noticed() -> None:
    assert rejected(side_by_side, 0.5, 2, 100) >= 20


def reasons(members: Sequence[str], nonmembers: Sequence[str]) -> list[Skip | None]:
    texts = [(True, text) for text in members] + [(False, text) for text in nonmembers]
    listed = [(member, Record(line, text)) for line, (member, text) in enumerate(texts, 1)]
    return left_out(listed, [record.digest for _, record in listed])


def test_what_is_left_out_does_not_change_with_the_sides_of_other_records() -> None:
    assert reasons(["a", "a", "b"], ["c", "c"]) == [None, Skip.DUPLICATE, None, None, Skip.DUPLICATE]
    mixed = reasons(["a", "a", "b", "d"], ["c", "c", "d"])
    assert mixed == [Skip.REPEATED, Skip.REPEATED, None, Skip.IN_BOTH, Skip.REPEATED, Skip.REPEATED, Skip.IN_BOTH]


def test_empty_records_say_nothing_of_how_the_files_were_made() -> None:
    assert reasons(["a", "a", ""], ["b", "", " "]) == [
        None, Skip.DUPLICATE, Skip.TOO_SHORT, None, Skip.TOO_SHORT, Skip.TOO_SHORT
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other", ["A cat", "a  cat", "a cat\n", "a\u00a0cat", "a c\u200bat", "a cat\0", "\ufeffa cat", "\uff41 cat"]
)
def test_a_record_in_another_spelling_is_no_other_record(other: str) -> None:
    assert Record(1, other).content == Record(2, "a cat").content
    assert Record(1, other).digest != Record(2, "a cat").digest


@pytest.mark.parametrize("other", ["a bat", "a cat.", "a cät", ""])
def test_another_text_is_another_record(other: str) -> None:
    assert Record(1, other).content != Record(1, "a cat").content
    assert Record(1, "a cat", "yes").content != Record(1, "a cat", "no").content
