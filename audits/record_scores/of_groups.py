"""Scores of the groups that have the coins of a drawn split, such as users, from the scores of their records.

A group's scores are those of ``privctl audit membership``: the mean of its records' scores, weighted by its effective
size, and the mean of the highest. They depend on the scores and the groups' sizes, never on the coins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.groups import TOP, Grouping, highest, read_groups, weighed
from audits.record_scores.table import ScoredRecords
from audits.scores.table import Skip
from audits.split.bounds import place_of
from audits.split.drawn import DrawnSplit
from privctl.data.columns import USUAL
from privctl.domain.errors import CommandError, InputError
from privctl.domain.shown import counted
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Reasons to leave a record out that depend only on it and the model; the others also depend on records of other
#: groups.
_BY_ITSELF = (Skip.TOO_SHORT, Skip.NOT_FINITE)
#: Decimals kept relative to the largest score, so that scores that differ only by rounding are tied.
_DECIMALS = 9
#: The largest score of a record from which those of groups are computed, as differences are squared.
_LARGEST = 1e150


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroups:
    """Groups in place of records, each with the id of its first, and the number of ``records`` on each side.

    ``incomplete`` says why their scores may depend on the coins, or is empty.
    """

    scored: ScoredRecords
    grouping: Grouping
    records: Mapping[str, int]
    incomplete: str


def in_groups(read: ScoredRecords, split: DrawnSplit) -> ScoredGroups:
    """The groups of ``split``, a split of groups, that the records of ``read`` form.

    Raises InputError for records that are not in the split and scores that are too large, CommandError for columns with
    the name of a group's scores.
    """
    assert split.group_by is not None
    grouping = read_groups(split.group_by, split.members, split.nonmembers, USUAL)
    line = np.array([place_of(name, side, split)[1] for name, side in zip(read.ids, read.member.tolist(), strict=True)])
    index = grouping.numbers(read.member, line)
    first = np.unique(index, return_index=True)[1]
    scores: dict[str, NDArray[np.float64]] = {}
    for name, values in read.scores.items():
        if float(np.abs(values).max()) > _LARGEST:
            raise InputError(
                f"the column {shown(name)} has scores above {_LARGEST:g}, whose squares are no floats, so that those "
                "of groups cannot be computed; give their logarithms"
            )
        scores[name] = _rounded(weighed(values, index))
        if len(index) > len(first):
            if name + TOP in read.scores:
                raise CommandError(
                    f"the column {shown(name + TOP)} is named as the highest scores of a group in {shown(name)} are; "
                    "give it another name"
                )
            scores[name + TOP] = _rounded(highest(values, index))
    return ScoredGroups(
        scored=ScoredRecords(
            member=read.member[first], scores=scores, ids=[read.ids[i] for i in first], skipped=read.skipped
        ),
        grouping=grouping,
        records={"members": int(read.member.sum()), "nonmembers": int((~read.member).sum())},
        incomplete=_incomplete(read, split),
    )


def _incomplete(read: ScoredRecords, split: DrawnSplit) -> str:
    """Why the scores of groups may depend on the coins: records are missing for reasons that may involve others."""
    missing = split.manifest.members.records + split.manifest.nonmembers.records - len(read.ids)
    if missing <= sum(count for (_, skip), count in read.skipped.items() if skip in _BY_ITSELF):
        return ""
    return f"{counted(missing, 'record')} of the split's groups have no score, and which ones may depend on the coins"


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = float(np.abs(values).max())
    return np.round(values / largest, _DECIMALS) if largest > 0 else values
