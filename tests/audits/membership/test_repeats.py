"""Records that occur more than once: which are left out gives no membership away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from audits.membership.records import left_out
from audits.scores.table import Skip
from audits.statistics.max_t import max_t, rank_statistics
from privctl.data.records import Record

Rule = Callable[[Sequence[tuple[bool, Record]], Sequence[bytes]], Sequence[Skip | None]]
LINES, MEMBERS, SETS = 400, 360, 100


def side_by_side(listed: Sequence[tuple[bool, Record]], names: Sequence[bytes]) -> list[Skip | None]:
    """Planted fault: both copies go where they are on both sides, one where they are on one."""
    sides = [{name for (inside, _), name in zip(listed, names, strict=True) if inside is side} for side in (True, False)]
    both, seen = sides[0] & sides[1], set[bytes]()
    reasons: list[Skip | None] = []
    for name in names:
        reasons.append(Skip.IN_BOTH if name in both else Skip.DUPLICATE if name in seen else None)
        seen.add(name)
    return reasons


def rejected(rule: Rule, share: float, copies: int, *, together: bool = False) -> int:
    """In how many of ``SETS`` a test at 5 % rejects, where ``share`` of the lines repeat and are easier than others.

    Which lines are members is decided by line, or ``together`` for all of one text.
    """
    found = 0
    for seed in range(SETS):
        random = np.random.default_rng([seed, copies, round(100 * share)])
        texts = round(LINES * share / copies)
        text = np.concatenate([np.repeat(np.arange(texts), copies), np.arange(texts, LINES - texts * (copies - 1))])
        ease = random.normal(size=int(text.max()) + 1) + (np.arange(int(text.max()) + 1) < texts)
        lines = random.random(int(text.max()) + 1)[text] if together else random.random(LINES)
        member = lines < MEMBERS / LINES
        listed = [(bool(inside), Record(i, f"t{i}")) for i, inside in zip(text.tolist(), member, strict=True)]
        names = [record.text.encode() for _, record in listed]
        kept = [i for i, why in enumerate(rule(listed, names)) if why is None]
        statistics = {"loss": rank_statistics(ease[text[kept]], ())}
        found += max_t(statistics, member[kept], seed, 0.05, count=99).p_values["loss"] <= 0.05
    return found


@pytest.mark.parametrize(("share", "copies"), [(0.1, 2), (0.5, 2), (0.5, 4)])
def test_repeats_do_not_look_like_membership(share: float, copies: int) -> None:
    """Of 100 at most 13 may reject where 5 do on average (one in 2000 such tests would see more)."""
    assert rejected(left_out, share, copies) <= 13


def test_repeats_that_were_kept_together_count_once() -> None:
    assert rejected(left_out, 0.5, 2, together=True) <= 13


def test_keeping_what_fell_on_one_side_is_noticed() -> None:
    assert rejected(side_by_side, 0.5, 2) >= 20


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
