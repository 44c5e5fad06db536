"""Recomputes an audit's fused score and its joint test from the ranks and the seed it kept.

The fused score is a ridge regression of the labels on the normal scores of all other attacks and on five times their
mean; each of ten folds is scored by the fit to the others. The audit solves the normal equations, while this module
uses singular values. The joint test (Westfall and Young 1993, single step) permutes the labels with numpy's generator
under the seed. Attacks without kept ranks took part in that test too. Without them, the recomputed p-values and
critical value can only be too small, so only smaller stated ones are refuted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from privctl.domain.evidence import JointTest
from verify.audits.ranks.fitted import moments
from verify.audits.ranks.limits import OF_FUSED
from verify.audits.terms import RATES
from verify.laws.common import normal_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

FUSED = "fused"
_RIDGE, _FIRST, _DECIMALS = 0.1, 5.0, 9
#: The number of relabellings of the joint test, the most labels in total, and the most at a time.
_TESTS, _MOST_TESTS, _PIECE = 999, 50_000_000, 2_000_000
#: The most records of a side from which the fused score's own law is drawn.
_OF_A_SIDE = 1000
#: Appended to the seed for the fused score's own relabellings, to make them independent of the joint test's.
_STREAM = 1
#: Limits to which statistics are clipped.
_LOW, _HIGH = -8.0, 40.0
_ROUNDING, _NEAR = 1e-9, 1e-6
#: The number of relabellings that may be counted differently because of rounding.
_COUNTS = 2.5
#: With another numpy, p-values may differ by this many of their standard deviations.
_DEVIATIONS = 4.0
#: An attack of which no ranks are kept, and the probability that an honest audit is refuted because of it.
_MIDPOINT, _UNLIKELY = "midpoint", 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The ``p_values`` of the joint test by attack, and its ``critical`` value.

    ``observed`` is the statistic of each attack, ``largest`` [labellings] the largest statistic under each.
    """

    p_values: Mapping[str, float]
    critical: float
    observed: Mapping[str, float]
    largest: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Relabelled:
    """The inputs of an audit's relabelled tests: ``scores`` [records] by attack, independent of ``member`` [records].

    ``fold`` [records] and ``seed`` are derived from the records, and ``fused`` [records] holds the ranks of the fused
    score, if any. ``alone`` is whether only the fused score was tested.
    """

    scores: Mapping[str, NDArray[np.float64]]
    member: NDArray[np.bool_]
    fold: NDArray[np.uint8]
    seed: int
    fused: NDArray[np.float64] | None
    alone: bool = False

    def fused_fault(self) -> str:
        """What is wrong with the ranks of the fused score, apart from rounding; "" if nothing is."""
        if self.fused is None:
            return ""
        fitted = self._fitted(self.member[None])[0]
        near = 2 * 10.0**-_DECIMALS
        order = np.lexsort((fitted, self.fused))
        ranks, ordered = self.fused[order], fitted[order]
        higher = np.diff(ranks) > 0
        wrong = np.where(higher, np.diff(ordered) < -near, np.diff(ordered) > near)
        if not wrong.any():
            return ""
        return f"its ranks are not what the other scores give, learned again: {int(wrong.sum())} of them differ"

    @cached_property
    def own(self) -> Mapping[str, float]:
        """The moments of the fused score's AUC over its own relabellings, of a part of the records if they are many."""
        random, sides = np.random.default_rng([self.seed, _STREAM]), (int(self.member.sum()), int((~self.member).sum()))
        m, n = (min(size, _OF_A_SIDE) for size in sides)
        drawn = np.sort(random.permutation(sum(sides))[: m + n])
        labels = random.permuted(np.tile(np.arange(m + n) < m, (OF_FUSED, 1)), axis=1)
        areas = _areas(_scores(_learned(self._features[drawn], self.fold[drawn]), self.fold[drawn], labels), labels)
        larger = (sum(sides) + 1) * m * n / ((m + n + 1) * sides[0] * sides[1])
        return moments(areas, 0.5, math.sqrt(larger))

    def refitted_areas(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The AUC of the fused score under each row of ``labels`` [rows, records], learned from it."""
        return _areas(self._fitted(labels), labels)

    def joint_test(self, level: float) -> Tested:
        """The joint test of all scores here, at ``level``."""
        if level not in self._done:
            self._done[level] = self._tested(level)
        return self._done[level]

    @cached_property
    def _done(self) -> dict[float, Tested]:
        return {}

    def _tested(self, level: float) -> Tested:
        count = self.relabellings(level)
        parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in self.scores if not self.alone}
        if self.fused is not None:
            parts[FUSED] = []
        for labels in self._labels(count):
            for name, blocks in parts.items():
                statistics = self._fused_statistics(labels) if name == FUSED else _statistics(self.scores[name], labels)
                blocks.append(np.maximum(statistics.max(axis=1), _LOW))
        largest = {name: np.concatenate(found) for name, found in parts.items()}
        whole = np.max(list(largest.values()), axis=0)
        allowed = math.floor(level * len(whole) + _ROUNDING)
        return Tested(
            p_values={name: float((whole >= found[0] - _ROUNDING).mean()) for name, found in largest.items()},
            critical=float(np.sort(whole[1:])[-allowed]) if allowed else math.inf,
            observed={name: float(found[0]) for name, found in largest.items()},
            largest=whole,
        )

    def relabellings(self, level: float) -> int:
        """The number of relabellings at ``level`` for this number of records."""
        return max(math.ceil(1 / level), min(_TESTS, _MOST_TESTS // len(self.member)))

    def _labels(self, count: int) -> Iterator[NDArray[np.bool_]]:
        """Yields the true labels, then permuted ones, in pieces [rows, records]."""
        random, size = np.random.default_rng(self.seed), len(self.member)
        yield self.member[None]
        for start in range(0, count, max(1, _PIECE // size)):
            rows = min(max(1, _PIECE // size), count - start)
            yield random.permuted(np.tile(self.member, (rows, 1)), axis=1)

    def _fused_statistics(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        center, deviation = self.own["center"], self.own["deviation"]
        fitted = self._fitted(labels)
        statistics = _statistics(fitted, labels)
        statistics[:, 0] = (_areas(fitted, labels) - center) / deviation if deviation > 0 else 0.0
        return statistics[:, :1] if self.alone else statistics  # alone, it is tested by its AUC

    @cached_property
    def _features(self) -> NDArray[np.float64]:
        count = len(self.member)
        columns = [_unit(ndtri(_ranks(ranks) / (count + 1))) for ranks in self.scores.values()]
        return np.stack([*columns, _FIRST * _unit(np.mean(columns, axis=0))], axis=1)

    @cached_property
    def _of_others(self) -> Mapping[int, NDArray[np.float64]]:
        return _learned(self._features, self.fold)

    def _fitted(self, labels: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The fused score [rows, records] under each row of ``labels`` [rows, records]."""
        return _scores(self._of_others, self.fold, labels)


def test_faults(
    test: JointTest, name: str, tested: Tested, relabelled: Relabelled, same: bool, others: Collection[str]
) -> Iterator[str]:
    """Yields one sentence per fault in the joint test that an audit states for the attack ``name``.

    ``same`` is whether this numpy is the version the audit used, and ``others`` are attacks that it compared too, but
    that the ranks do not give.
    """
    count = relabelled.relabellings(test.level)
    if test.relabellings != count:
        yield f"its joint test has {test.relabellings} relabellings, where such records have {count}"
        return
    value, whole = tested.p_values[name], test.compared == len(tested.p_values)
    near = _COUNTS / (count + 1)
    if not same:
        near = max(near, _DEVIATIONS * math.sqrt(value * (1 - value) / count))
    more = 0.0 if whole else midpoint_reaches(tested.observed[name], relabelled.member, count, others)
    if test.p_value < value - near or test.p_value > value + more + near:
        least = "" if whole else "at least " if test.p_value < value else f"at most {value + more:.4g}, about "
        yield f"its p-value is {test.p_value:.4g}, but relabelling the ranks gives {least}{value:.4g}"
    critical = math.inf if test.critical is None else test.critical
    low = same and critical < tested.critical - _NEAR
    if low or (same and critical > tested.critical + _NEAR and not _may_be(critical, test, tested, relabelled, others)):
        least = "" if whole else "at least " if low else "about "
        yield f"the critical value is {critical:.6g}, but relabelling the ranks gives {least}{tested.critical:.6g}"


def joined_p_value(
    relabelled: Relabelled, test: JointTest, statistic: float, others: Collection[str]
) -> tuple[float, float]:
    """The least and the largest p-value that a ``statistic`` has in the joint test ``test``.

    It is that of an attack among ``others``, whose scores under relabelling the ranks do not give.
    """
    tested = relabelled.joint_test(test.level)
    count = len(tested.largest) - 1
    value = (1 + int((tested.largest[1:] >= statistic - _ROUNDING).sum())) / (count + 1)
    near = _COUNTS / (count + 1)
    return value - near, value + midpoint_reaches(statistic, relabelled.member, count, others) + near


def _may_be(critical: float, test: JointTest, tested: Tested, relabelled: Relabelled, others: Collection[str]) -> bool:
    """Whether a critical value above that of the ranks may be that of all attacks, of which ``others`` are not here."""
    if test.compared == len(tested.p_values):
        return False
    beyond = float((tested.largest[1:] >= critical - _NEAR).mean())
    more = midpoint_reaches(critical, relabelled.member, len(tested.largest) - 1, others)
    return beyond + more >= test.level - _COUNTS / len(tested.largest)


def midpoint_reaches(value: float, member: NDArray[np.bool_], relabellings: int, others: Collection[str]) -> float:
    """The largest share of ``relabellings`` in which the attack ``midpoint`` may reach ``value``.

    It is 1 if ``others`` are other attacks. No ranks of ``midpoint`` are kept. Its threshold is set on one half of
    either side, and the other half is judged. Given the threshold and the records judged, every choice of members among
    these is equally likely, so the number of members above the threshold is hypergeometric; the worst number of records
    above it is taken. ``member`` [records] are the sides; 30 members of 60 judged reach 3 with a probability of at most
    0.0028.
    """
    from scipy.stats import binom  # imported here because the import takes longer than verifying other reports

    if set(others) != {_MIDPOINT} or not value > 0:
        return 1.0
    inside = int(member.sum())
    members, rest = inside - inside // 2, len(member) - inside - (len(member) - inside) // 2
    return float(binom.ppf(1 - _UNLIKELY, relabellings, _midpoint_tail(members, rest, round(value, 6))) / relabellings)


@lru_cache(maxsize=64)
def _midpoint_tail(members: int, others: int, value: float) -> float:
    """The largest probability that the statistic reaches ``value``, over all numbers of records above the threshold."""
    from scipy.stats import hypergeom

    count = members + others
    above = np.arange(1, count)
    share = above / count
    # hits / members - (above - hits) / others >= value * deviation, solved for the number of hits.
    deviation = np.sqrt(share * (1 - share) * (1 / members + 1 / others))
    least = np.ceil((value * deviation + above / others) / (1 / members + 1 / others) - 1e-6)
    return float(np.max(hypergeom.sf(least - 1, count, above, members), initial=0.0))


def _statistics(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The standardized AUC and the normal quantile of each rate's count under relabelling, [rows, statistics].

    ``scores`` are [records], or [rows, records].
    """
    ranks = _ranks(scores, axis=-1)
    m, n = int(labels[0].sum()), int((~labels[0]).sum())
    tied = np.apply_along_axis(_tied, -1, ranks)
    spread = np.sqrt(np.maximum(0.0, m * n * (m + n + 1 - tied) / 12))
    above = np.where(labels, ranks, 0.0).sum(axis=1) - m * (m + n + 1) / 2
    statistics = [np.where(spread > _ROUNDING, above / np.maximum(spread, _ROUNDING), 0.0)]
    others = np.where(labels, -np.inf, ranks)
    for rate in RATES:
        allowed = math.floor(rate * n + _ROUNDING)
        if allowed:
            least = np.partition(others, m + n - 1 - allowed, axis=1)[:, m + n - 1 - allowed]
            statistics.append(_normal_of_hits(m, n, allowed)[(labels & (ranks > least[:, None])).sum(axis=1)])
    return np.stack(statistics, axis=1)


def _learned(features: NDArray[np.float64], fold: NDArray[np.uint8]) -> dict[int, NDArray[np.float64]]:
    """For each fold, the matrix [others, judged] that maps centered labels of the other folds to its scores."""
    learned = {}
    for number in np.unique(fold).tolist():
        judged = fold == number
        left, values, right = np.linalg.svd(features[~judged], full_matrices=False)
        shrunk = values / (values**2 + _RIDGE * int((~judged).sum()))
        learned[number] = (left * shrunk) @ (right @ features[judged].T)
    return learned


def _scores(
    learned: Mapping[int, NDArray[np.float64]], fold: NDArray[np.uint8], labels: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The fused score [rows, records] under each row of ``labels`` [rows, records]."""
    fitted = np.zeros(labels.shape)
    for number, product in learned.items():
        judged = fold == number
        targets = labels[:, ~judged].astype(np.float64)
        fitted[:, judged] = (targets - targets.mean(axis=1, keepdims=True)) @ product
    return np.round(fitted, _DECIMALS)


def _ranks(scores: NDArray[np.float64], axis: int | None = None) -> NDArray[np.float64]:
    """Ranks from 1, with the mean rank for ties."""
    from scipy.stats import rankdata  # imported here because the import takes longer than verifying other reports

    return np.asarray(rankdata(scores, axis=axis))


def _tied(ranks: NDArray[np.float64]) -> float:
    """The correction for ties in the variance of a rank sum."""
    ties = np.unique(ranks, return_counts=True)[1].astype(np.float64)
    return float((ties**3 - ties).sum()) / (len(ranks) * (len(ranks) - 1))


@lru_cache(maxsize=64)
def _normal_of_hits(members: int, others: int, allowed: int) -> NDArray[np.float64]:
    from scipy.stats import betabinom

    law = betabinom.pmf(np.arange(members + 1), members, allowed + 1, others - allowed)
    tail = np.minimum(np.cumsum(law[::-1])[::-1], 1.0)  # survival function; scipy's sf sums again for each argument
    return np.asarray(np.clip(normal_quantile(tail), _LOW, _HIGH))


def _areas(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The AUC of each row of ``scores`` under the same row of ``labels``, both [rows, records]."""
    m, n = int(labels[0].sum()), int((~labels[0]).sum())
    sums = np.where(labels, _ranks(scores, axis=1), 0.0).sum(axis=1)
    return np.asarray((sums - m * (m + 1) / 2) / (m * n))


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return np.asarray((values - values.mean()) / spread if spread > 0 else np.zeros_like(values))
