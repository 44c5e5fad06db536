"""What the records of an audit tell without the model, and by how much an attack beats that, from what was kept.

The audit relabels the records, learns the blind baseline from each labelling, and keeps its AUCs. Labels are drawn
again here, with the seed that follows from the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from verify.audits.ranks.figures import Figures, auc_with_interval, share_below, won
from verify.audits.ranks.fitted import limits, moments, of_fitted
from verify.audits.ranks.limits import relabellings_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The arrays that an audit keeps, after their prefix.
PREFIX, AREAS, LENGTH, REFERENCE = "baseline.", "area", "length", "reference"
#: The methods that judge records by their length or by another model.
METHODS = {"length baseline": LENGTH, "reference control": REFERENCE}
_ROUNDING, _NEAR = 1e-9, 1e-6


@dataclass(frozen=True)
class KeptBaselines:
    """The blind baseline's ``areas`` under the true labels and each relabelling, and ranks [records] by other means.

    ``blind`` are its ranks [records] under the true labels. Labels can be drawn again only if ``same``: this numpy is
    the version of the audit.
    """

    member: NDArray[np.bool_]
    blind: NDArray[np.float64]
    areas: NDArray[np.float64]
    ranks: Mapping[str, NDArray[np.float64]]
    seed: int
    same: bool

    @property
    def is_whole(self) -> bool:
        """Whether there are as many areas as such an audit has relabellings, and ranks of all records."""
        whole = len(self.areas) == 1 + relabellings_of(len(self.member))
        return whole and all(len(ranks) == len(self.member) for ranks in self.ranks.values())

    def of_blind(self, alpha: float) -> Figures:
        """The blind baseline's AUC, its interval, and the p-value of its test if labels can be drawn again."""
        sides = self.blind[self.member], self.blind[~self.member]
        found = of_fitted(*sides, moments(self.areas[1:], 0.5), alpha, near=_NEAR)
        if not self.same:
            return found
        tests = [self.areas, *(np.abs(self._areas(ranks) - 0.5) for ranks in self.ranks.values())]
        largest = np.max([_unit(test) for test in tests], axis=0)
        p_value = float(np.mean(largest >= largest[0] - _ROUNDING))
        return replace(found, details={**found.details, "p_value": p_value})

    def of_ranks(self, name: str, alpha: float, called: str) -> Figures | None:
        """The AUC by length or by the reference model; None if its ranks were not kept."""
        if name not in self.ranks:
            return None
        ranks = self.ranks[name]
        return auc_with_interval(ranks[self.member], ranks[~self.member], alpha, called)

    def beyond(
        self,
        scores: NDArray[np.float64],
        alpha: float,
        refitted: Callable[[NDArray[np.bool_]], NDArray[np.float64]] | None = None,
    ) -> Figures:
        """By how much the AUC of ``scores`` [records] exceeds the blind baseline's; without interval if not ``same``.

        ``refitted`` gives the AUCs of a score that is fitted to labels [rows, records].
        """
        members, blind = (ranks[self.member] for ranks in (scores, self.blind))
        other, blind_other = (ranks[~self.member] for ranks in (scores, self.blind))
        value = won(members, other) - won(blind, blind_other)
        if not self.same:
            return Figures(estimate=value, samples=(len(members), len(other)))
        areas = self._areas(scores) if refitted is None else refitted(self._labels)
        paired = paired_deviation((members, other), (blind, blind_other))
        law = moments((areas - self.areas)[1:], 0.0)
        stderr = max(law["deviation"], paired)
        lower, upper = limits(value, law, stderr, alpha)
        return Figures(
            estimate=value,
            lower=lower,
            upper=upper,
            samples=(len(members), len(other)),
            details={**law, "stderr": stderr},
            near=_NEAR,
        )

    @cached_property
    def _labels(self) -> NDArray[np.bool_]:
        drawn = np.random.default_rng(self.seed)
        copies = np.tile(self.member, (len(self.areas) - 1, 1))
        return np.concatenate([self.member[None], drawn.permuted(copies, axis=1)])

    def _areas(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """The AUC of ``ranks`` [records] under each labelling."""
        from scipy.stats import rankdata  # imported here because the import takes longer than verifying other reports

        members = int(self.member.sum())
        sums = self._labels @ rankdata(ranks)
        return np.asarray((sums / members - (members + 1) / 2) / (len(self.member) - members))


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = float(values.std())
    return np.asarray((values - values.mean()) / spread if spread > 0 else np.zeros(len(values)))


def paired_deviation(first: Sequence[NDArray[np.float64]], second: Sequence[NDArray[np.float64]]) -> float:
    """The standard error of the difference of two AUCs of the same records (DeLong et al. 1988); 0 without one.

    Each score is given for both sides.
    """
    variance, scale = 0.0, 0.0
    for side in (0, 1):
        count = len(first[side])
        if count < 2:
            return 0.0
        one, two = (share_below(pair[side], pair[1 - side]) for pair in (first, second))
        variance += float((one - two).var(ddof=1)) / count
        scale += float(one.var(ddof=1) + two.var(ddof=1)) / count
    return math.sqrt(variance) if variance > 1e-12 * scale else 0.0
