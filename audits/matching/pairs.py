"""Members and non-members that cannot be told apart without a model, chosen from records that can.

Propensity matching (Rosenbaum and Rubin 1983): each member is paired with a non-member that looks as much like one by
its own features. What only these decide, such as which source a record is of, is then alike on both sides, while no
model has a part in the choice, so that a trace of training stays.

How member-like a record looks is learned from the half of the records that it is not in, and with an error. Pairs that
are equal in what was learned still differ in what it estimates: by the distance of the sides, times the share of error
in the variance within a side (Kelley 1927; Porter 1967 for comparisons of groups). So each side's values are shrunk to
their mean by that share before they are compared; and where it is large, nothing is matched. Without either, an attack
that knows the sources better than the learned looks finds in the pairs what no test of the looks can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.baseline import GUARD, blind_scores
from audits.membership.features import record_features
from audits.statistics.cross_fit import cross_fitted, folds
from audits.statistics.relabel import areas, data_seed, joint_p_value, relabellings
from privctl.data.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How far apart the two of a pair may look, in standard deviations within a side (Austin 2011: at most 0.2).
CALIPER = 0.1
#: The share of what is learned that has to be no error, for pairs to be made of it.
RELIABLE = 0.7
#: Fewer pairs show nothing, and no difference between them would be seen.
LEAST = 50
_HALVES, _RIDGE = 2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How well the records themselves tell members from non-members: the AUC, and the p-value of no difference."""

    auc: float
    p_value: float

    @property
    def alike(self) -> bool:
        """Whether an audit of them would find nothing to doubt."""
        return self.p_value > GUARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Places of the chosen ``members`` and ``nonmembers`` among the records, pair by pair.

    ``reliability`` is the lower one of both halves.
    """

    members: NDArray[np.int64]
    nonmembers: NDArray[np.int64]
    reliability: float

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of all chosen records, in order."""
        return np.sort(np.concatenate([self.members, self.nonmembers]))


def match(records: Sequence[Record], member: NDArray[np.bool_]) -> Pairs:
    """As many pairs of a member and a non-member that look alike as there are among ``records``; all within a half."""
    quarter = folds([record.digest for record in records], 2 * _HALVES)
    features = record_features(records)
    inside: list[NDArray[np.int64]] = []
    outside: list[NDArray[np.int64]] = []
    reliability = 1.0
    for number in range(_HALVES):
        own = np.flatnonzero(quarter % _HALVES == number)
        learned = [np.flatnonzero(quarter == each) for each in range(2 * _HALVES) if each % _HALVES != number]
        looks, found = _looks(features, own, learned, member)
        reliability = min(reliability, found)
        sides = own[member[own]], own[~member[own]]
        spread = float(_within(looks, member[own]).std())
        first, second = closest_pairs(looks[member[own]], looks[~member[own]], CALIPER * spread)
        inside.append(sides[0][first])
        outside.append(sides[1][second])
    return Pairs(members=np.concatenate(inside), nonmembers=np.concatenate(outside), reliability=reliability)


def _looks(
    features: Any, own: NDArray[np.int64], learned: Sequence[NDArray[np.int64]], member: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    """How member-like each of the records ``own`` looks, shrunk to the mean of its side, and how reliable that is.

    The reliability is what two estimates from a half of ``learned`` each have in common within a side, for all of it
    (Spearman 1910; Brown 1910).
    """
    side = member[own]
    whole, *parts = (_judged(features, own, rows, member) for rows in (np.concatenate(learned), *learned))
    first, second = (_within(part, side) for part in parts)
    spread = float(first.std() * second.std())
    common = float((first * second).mean()) / spread if spread > 0 else 0.0
    reliability = max(0.0, 2 * common / (1 + common)) if common > -1 else 0.0
    return whole - (1 - reliability) * _within(whole, side), reliability


def _judged(
    features: Any, own: NDArray[np.int64], learned: NDArray[np.int64], member: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """How member-like the records ``own`` are by what the records ``learned`` teach."""
    rows = np.concatenate([own, learned])
    fold = (np.arange(len(rows)) >= len(own)).astype(np.int64)
    return np.asarray(cross_fitted(features[rows], fold, member[rows][None], _RIDGE)[0, : len(own)])


def _within(values: NDArray[np.float64], side: NDArray[np.bool_]) -> NDArray[np.float64]:
    """``values`` less the mean of their side."""
    return np.asarray(values - np.where(side, values[side].mean(), values[~side].mean()))


def closest_pairs(
    members: NDArray[np.float64], others: NDArray[np.float64], reach: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of both sides of the most pairs whose values lie within ``reach``, each place in one pair at most.

    Both sides are gone through in order: a value that is too small for the other side's next is too small for all.
    """
    first, second = np.argsort(members, kind="stable"), np.argsort(others, kind="stable")
    pairs, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        gap = float(members[first[i]] - others[second[j]])
        if abs(gap) <= reach:
            pairs.append((int(first[i]), int(second[j])))
        i, j = i + (gap <= reach), j + (gap >= -reach)
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def compare(records: Sequence[Record], member: NDArray[np.bool_]) -> Likeness:
    """The test of a membership audit's blind baseline: what the records and their lengths tell of membership."""
    labels = relabellings(member, data_seed(record.digest for record in records))
    blind = areas(blind_scores(records, labels), labels)
    length = areas(np.array([len(record.text) for record in records]), labels)
    return Likeness(auc=float(blind[0]), p_value=joint_p_value([blind, np.abs(length - 0.5)]))
