"""Lower bounds on epsilon and mu from scores of a drawn split, whose coins serve like those of canaries.

Each record whose line occurs once, or each group, was included by its own fair coin, as the one-run bounds require
(Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024). The numbers of guesses depend only on the
number of coins, as for planted canaries. A bound applies to what shares a coin: one record, or all records of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.bounds import bounds_of
from audits.canaries.design import register
from audits.scores.table import Skip
from audits.split.drawn import DrawnSplit, Place
from privctl.domain.errors import CommandError, InputError
from privctl.domain.evidence import Evidence
from privctl.domain.shown import counted
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: More digits than any line number has.
_LONGEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnScores:
    """The scored part of ``split``: ``ids`` such as ``members:17``, side and line, and ``member`` [records].

    For a split of groups, each entry is a group, named by one of its records. ``skipped`` counts the records that
    privctl itself left out, by (member, reason).
    """

    split: DrawnSplit
    ids: Sequence[str]
    member: NDArray[np.bool_]
    skipped: Mapping[tuple[bool, Skip], int]
    #: Why scores may depend on the coins; empty if that is determined by what is missing.
    incomplete: str = ""

    def bounds(
        self, scores: Mapping[str, NDArray[np.float64]], delta: float, alpha: float, *, reason: str = ""
    ) -> tuple[Evidence, ...]:
        """The bounds at ``delta`` by the ``scores`` [records] of each column, all jointly wrong with ``alpha``.

        ``reason`` says why they are not bounds, if so. Raises InputError for records that are not in the split or fewer
        than 2 coins, CommandError for a delta out of range.
        """
        if not 0 <= delta < 1:
            raise CommandError(f"delta is {delta:g}; expected at least 0 and below 1")
        count = len(self.split.included)
        if count < 2:
            what = "records that occur once" if self.split.group_by is None else "groups"
            raise InputError(f"{self.split.path} draws {count} {what}; give at least 2")
        places = self._score_indices(count)
        scored = places >= 0
        reason = reason or self._why_none(int((~scored).sum()))
        sets = register([1] * count)
        included = np.array(self.split.included, dtype=np.bool_)
        grouped = self.split.group_by is not None
        return tuple(
            item
            for name, values in scores.items()
            for item in bounds_of(
                sets,
                np.where(scored, values[places], 0.0),
                scored,
                included,
                delta,
                alpha / len(scores),
                reason=reason,
                name=name,
                of_group=self.split.most if grouped else None,
            )
        )

    def _score_indices(self, count: int) -> NDArray[np.int64]:
        """The index of the score for each of ``count`` coins; -1 if there is none."""
        places = np.full(count, -1)
        for row, (name, member) in enumerate(zip(self.ids, self.member.tolist(), strict=True)):
            if (coin := self.split.coins.get(place_of(name, member, self.split))) is not None:
                places[coin] = row
        return places

    def _why_none(self, missing: int) -> str:
        """Why no bound follows; empty if one does."""
        if self.incomplete:
            return self.incomplete
        if missing > sum(self.skipped.values()):
            word = self.split.coin_word
            return f"{counted(missing, word)} of the split have no score, and which ones may depend on the coins"
        of_repeats = (Skip.DUPLICATE, Skip.IN_BOTH, Skip.REPEATED)
        alike = sum(n for (_, skip), n in self.skipped.items() if skip in of_repeats)
        manifest = self.split.manifest
        repeated = manifest.members.records + manifest.nonmembers.records - manifest.records
        if self.split.group_by is not None:  # remaining repetitions are within one group
            alike, repeated = sum(n for (_, skip), n in self.skipped.items() if skip is Skip.IN_BOTH), 0
        return "" if alike <= repeated else "different records of the split have the same text, so coins are shared"


def place_of(name: str, member: bool, split: DrawnSplit) -> Place:
    """The side and line of a record by ``name``, such as ``members:17``.

    Raises InputError if ``split`` does not have it.
    """
    side, _, line = name.partition(":")
    last = {"members": split.manifest.members.records, "nonmembers": split.manifest.nonmembers.records}
    if side not in last or not _is_count(line) or not 1 <= int(line) <= last[side]:
        raise InputError(
            f"the record {shown(name)} is none of {split.path}; name records members:LINE and nonmembers:LINE, after "
            "the files of the split"
        )
    if member is not (side == "members"):
        raise InputError(f"the record {shown(name)} is on the other side of {split.path}; correct the file")
    return member, int(line)


def _is_count(text: str) -> bool:
    """Whether ``text`` is a positive integer in canonical form: 017 would be a second name of the record 17."""
    return text.isascii() and text.isdecimal() and not text.startswith("0") and len(text) < _LONGEST
