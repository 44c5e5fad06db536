"""A lower bound on epsilon from many models, each trained with or without one record and scored once.

A claim of privacy limits every test between the two: calling a model "with" if its score exceeds some threshold has a
true positive rate (TPR) of at most T(F), where F is its false positive rate (FPR) and T the claim's trade-off curve.
For (epsilon, delta)-DP it is (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015)

    T(F) = min(1, e^epsilon F + delta, 1 - e^-epsilon (1 - F - delta)),

for mu-GDP it is T(F) = Phi(Phi^-1(F) + mu) (Dong, Roth and Su 2022). Models must be independent; records scored by one
model are not.

The rank test. Of n scores without the record, the (k+1)-th largest is the threshold, with k fixed by n alone. Then F,
the probability that a new model without the record scores higher, has the distribution Beta(k+1, n-k), whatever the
distribution of the scores. Given the threshold, the number of the m models with the record that score higher is
binomial, with a success rate of at most T(F). So under the claim that number is stochastically at most N with N | F ~
Bin(m, T(F)), and

    p = P[N >= seen] = E[ P[Bin(m, T(F)) >= seen] ] = P[G <= T(F)],  F ~ Beta(k+1, n-k), G ~ Beta(seen, m-seen+1)

is an exact p-value: no second binomial limit has to be paid for. By symmetry of T, the (k+1)-th smallest score with the
record and the number of those without it that are lower are also such a pair. ``rank_tests`` uses up to three ranks in
either direction, at shares of alpha that sum to 1 (Bonferroni).

Ties could be broken by coins that do not look at the record; then a binary score is judged like any other. But coins
from a seed can be redrawn until they please, and coins from a digest of the scores are fixed once the scores are. So no
coin is drawn. A test rejects if at least ``CERTAIN`` of all orders would reject at ``CERTAIN`` of its level. By
Markov's inequality that has at most the probability of the level, whatever the scores are. Without ties, it costs a
twentieth of the level.

Rejecting a curve rejects every curve below it. So all bounds here, on epsilon at any delta and on mu, hold jointly: if
one of them is wrong, the true curve itself was rejected.

Measured as the mean bound at alpha 0.05 and delta 1e-5, with n models per side, for scores that shift by one standard
deviation: 0.70 at n = 50, 1.49 at 500 and 2.18 at 5000. Thresholds at ranks and on a split, each with two binomial
limits, gave 0.17, 1.03 and 1.77.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.special import bdtrc, betainc, betaincinv, gammaln, ndtr, ndtri

from audits.statistics.search import largest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Array = NDArray[np.float64]

#: The largest epsilon and mu that are searched, and the precision.
LARGEST_EPSILON, LARGEST_MU, PRECISION = 64.0, 32.0, 1e-6
#: The largest argument of exp, approximately, that does not overflow.
_OVERFLOW = 700.0
#: The relative tolerance for rounding in sums of probabilities.
_SLOP = 1e-9
#: The fraction of the orders of ties that must reject, and the factor of a test's level that pays for it.
CERTAIN = 0.95
#: Ranks as fractions of an arm, and their shares of alpha in each direction. The rest goes to a rank in the tail, where
#: Gaussian noise shows its epsilon at a small delta; randomized response shows it in the middle with the least error.
_PARTS = ((0.03, 0.1), (0.25, 0.13))


class TradeOffCurve(Protocol):
    """A trade-off curve: the largest true positive rate that it permits, increasing in the false positive rate."""

    @property
    def corners(self) -> _Array:
        """The points (F, T(F)) at which it has kinks, [points, 2]."""

    def most(self, fpr: _Array) -> _Array:
        """T(F)."""

    def least(self, tpr: _Array) -> _Array:
        """The smallest F with T(F) >= ``tpr``; at most 0 if every F suffices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDp:
    """The curve of (``epsilon``, ``delta``)-DP."""

    epsilon: float
    delta: float

    @property
    def corners(self) -> _Array:
        """Both ends, and the point at which its two lines meet."""
        meeting = (1 - self.delta) / (1 + math.exp(min(self.epsilon, _OVERFLOW)))
        return np.array([[0.0, self.delta], [meeting, 1 - meeting], [1 - self.delta, 1.0]])

    def most(self, fpr: _Array) -> _Array:
        """T(F)."""
        forward = math.exp(min(self.epsilon, _OVERFLOW)) * fpr + self.delta
        backward = 1 - math.exp(-self.epsilon) * np.maximum(1 - fpr - self.delta, 0.0)
        return np.minimum(1.0, np.minimum(forward, backward))

    def least(self, tpr: _Array) -> _Array:
        """T's inverse: the larger of its two lines' inverses."""
        forward = math.exp(-self.epsilon) * (tpr - self.delta)
        backward = 1 - self.delta - math.exp(min(self.epsilon, _OVERFLOW)) * (1 - tpr)
        return np.maximum(forward, backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianDp:
    """The curve of ``mu``-GDP: two normal distributions whose means are ``mu`` standard deviations apart."""

    mu: float

    @property
    def corners(self) -> _Array:
        """Empty: it is smooth."""
        return np.zeros((0, 2))

    def most(self, fpr: _Array) -> _Array:
        """T(F)."""
        return np.asarray(ndtr(ndtri(fpr) + self.mu))

    def least(self, tpr: _Array) -> _Array:
        """T's inverse."""
        return np.asarray(ndtr(ndtri(tpr) - self.mu))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTest:
    """A threshold at a rank fixed beforehand, and how many models of the other arm lie beyond it.

    ``rank`` of the ``ranked`` models of one arm lie beyond the threshold, and ``beyond`` of the ``counted`` of the
    other. If ``from_without``, the arm without the record set the threshold, and beyond means higher; otherwise the arm
    with the record did, and it means lower. ``share`` is the test's share of alpha.
    """

    threshold: float
    rank: int
    ranked: int
    beyond: int
    counted: int
    from_without: bool
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoArmBound:
    """``value`` is a lower bound that holds with the confidence asked for; ``test`` is the test that gives it."""

    value: float
    test: RankTest


def ranks(models: int) -> tuple[tuple[int, float], ...]:
    """The ranks tested in an arm of ``models`` models, each with its share of alpha: 4, 15 and 125 for 500.

    Their shares sum to 1/2, as there are two arms.
    """
    tail = min(models - 1, max(1, round(math.sqrt(models) / 6)))
    others = [(int(part * models), share) for part, share in _PARTS if int(part * models) > 2 * tail]
    return ((tail, 0.5 - sum(share for _, share in others)), *others)


def rank_tests(with_scores: NDArray[Any], without_scores: NDArray[Any]) -> tuple[RankTest, ...]:
    """The rank tests on one score per model; higher scores are more like a model trained with the record.

    Each arm needs 2 scores. Raises ValueError for fewer, and for NaN.
    """
    for name, scores in (("with", with_scores), ("without", without_scores)):
        if len(scores) < 2:
            raise ValueError(f"there are {len(scores)} scores {name} the record; at least 2 are needed")
        if np.isnan(scores).any():
            raise ValueError(f"scores {name} the record hold NaN; every model needs a score")
    inner, outer = (np.sort(np.asarray(scores, np.float64)) for scores in (with_scores, without_scores))
    tests = (*_tests(inner, outer, from_without=True), *_tests(-outer[::-1], -inner[::-1], from_without=False))
    return tuple(tests)


def _tests(counted: _Array, ranked: _Array, *, from_without: bool) -> Iterator[RankTest]:
    """The tests of thresholds among ``ranked``; both are sorted, and beyond means higher."""
    for rank, share in ranks(len(ranked)):
        threshold = ranked[len(ranked) - 1 - rank]
        yield RankTest(
            threshold=float(threshold if from_without else -threshold) + 0.0,  # 0.0 and -0.0 are equal
            rank=rank,
            ranked=len(ranked),
            beyond=_count_beyond(counted, ranked, rank, threshold),
            counted=len(counted),
            from_without=from_without,
            share=CERTAIN * share,
        )


def _count_beyond(counted: _Array, ranked: _Array, rank: int, threshold: float) -> int:
    """How many of ``counted`` lie beyond the threshold in at least ``CERTAIN`` of the orders of ties.

    Of the scores equal to the threshold, the number of ``counted`` ones that precede a given one of ``ranked`` is
    negative hypergeometric.
    """
    below, up_to = (np.searchsorted(counted, threshold, side) for side in ("left", "right"))
    surely, equal = len(counted) - int(up_to), int(up_to - below)
    if not equal:
        return surely
    first, last = (int(np.searchsorted(ranked, threshold, side)) for side in ("left", "right"))
    before = rank - (len(ranked) - last)  # ranked ones of this score that are beyond the threshold
    after = last - first - before - 1
    counts = np.arange(equal + 1)
    ways = _log_choose(before, counts) + _log_choose(after, equal - counts)
    at_least = np.cumsum(np.exp(ways - _log_choose(last - first, np.array(equal)))[::-1])[::-1]
    return surely + int(np.flatnonzero(at_least >= CERTAIN * (1 - _SLOP)).max(initial=0))


def _log_choose(others: int, some: NDArray[np.int64]) -> _Array:
    """The log of the number of ways to interleave ``some`` with ``others``."""
    return np.asarray(gammaln(others + some + 1) - gammaln(others + 1) - gammaln(some + 1))


def p_value(test: RankTest, curve: TradeOffCurve, seen: int | None = None) -> float:
    """The largest probability, if ``curve`` holds, that as many models lie beyond the threshold as did (or ``seen``).

    It is attained by the mechanism with this trade-off curve. Quadrature over the quantiles of F or of G, whichever
    varies less, so that the integrand is smooth: the relative error is within 1e-6 for p-values from 1e-9 on, and
    within a hundredth below 1e-12.
    """
    seen = test.beyond if seen is None else seen
    k, n, m = test.rank, test.ranked, test.counted
    if seen <= 0:
        return 1.0
    if seen > m:
        return 0.0
    if 1 / (k + 1) + 1 / (n - k) < 1 / seen + 1 / (m - seen + 1):  # of log-odds
        rates, weights = _quadrature(k + 1, n - k, curve.corners[:, 0])
        return float(weights @ bdtrc(seen - 1, m, curve.most(rates)))
    rates, weights = _quadrature(seen, m - seen + 1, curve.corners[:, 1])
    fpr = np.clip(curve.least(rates), 0.0, 1.0)
    return float(weights @ betainc(n - k, k + 1, 1 - fpr))


def claim_p_value(tests: Sequence[RankTest], curve: TradeOffCurve) -> float:
    """The p-value of the claim that ``curve`` holds: the smallest of the tests', each divided by its share of alpha."""
    return min(1.0, *(p_value(test, curve) / test.share for test in tests))


def epsilon_bound(tests: Sequence[RankTest], delta: float, alpha: float = 0.05) -> TwoArmBound:
    """The lower bound on epsilon at ``delta``; 0 if even epsilon 0 is not rejected.

    Raises ValueError for a delta outside [0, 1).
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1")
    return _largest_rejected(tests, partial(_dp, delta), LARGEST_EPSILON, alpha)


def mu_bound(tests: Sequence[RankTest], alpha: float = 0.05) -> TwoArmBound:
    """The lower bound on mu: no mechanism that is mu-GDP with a smaller mu is compatible with the scores."""
    return _largest_rejected(tests, _gdp, LARGEST_MU, alpha)


def _largest_rejected(tests: Sequence[RankTest], curve_at: Any, most: float, alpha: float) -> TwoArmBound:
    """The largest parameter whose curve any of ``tests`` rejects at its share of ``alpha``, and the first such test.

    A test that does not reject the best bound so far has none above it, and is not searched.
    """
    if sum(test.share for test in tests) > 1 + 1e-9:
        raise ValueError("the tests' shares of alpha exceed 1 together")
    value, best = 0.0, tests[0]
    for test in tests:

        def rejected(parameter: float, test: RankTest = test) -> bool:
            return p_value(test, curve_at(parameter)) <= alpha * test.share

        if rejected(value) and (found := largest(rejected, 0.0, most, PRECISION)) > value:
            value, best = found, test
    return TwoArmBound(value=value, test=best)


def _dp(delta: float, epsilon: float) -> TradeOffCurve:
    return ApproximateDp(epsilon=epsilon, delta=delta)


def _gdp(mu: float) -> TradeOffCurve:
    return GaussianDp(mu=mu)


def _panels() -> _Array:
    tail = 10.0 ** np.arange(-12, 0, 1.0)
    half = np.concatenate([[0.0], tail, [0.2, 0.35]])
    return np.concatenate([half, [0.5], 1 - half[::-1]])


#: Offsets of panel edges from a kink, on the scale of its log-odds.
_BESIDE = np.array([0.0, *(sign * 10.0**-k for k in range(1, 6) for sign in (-1, 1))])
_PANELS, _LEGENDRE = _panels(), np.polynomial.legendre.leggauss(16)


def _quadrature(first: int, second: int, bends: _Array) -> tuple[_Array, _Array]:
    """Nodes and weights for the distribution Beta(``first``, ``second``); the integrand has kinks at ``bends``.

    Gauss-Legendre quadrature on panels of its quantiles, finer towards both ends and towards the kinks, beside which a
    tail for many models changes abruptly.
    """
    inside = bends[(bends > 0) & (bends < 1)]
    beside = inside[:, None] + (inside * (1 - inside))[:, None] * _BESIDE
    edges = np.union1d(_PANELS, np.clip(betainc(first, second, np.clip(beside, 0.0, 1.0)), 0.0, 1.0))
    nodes, reach = _nodes(edges)
    panel = np.searchsorted(_PANELS[:-2], edges[:-1])
    whole = (_PANELS[panel] == edges[:-1]) & (_PANELS[panel + 1] == edges[1:])
    values = np.empty_like(nodes)
    values[whole] = _values_on_panels(first, second)[panel[whole]]
    values[~whole] = betaincinv(first, second, nodes[~whole])
    return values.ravel(), (reach[:, None] * _LEGENDRE[1]).ravel()


def _nodes(edges: _Array) -> tuple[_Array, _Array]:
    """The rule's nodes on each panel between ``edges``, and half of each panel's length."""
    middle, reach = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    return middle[:, None] + reach[:, None] * _LEGENDRE[0], reach


@lru_cache(maxsize=256)
def _values_on_panels(first: int, second: int) -> _Array:
    """The quantiles at the nodes of the standard panels, cached because most of a bound's work is here."""
    return betaincinv(first, second, _nodes(_PANELS)[0])
