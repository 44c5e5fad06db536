"""Lower bounds on epsilon and mu from scores of a drawn split: its coins are those of canaries.

Each record whose line occurs once was included by a fair coin of its own, or each group, as the one-run bounds require
(Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024). The numbers of guesses follow from the number
of coins alone, as for planted canaries. A bound is about what shares a coin: one record, or all records of a group.
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
    """What of ``split`` was scored: ``ids`` such as ``members:17``, the line, and ``member`` [records].

    Of a split of groups they are groups, each named by one of its records. ``skipped`` counts the records that privctl
    itself left out, by (member, reason).
    """

    split: DrawnSplit
    ids: Sequence[str]
    member: NDArray[np.bool_]
    skipped: Mapping[tuple[bool, Skip], int]
    #: Why scores may depend on the coins; empty where what is missing tells.
    incomplete: str = ""

    def bounds(
        self, scores: Mapping[str, NDArray[np.float64]], delta: float, alpha: float, *, reason: str = ""
    ) -> tuple[Evidence, ...]:
        """The bounds at ``delta`` by the ``scores`` [records] of each column, all together wrong with ``alpha``.

        ``reason`` says why they are none, if they are.
        Raises InputError for records that are not of the split, CommandError for a delta out of range.
        """
        if not 0 <= delta < 1:
            raise CommandError(f"delta is {delta:g}; expected at least 0 and below 1")
        count = len(self.split.included)
        if count < 2:
            what = "records that occur once" if self.split.group_by is None else "groups"
            raise InputError(f"{self.split.path} draws {count} {what}; give at least 2")
        places = self._places(count)
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

    def _places(self, count: int) -> NDArray[np.int64]:
        """Where the score of what has each of ``count`` coins is; -1 for none."""
        places = np.full(count, -1)
        for row, (name, member) in enumerate(zip(self.ids, self.member.tolist(), strict=True)):
            if (coin := self.split.coins.get(place_of(name, member, self.split))) is not None:
                places[coin] = row
        return places

    def _why_none(self, missing: int) -> str:
        """Why no bound follows; empty where one does."""
        if self.incomplete:
            return self.incomplete
        if missing > sum(self.skipped.values()):
            word = self.split.coin_word
            return f"{counted(missing, word)} of the split have no score, and which ones may depend on the coins"
        of_repeats = (Skip.DUPLICATE, Skip.IN_BOTH, Skip.REPEATED)
        alike = sum(n for (_, skip), n in self.skipped.items() if skip in of_repeats)
        manifest = self.split.manifest
        repeated = manifest.members.records + manifest.nonmembers.records - manifest.records
        if self.split.group_by is not None:  # a text of several groups was left out; repetitions are of one group
            alike, repeated = sum(n for (_, skip), n in self.skipped.items() if skip is Skip.IN_BOTH), 0
        return "" if alike <= repeated else "different records of the split have the same text, so coins are shared"


def place_of(name: str, member: bool, split: DrawnSplit) -> Place:
    """The place in ``split`` of a record by its ``name``, such as ``members:17``; raises InputError for no such one."""
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
    """Whether it is a whole number as it is usually written: 017 would be a second name of the record 17."""
    return text.isascii() and text.isdecimal() and not text.startswith("0") and len(text) < _LONGEST
