"""Dominating pairs of one step, described by their privacy loss (Zhu, Dong and Wang 2022, "Optimal Accounting").

A pair (P, Q) holds the output distributions with and without one record. All that an accountant needs is how much mass
P and Q have between two values of the privacy loss log dP/dQ. Masses are natural logarithms throughout, so a tail of
1e-300 is as accurate as the bulk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: The error for a mechanism whose losses overflow.
BEYOND_FLOATS = "the losses of a step are so small or so large that floats cannot hold them; no bound is computed"

#: Limit on the entries of a work array (shifts times edges), and on the edges for which a rough start suffices.
_SCRATCH, _FEW = 1 << 21, 2048


@dataclass(frozen=True, slots=True)
class Span:
    """Ranges of losses outside which P and Q have at most the requested tail probability on each side."""

    p_low: float
    p_high: float
    q_low: float
    q_high: float


class Pair(Protocol):
    """Two distributions P and Q; the distribution of the privacy loss log dP/dQ is that under P."""

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """Log masses under P and Q of the loss in (-inf, e0], (e0, e1], ..., (en, inf); one more than ``edges``."""
        ...

    def span(self, log_tail: float) -> Span:
        """The ranges of losses of P and Q, except for a mass of exp(``log_tail``) at each end."""
        ...

    def sketch(self, count: int, log_tail: float) -> Array:
        """About ``count`` increasing losses within the span, denser where the distributions change faster."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """P = N(mu, 1), Q = N(0, 1)."""

    mu: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        q_edges = edges / self.mu + self.mu / 2
        return log_normal_cells(q_edges - self.mu), log_normal_cells(q_edges)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        reach, half = -self.mu * normal_quantile(log_tail), self.mu * self.mu / 2
        return Span(half - reach, half + reach, -half - reach, -half + reach)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        span = self.span(log_tail)
        return np.linspace(span.q_low, span.p_high, count)


@dataclass(frozen=True, slots=True)
class Laplace:
    """P and Q are Laplace distributions with scale ``scale``, whose centres are one unit apart."""

    scale: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        epsilon = 1 / self.scale
        # Under P the loss is epsilon with probability 1/2, -epsilon with exp(-epsilon)/2, and in between it has density
        # exp((l - epsilon) / 2) / 4.
        inside = np.clip(edges, -epsilon, epsilon)
        at_most = np.where(edges < -epsilon, -np.inf, (inside - epsilon) / 2 - math.log(2))
        at_most = np.where(edges >= epsilon, 0.0, at_most)
        above = np.where(edges >= epsilon, -np.inf, np.log1p(-np.exp(np.minimum(at_most, -math.log(2)))))
        log_p = log_differences(at_most, above)
        # Under Q the mirror image: Q(loss <= l) = P(loss >= -l).
        q_above = np.where(edges >= epsilon, -np.inf, (-inside - epsilon) / 2 - math.log(2))
        q_above = np.where(edges < -epsilon, 0.0, q_above)
        q_at_most = np.where(edges < -epsilon, -np.inf, np.log1p(-np.exp(np.minimum(q_above, -math.log(2)))))
        return log_p, log_differences(q_at_most, q_above)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        return Span(-1 / self.scale, 1 / self.scale, -1 / self.scale, 1 / self.scale)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return np.linspace(-1 / self.scale, 1 / self.scale, count)


@dataclass(frozen=True, slots=True)
class Atoms:
    """Finitely many increasing ``losses`` with log probabilities ``log_p`` under P, and log_p - losses under Q.

    The pair is symmetric unless ``mirrored`` is False. P and Q may each have a mass ``infinite`` where the other has
    none.
    """

    losses: tuple[float, ...]
    log_p: tuple[float, ...]
    infinite: float = 0.0
    mirrored: bool = True

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``; a loss of -inf counts as above edges of -inf, below which there is nothing."""
        losses, masses = np.array(self.losses), np.array(self.log_p)
        positions = np.searchsorted(edges, losses)
        log_p, log_q = np.full((2, len(edges) + 1), -np.inf)
        np.logaddexp.at(log_p, positions, masses)
        np.logaddexp.at(log_q, positions, masses - losses)
        if self.infinite > 0:
            lowest = int(np.searchsorted(edges, -np.inf, side="right"))
            log_p[-1] = np.logaddexp(log_p[-1], math.log(self.infinite))
            log_q[lowest] = np.logaddexp(log_q[lowest], math.log(self.infinite))
        return log_p, log_q

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        low = -math.inf if self.infinite > math.exp(log_tail) else self.losses[0]
        return Span(self.losses[0], self.losses[-1], low, self.losses[-1])

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``: edges between the atoms, so that each is alone in its cell."""
        losses = np.array(self.losses)
        return np.concatenate([[losses[0] - 1], (losses[:-1] + losses[1:]) / 2, [losses[-1] + 1]])


def randomized_response(epsilon: float, bits: int) -> Atoms:
    """The pair of ``bits`` bits that all differ between the neighbours, each true with log-odds ``epsilon``."""
    from scipy.special import gammaln

    true = np.arange(bits + 1)
    log_choose = gammaln(bits + 1) - gammaln(true + 1) - gammaln(bits - true + 1)
    log_p = log_choose - true * np.logaddexp(0, -epsilon) - (bits - true) * np.logaddexp(0, epsilon)
    return Atoms(tuple((epsilon * (2 * true - bits)).tolist()), tuple((log_p - np.logaddexp.reduce(log_p)).tolist()))


@dataclass(frozen=True, slots=True)
class GaussianMixture:
    """P = sum of weights[i] N(shifts[i], stddev^2), Q = N(0, stddev^2); shifts are >= 0, increasing, one above 0.

    ``lost`` is the truncated mass of P, which counts as an infinite loss.
    """

    shifts: tuple[float, ...]
    weights: tuple[float, ...]
    stddev: float
    lost: float = 0.0

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        x = self._inverse(edges)
        log_p = np.full(len(edges) + 1, -np.inf)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            if weight > 0:
                np.logaddexp(log_p, log_normal_cells((x - shift) / self.stddev) + math.log(weight), out=log_p)
        if self.lost > 0:
            log_p[-1] = np.logaddexp(log_p[-1], math.log(self.lost))
        return log_p, log_normal_cells(x / self.stddev)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        reach = -self.stddev * normal_quantile(log_tail)
        low, high, q_high = (float(x) for x in self._loss(np.array([-reach, self.shifts[-1] + reach, reach])))
        return Span(low, high, low, q_high)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        reach = -self.stddev * normal_quantile(log_tail)
        return np.unique(self._loss(np.linspace(-reach, self.shifts[-1] + reach, count)))

    def _loss(self, x: Array) -> Array:
        k = np.array(self.shifts)[:, None]
        with np.errstate(divide="ignore"):
            terms = np.log(np.array(self.weights))[:, None] + (k * x - k * k / 2) / self.stddev / self.stddev
        return np.asarray(np.logaddexp.reduce(terms), dtype=np.float64)

    def _inverse(self, losses: Array) -> Array:
        """The x at which the loss, which increases with x, reaches each value; -inf if it exceeds it everywhere.

        exp(loss) minus the weight on 0 is a sum of exponentials, whose logarithm is convex in x. Newton's method,
        started where the largest term alone reaches the value, decreases to the root without passing it.
        """
        shifts, weights = np.array(self.shifts), np.array(self.weights)
        idle = float(weights[0]) if shifts[0] == 0 else 0.0
        moving = (shifts > 0) & (weights > 0)
        k, log_w = shifts[moving][:, None], np.log(weights[moving])[:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            goal = np.where(losses > 0, losses + np.log1p(-idle * np.exp(-losses)), np.log(np.exp(losses) - idle))
        goal = goal if idle else losses
        reachable = np.isfinite(goal)
        x = np.full(len(losses), -np.inf)
        size = max(1, _SCRATCH // len(k))
        wanted = goal[reachable]
        x[reachable] = np.concatenate(
            [self._solve(wanted[i : i + size], k, log_w) for i in range(0, len(wanted), size)] or [wanted]
        )
        return np.asarray(np.maximum.accumulate(x), dtype=np.float64)

    def _solve(self, goal: Array, k: Array, log_w: Array) -> Array:
        """The x at which the log of the sum of exponentials is ``goal`` (increasing); k, log_w: shape (terms, 1)."""
        variance = self.stddev * self.stddev  # overflows to inf, where ** would raise
        x = np.min(((goal - log_w) * variance + k * k / 2) / k, axis=0)
        if len(goal) > _FEW:
            # Interpolating a few exact points gives a start from which two steps suffice.
            exact = self._solve(goal[:: len(goal) // _FEW * 2], k, log_w)
            x = np.minimum(x, np.interp(goal, goal[:: len(goal) // _FEW * 2], exact, right=np.inf))
        for _ in range(60):
            terms = log_w + (k * x - k * k / 2) / variance
            largest = terms.max(axis=0)
            parts = np.exp(terms - largest)
            total = parts.sum(axis=0)
            height, slope = largest + np.log(total), (parts * k).sum(axis=0) / total / variance
            step = (height - goal) / slope
            x = x - step
            if np.all(np.abs(step) <= 1e-14 * (np.abs(x) + self.stddev)):
                break
        return np.asarray(x, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Sampled:
    """P is (1 - rate) Q + rate P of ``base``: the record takes part with probability ``rate``, 0 < rate <= 1."""

    base: Pair
    rate: float

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        log_p, log_q = self.base.cells(self._base_loss(edges))
        if self.rate == 1:
            return log_p, log_q
        return np.logaddexp(math.log1p(-self.rate) + log_q, math.log(self.rate) + log_p), log_q

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        base = self.base.span(log_tail)
        low, high, q_high = (float(x) for x in self._sampled_loss(np.array([base.q_low, base.p_high, base.q_high])))
        return Span(low, high, low, q_high)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return np.unique(self._sampled_loss(self.base.sketch(count, log_tail)))

    def _sampled_loss(self, losses: Array) -> Array:
        """log(1 - rate + rate exp(loss))."""
        if self.rate == 1:
            return losses
        small = np.log1p(self.rate * np.expm1(np.minimum(losses, 1.0)))
        large = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + losses)
        return np.where(losses <= 1, small, large)

    def _base_loss(self, losses: Array) -> Array:
        """The base's loss that sampling turns into each of ``losses``; -inf if there is none that low."""
        if self.rate == 1:
            return losses
        with np.errstate(divide="ignore", invalid="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(losses, 1.0)) / self.rate, -1.0))
            large = losses + np.log1p(-(1 - self.rate) * np.exp(-np.maximum(losses, 0.5))) - math.log(self.rate)
        return np.where(losses <= 1, small, large)


@dataclass(frozen=True, slots=True)
class Reversed:
    """(Q, P) of ``pair``: the record is added instead of removed."""

    pair: Pair

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``, except that a loss exactly on an edge counts as above it."""
        log_p, log_q = self.pair.cells(-edges[::-1])
        return log_q[::-1], log_p[::-1]

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        base = self.pair.span(log_tail)
        return Span(-base.q_high, -base.q_low, -base.p_high, -base.p_low)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        return -self.pair.sketch(count, log_tail)[::-1]


@dataclass(frozen=True, slots=True)
class Symmetrized:
    """Both orders of ``pair`` at once: its positive losses, their mirror image, and the remaining mass at loss 0.

    Dominates sampling a fixed number of records without replacement, for neighbours that differ in one record's content
    (Dong, Roth and Su 2022, theorem 4.2, the operator C_p).
    """

    pair: Pair

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See ``Pair``."""
        # Compute both halves on a common set of positive edges, then sum the requested cells.
        marks = np.unique(np.concatenate([np.abs(edges), [0.0]]))
        log_p, log_q = self.pair.cells(marks)
        gain_p, gain_q = log_p[1:], log_q[1:]
        whole_p, whole_q = self.pair.cells(np.zeros(1))
        # The mass in neither half: P(loss <= 0) - Q(loss > 0).
        middle = float(whole_p[0] + _log1mexp(np.maximum(whole_p[0] - whole_q[1], 1e-300)))
        losses = np.concatenate([-marks[::-1], marks])
        fine_p = np.concatenate([gain_q[::-1], [middle], gain_p])
        fine_q = np.concatenate([gain_p[::-1], [middle], gain_q])
        # fine[i] is the mass between losses[i - 1] and losses[i]; ``at`` are the indices of the requested edges.
        positions = np.searchsorted(losses, edges, side="right")
        return _merge_runs(fine_p, positions), _merge_runs(fine_q, positions)

    def span(self, log_tail: float) -> Span:
        """See ``Pair``."""
        high = self.pair.span(log_tail).p_high
        return Span(-high, high, -high, high)

    def sketch(self, count: int, log_tail: float) -> Array:
        """See ``Pair``."""
        positive = self.pair.sketch(count, log_tail)
        positive = positive[positive > 0]
        return np.concatenate([-positive[::-1], [0.0], positive])


def normal_quantile(log_probability: float) -> float:
    """The x with log Phi(x) = ``log_probability``."""
    from scipy.special import ndtri_exp

    return float(ndtri_exp(log_probability))


def log_normal_cells(edges: Array) -> Array:
    """Log masses of N(0, 1) below, between and above increasing ``edges``, each with a small relative error.

    Each is computed from the tail on its own side of 0, which is the smaller one.
    """
    from scipy.special import log_ndtr  # here, as importing it takes longer than the rest of a command's start

    middle = int(np.searchsorted(edges, 0.0))
    below, above = log_ndtr(edges[: middle + 1]), log_ndtr(-edges[max(middle - 1, 0) :])
    straddles = 0 < middle < len(edges)  # one cell holds 0
    by_below = straddles and below[middle] < above[0]
    rising, falling = below[: middle + by_below], above[int(by_below) :]
    with np.errstate(invalid="ignore", divide="ignore"):
        lower = rising[1:] + _log1mexp(rising[1:] - rising[:-1])
        upper = falling[:-1] + _log1mexp(falling[:-1] - falling[1:])
    inside = np.concatenate([lower, upper])
    return np.concatenate([below[:1], np.where(np.isnan(inside), -np.inf, inside), above[-1:]])


def log_differences(below: Array, above: Array) -> Array:
    """Log masses of cells from log P(<= edge) and log P(> edge), by differences of whichever is smaller."""
    with np.errstate(invalid="ignore", divide="ignore"):
        lower = below[1:] < above[:-1]
        gap = np.where(lower, below[1:] - below[:-1], above[:-1] - above[1:])
        inside = np.where(lower, below[1:], above[:-1]) + _log1mexp(gap)
    inside = np.where(np.isnan(inside), -np.inf, inside)
    return np.concatenate([below[:1], inside, above[-1:]])


def _log1mexp(gap: Array) -> Array:
    """log(1 - exp(-gap)) for gap >= 0."""
    return np.log(-np.expm1(-gap))


def _merge_runs(fine: Array, at: NDArray[np.intp]) -> Array:
    """Log sums over the runs of ``fine`` that begin at 0 and at each of ``at``; no run may be empty."""
    sums: Array = np.logaddexp.reduceat(fine, np.concatenate([[0], at]))
    return sums
