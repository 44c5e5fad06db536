"""A lower bound on epsilon from many models, each trained with or without one record and scored once.

A claim of privacy limits every test between the two: calling a model "with" wherever its score exceeds some threshold
is right at a rate (TPR) of at most T(F), where F is the rate at which it is wrong (FPR). T is the claim's trade-off
curve. Of (epsilon, delta)-DP it is (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015)

    T(F) = min(1, e^epsilon F + delta, 1 - e^-epsilon (1 - F - delta)),

of mu-GDP it is T(F) = Phi(Phi^-1(F) + mu) (Dong, Roth and Su 2022). Models must be independent: records scored by one
model are not.

The rank test. Of n scores without the record, the (k+1)-th largest is the threshold, with k fixed by n alone. Then F,
the rate at which a new model without the record scores higher, has the distribution Beta(k+1, n-k), whatever that of
the scores is. Given the threshold, the number of the m models with the record that score higher is binomial, with a
success rate of at most T(F). So under the claim that number is stochastically at most N with N | F ~ Bin(m, T(F)), and

    p = P[N >= seen] = E[ P[Bin(m, T(F)) >= seen] ] = P[G <= T(F)],  F ~ Beta(k+1, n-k), G ~ Beta(seen, m-seen+1)

is an exact p-value: no binomial limit is paid for twice. By symmetry of T, the (k+1)-th smallest score with the record
and the number of those without it that are lower are such a pair too. ``rank_tests`` looks at up to three ranks in
either direction, at shares of alpha that add up to 1 (Bonferroni).

Equal scores could be put in an order by coins, which do not look at the record; then a binary score is judged as any
other. But coins from a seed can be drawn again until they please, and coins from a digest of the scores are fixed where
the scores are. So no coin is drawn. A test rejects where at least ``CERTAIN`` of all orders would reject at ``CERTAIN``
of its level. By Markov's inequality that has a chance of at most the level, whatever the scores are. Where no scores
are equal, it costs a twentieth of the level.

Rejecting a curve rejects every curve below it. So all bounds here, on epsilon at any delta and on mu, hold together: if
one of them is wrong, the true curve itself was rejected.

Measured as the mean bound at alpha 0.05 and delta 1e-5, with n models a side, for scores that shift by one standard
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

#: The largest epsilon and mu that are looked for, and how precisely.
LARGEST_EPSILON, LARGEST_MU, PRECISION = 64.0, 32.0, 1e-6
#: Floats have no exponential of more than about this.
_OVERFLOW = 700.0
#: Relative rounding of sums of probabilities.
_SLOP = 1e-9
#: The share of the orders of equal scores that have to reject, and the factor of a test's level that pays for it.
CERTAIN = 0.95
#: Ranks as parts of an arm, and their shares of alpha in each direction. The rest goes to a rank in the tail, where
#: Gaussian noise shows its epsilon at a small delta; randomized response shows it in the middle with the least error.
_PARTS = ((0.03, 0.1), (0.25, 0.13))


class TradeOffCurve(Protocol):
    """A trade-off curve: the largest true positive rate that it allows, rising with the false positive rate."""

    @property
    def corners(self) -> _Array:
        """The points (F, T(F)) at which it bends, [points, 2]."""

    def most(self, fpr: _Array) -> _Array:
        """T(F)."""

    def least(self, tpr: _Array) -> _Array:
        """The smallest F whose T(F) reaches ``tpr``; at most 0 where any does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDp:
    """The curve of (``epsilon``, ``delta``)-DP."""

    epsilon: float
    delta: float

    @property
    def corners(self) -> _Array:
        """Both ends, and where its two lines meet."""
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
    """The curve of ``mu``-GDP: two normal distributions, ``mu`` standard deviations apart."""

    mu: float

    @property
    def corners(self) -> _Array:
        """None: it is smooth."""
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
    other. ``from_without`` says that the arm without the record set the threshold, and that beyond means higher;
    otherwise the arm with the record did, and it means lower. ``share`` is the test's share of alpha.
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
    """``value`` is a lower bound that holds with probability 1 - ``alpha``; ``test`` is the one that gives it."""

    value: float
    alpha: float
    test: RankTest


def ranks(models: int) -> tuple[tuple[int, float], ...]:
    """The ranks that are tested in an arm of so many models, each with its share of alpha: 4, 15 and 125 for 500.

    Their shares add up to 1/2, as there are two arms.
    """
    tail = min(models - 1, max(1, round(math.sqrt(models) / 6)))
    others = [(int(part * models), share) for part, share in _PARTS if int(part * models) > 2 * tail]
    return ((tail, 0.5 - sum(share for _, share in others)), *others)


