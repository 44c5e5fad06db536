"""Recounts the correct guesses behind bounds from a drawn split, from the ranks that the audit kept.

Each set of guesses takes the highest scores as included and the lowest as left out, in numbers that follow from the
number of coins, without scores that tie with one beyond the cut. Ranks determine all of this except for the last set,
which guesses all coins: it is cut at the widest gap between scores near the middle, of which ranks only give the
possible places. The scores themselves determine that too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from verify.audits.terms import METHODS, counts_of, of_split
from verify.files.places import as_recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRanks:
    """The ranks [rows] of the ``scores`` and of the ``tested`` scores by attack, and the side and line of each row.

    ``whole`` is whether they are the scores themselves, so that gaps between them are known.
    """

    scores: Mapping[str, NDArray[np.float64]]
    tested: Mapping[str, NDArray[np.float64]]
    member: NDArray[np.bool_]
    line: NDArray[np.int64] | None
    whole: bool = False


class RightGuesses:
    """Recounts the correct guesses of the audit report at ``path`` from its ``kept`` ranks.

    ``otherwise`` names attacks whose kept scores depend on the coins, so that the guesses follow only from the ranks
    that were tested.
    """

    def __init__(self, path: Path, report: PrivacyReport, kept: KeptRanks, otherwise: Collection[str]) -> None:
        self._path, self._report, self._kept, self._otherwise = path, report, kept, otherwise
        self._stated = readable(AuditParameters, report)

    def fault(self, item: Evidence) -> str | None:
        """What is wrong with the counts of a bound from a drawn split; None if the ranks do not determine them."""
        if self._stated is None or item.method not in METHODS or item.lower is None:
            return None
        if not of_split(item, self._stated):
            return None
        name, grouped = item.quantity.partition(", ")[2], self._stated.group_by is not None
        ranks = self._kept.tested.get(name)
        if ranks is None and (grouped or name not in self._otherwise):
            ranks = self._kept.scores.get(name)
        rows = np.ones(len(self._kept.member), np.bool_) if grouped else self._rows
        if ranks is None or rows is None or np.isnan(ranks[rows]).any():
            return None
        return wrong_guesses(item, ranks[rows], self._kept.member[rows], whole=self._kept.whole)

    @cached_property
    def _rows(self) -> NDArray[np.bool_] | None:
        """Which records have their own coin, that is, whose line occurs once; None without the split's files."""
        if self._kept.line is None:
            return None
        by_digest: dict[bytes, list[tuple[bool, int]]] = {}
        for role, side in (("members", True), ("nonmembers", False)):
            named = [item for item in self._report.inputs if item.role == role]
            file = as_recorded(self._path, named[0]) if len(named) == 1 else None
            if file is None:
                return None
            for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
                if content := line.strip():
                    by_digest.setdefault(content, []).append((side, number))
        single = {places[0] for places in by_digest.values() if len(places) == 1}
        rows = zip(self._kept.member.tolist(), self._kept.line.tolist(), strict=True)
        return np.array([place in single for place in rows], np.bool_)


def wrong_guesses(item: Evidence, ranks: NDArray[Any], member: NDArray[np.bool_], *, whole: bool = False) -> str:
    """What is wrong with the counts of right guesses behind a bound; "" if nothing is.

    ``ranks`` [coins] are those of records or canaries with a score, ``member`` [coins] their coins, and ``whole`` says
    that they are the scores themselves.
    """
    for number, (coins, guesses, right) in enumerate(counts_of(item), start=1):
        if len(ranks) > coins:
            return f"it is of {coins} coins, and {len(ranks)} scores are kept"
        made = int(item.details.get(f"made {number}", guesses))
        all_coins = _divided(ranks, member, whole=whole) if guesses == coins else None
        possible = all_coins or {_guesses_and_correct(ranks, member, guesses // 2, coins)}
        if (made, right) not in possible:
            most = max(count for _, count in possible)
            counted = f"{most} at most" if len(possible) > 1 else f"{most} of {next(iter(possible))[0]}"
            kept = "scores" if whole else "ranks kept"
            return f"{right} of {made} guesses made are said to be right, and the {kept} give {counted}"
    return ""


def _guesses_and_correct(ranks: NDArray[Any], member: NDArray[np.bool_], half: int, coins: int) -> tuple[int, int]:
    """The guesses made and correct if ``half`` are to be made each way; records without a score are not guessed."""
    unscored = coins - len(ranks)
    middle = np.full(unscored, np.median(ranks) if len(ranks) else 0.0)
    ordered = np.sort(np.concatenate([ranks, middle]))
    above = ranks > (ordered[coins - half - 1] if half < coins else -math.inf)
    below = ranks < (ordered[half] if half < coins else math.inf)
    return int(above.sum() + below.sum()), int((above & member).sum() + (below & ~member).sum())


def _divided(ranks: NDArray[Any], member: NDArray[np.bool_], *, whole: bool) -> set[tuple[int, int]]:
    """The guesses made and correct for every possible place of the cut, which separates ties only if all scores tie.

    For ``whole`` scores the place is known: the first of the widest gaps.
    """
    count = len(ranks)
    order = np.argsort(ranks, kind="stable")
    ordered, inside = ranks[order], member[order]
    reach = math.ceil(2 * math.sqrt(count))
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    if high <= low:
        return {(0, 0)}
    within = np.concatenate([[0], np.cumsum(inside)])
    gaps = [at for at in range(low, high) if ordered[at + 1] > ordered[at]]
    if not gaps:
        value = ordered[low]
        above, below = ordered > value, ordered < value
        return {(int(above.sum() + below.sum()), int((above & inside).sum() + (below & ~inside).sum()))}
    if whole:
        gaps = [max(gaps, key=lambda at: ordered[at + 1] - ordered[at])]
    # Of the at + 1 scores below the cut, guesses on non-members are correct; above it, those on members are.
    return {(count, int(at + 1 - within[at + 1] + within[-1] - within[at + 1])) for at in gaps}
