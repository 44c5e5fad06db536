"""One score learned from several: the combination that best distinguishes members from non-members.

Ridge regression on the scores' normal ranks, cross-fitted (``cross_fit``), so that no record influences how it is
judged. Logistic regression would rank records nearly the same, but least squares is linear in the labels, so it can be
refitted to each relabelling of a joint test. That makes the test exact although this score, unlike its components,
depends on the labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from audits.statistics.cross_fit import cross_fitted, folds
from audits.statistics.fitted import NullLaw
from audits.statistics.laws import mean_ranks
from audits.statistics.max_t import rank_statistics
from audits.statistics.relabel import areas

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The ridge penalty, for features of unit variance.
RIDGE = 0.1
#: The scale of the mean of all scores relative to each of them.
FIRST = 5.0
DECIMALS = 9
#: The number of relabellings for the law of the AUC without a difference, and the most records of a side that they
#: take. The penalty grows with the records, so among more of them the law differs in its scale only.
RELABELLINGS, MOST_OF_A_SIDE = 1999, 1000
_APART = 1


@dataclass(frozen=True, kw_only=True)
class FusedScore:
    """The fusion of ``scores`` [records] by name, none of which may depend on the labels.

    ``digests`` identify the records and determine the folds; ``members`` is the number of members, ``rates`` the false
    positive rates that are tested, and ``seed`` a seed derived from the records.
    """

    scores: Mapping[str, NDArray[Any]]
    digests: Sequence[bytes]
    members: int
    rates: tuple[float, ...]
    seed: int

    def fitted(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """How member-like each record is according to the other folds, for each row of ``labels`` [rows, records].

        Rounded, so that records with equal scores remain tied and refitting reproduces the same order.
        """
        return np.round(cross_fitted(self._features, self.fold, labels, RIDGE), DECIMALS)

    def areas(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The AUC for each row of ``labels`` [rows, records], fitted to it."""
        return areas(self.fitted(labels), labels)

    def statistics(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """See ``max_t.Statistics``: the AUC and TPRs for each row of ``labels``, fitted to it.

        The AUC is centred and scaled by the mean and the deviation of ``law``.
        """
        fitted, law = self.fitted(labels), self.law
        rows = [
            rank_statistics(row, self.rates)(row_labels[None])[0]
            for row, row_labels in zip(fitted, labels, strict=True)
        ]
        stacked = np.stack(rows)
        stacked[:, 0] = (areas(fitted, labels) - law.center) / law.deviation if law.deviation > 0 else 0.0
        return stacked

    @cached_property
    def law(self) -> NullLaw:
        """The law of the AUC over relabellings, drawn of at most ``MOST_OF_A_SIDE`` records of a side.

        From another stream than the relabellings of the joint test: the mean and the deviation of some of its own would
        fit these better than the true labels. Drawn separately, they are constants to the test.
        """
        random = np.random.default_rng([self.seed, _APART])
        sides = self.members, len(self.digests) - self.members
        drawn = [min(size, MOST_OF_A_SIDE) for size in sides]
        some = np.sort(random.permutation(sum(sides))[: sum(drawn)])
        labels = random.permuted(np.tile(np.arange(len(some)) < drawn[0], (RELABELLINGS, 1)), axis=1)
        fitted = np.round(cross_fitted(self._features[some], self.fold[some], labels, RIDGE), DECIMALS)
        return NullLaw.of(areas(fitted, labels), 0.5, _spread(*sides) / _spread(*drawn))

    @cached_property
    def fold(self) -> NDArray[np.int64]:
        """The fold of each record [records]."""
        return folds(self.digests)

    @cached_property
    def _features(self) -> NDArray[np.float64]:
        """Normal ranks, which limit the influence of outliers, and their mean, which the ridge hardly shrinks.

        Every score is higher for members by design, so their mean is the best guess before anything is learned.
        """
        count = len(self.digests)
        ranks = [_unit(ndtri(mean_ranks(score) / (count + 1))) for score in self.scores.values()]
        return np.stack([FIRST * _unit(np.mean(ranks, axis=0)), *ranks], axis=1)


def _spread(members: int, others: int) -> float:
    """The standard deviation over relabellings of the AUC of a score that is not fitted, without ties."""
    return math.sqrt((members + others + 1) / (12 * members * others))


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return np.asarray((values - values.mean()) / spread if spread > 0 else np.zeros_like(values))