def rank_tests(with_scores: NDArray[Any], without_scores: NDArray[Any]) -> tuple[RankTest, ...]:
    """The rank tests on one score a model; a higher score is more like a model trained with the record.

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
    """The tests of thresholds among ``ranked``; both are sorted, and higher is beyond."""
    for rank, share in ranks(len(ranked)):
        threshold = ranked[len(ranked) - 1 - rank]
        yield RankTest(
            threshold=float(threshold if from_without else -threshold) + 0.0,  # 0.0 and -0.0 are equal
            rank=rank,
            ranked=len(ranked),
            beyond=_beyond(counted, ranked, rank, threshold),
            counted=len(counted),
            from_without=from_without,
            share=CERTAIN * share,
        )


def _beyond(counted: _Array, ranked: _Array, rank: int, threshold: float) -> int:
    """How many of ``counted`` lie beyond the threshold in at least ``CERTAIN`` of the orders of equal scores.

    Of the scores equal to the threshold, those of ``counted`` that come before a given one of ``ranked`` are as many as
    a negative hypergeometric variable.
    """
    below, up_to = (np.searchsorted(counted, threshold, side) for side in ("left", "right"))
    surely, equal = len(counted) - int(up_to), int(up_to - below)
    if not equal:
        return surely
    first, last = (int(np.searchsorted(ranked, threshold, side)) for side in ("left", "right"))
    before = rank - (len(ranked) - last)  # ranked ones of this score that are beyond the threshold
    after = last - first - before - 1
    found = np.arange(equal + 1)
    ways = _log_choose(before, found) + _log_choose(after, equal - found)
    at_least = np.cumsum(np.exp(ways - _log_choose(last - first, np.array(equal)))[::-1])[::-1]
    return surely + int(np.flatnonzero(at_least >= CERTAIN * (1 - _SLOP)).max(initial=0))


def _log_choose(others: int, some: NDArray[np.int64]) -> _Array:
    """Of the logarithms of the ways to mix ``some`` among ``others``."""
    return np.asarray(gammaln(others + some + 1) - gammaln(others + 1) - gammaln(some + 1))


def p_value(test: RankTest, curve: TradeOffCurve, seen: int | None = None) -> float:
    """The chance that at least as many models lie beyond the threshold as did (or as ``seen``), if ``curve`` holds.

    At most; it is reached by the mechanism whose trade-off curve this is. Quadrature over the quantiles of F or of G,
    whichever varies less, so that what is integrated is smooth: within 1e-6 of the value, relatively, of p-values from
    1e-9 on; below 1e-12 within a hundredth.
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
    """The p-value of the claim that ``curve`` holds: the least of the tests', each divided by its share of alpha."""
    return min(1.0, *(p_value(test, curve) / test.share for test in tests))


def epsilon_bound(tests: Sequence[RankTest], delta: float, alpha: float = 0.05) -> TwoArmBound:
    """The lower bound on epsilon at ``delta``; 0 where even epsilon 0 is not rejected."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1")
    return _best(tests, [_bound(test, partial(_dp, delta), LARGEST_EPSILON, alpha) for test in tests], alpha)


def mu_bound(tests: Sequence[RankTest], alpha: float = 0.05) -> TwoArmBound:
    """The lower bound on mu: no mechanism that is mu-GDP with a smaller mu fits the scores."""
    return _best(tests, [_bound(test, _gdp, LARGEST_MU, alpha) for test in tests], alpha)


def _best(tests: Sequence[RankTest], bounds: Sequence[float], alpha: float) -> TwoArmBound:
    if sum(test.share for test in tests) > 1 + 1e-9:
        raise ValueError("the tests' shares of alpha exceed 1 together")
    best = int(np.argmax(bounds))
    return TwoArmBound(value=bounds[best], alpha=alpha, test=tests[best])


def _bound(test: RankTest, curve_at: Any, most: float, alpha: float) -> float:
    """The largest parameter whose curve is rejected at the test's share of ``alpha``."""

    def rejected(parameter: float) -> bool:
        return p_value(test, curve_at(parameter)) <= alpha * test.share

    return largest(rejected, 0.0, most, PRECISION) if rejected(0.0) else 0.0


def _dp(delta: float, epsilon: float) -> TradeOffCurve:
    return ApproximateDp(epsilon=epsilon, delta=delta)


def _gdp(mu: float) -> TradeOffCurve:
    return GaussianDp(mu=mu)


def _panels() -> _Array:
    tail = 10.0 ** np.arange(-12, 0, 1.0)
    half = np.concatenate([[0.0], tail, [0.2, 0.35]])
    return np.concatenate([half, [0.5], 1 - half[::-1]])


#: Edges of panels beside a bend, where log-odds differ by as much.
_BESIDE = np.array([0.0, *(sign * 10.0**-k for k in range(1, 6) for sign in (-1, 1))])
_PANELS, _LEGENDRE = _panels(), np.polynomial.legendre.leggauss(16)


def _quadrature(first: int, second: int, bends: _Array) -> tuple[_Array, _Array]:
    """Values that the law Beta(``first``, ``second``) takes, and their weights; what is integrated bends at ``bends``.

    Gauss and Legendre's rule on panels of its quantiles: finer towards both ends and towards the bends, beside which a
    tail of many models changes abruptly.
    """
    inside = bends[(bends > 0) & (bends < 1)]
    beside = inside[:, None] + (inside * (1 - inside))[:, None] * _BESIDE
    edges = np.union1d(_PANELS, np.clip(betainc(first, second, np.clip(beside, 0.0, 1.0)), 0.0, 1.0))
    nodes, reach = _nodes(edges)
    place = np.searchsorted(_PANELS[:-2], edges[:-1])
    whole = (_PANELS[place] == edges[:-1]) & (_PANELS[place + 1] == edges[1:])
    values = np.empty_like(nodes)
    values[whole] = _values_on_panels(first, second)[place[whole]]
    values[~whole] = betaincinv(first, second, nodes[~whole])
    return values.ravel(), (reach[:, None] * _LEGENDRE[1]).ravel()


def _nodes(edges: _Array) -> tuple[_Array, _Array]:
    """The rule's nodes on each panel between ``edges``, and half of each panel's length."""
    middle, reach = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    return middle[:, None] + reach[:, None] * _LEGENDRE[0], reach


@lru_cache(maxsize=256)
def _values_on_panels(first: int, second: int) -> _Array:
    """The law's values on the panels that nothing cuts: of all that a bound tries, most of the work."""
    return betaincinv(first, second, _nodes(_PANELS)[0])
