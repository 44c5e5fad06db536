"""A composed privacy loss distribution on a grid, and its epsilons and deltas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from privctl.accounting.brackets import falling_index
from privctl.accounting.pld.pairs import Array


@dataclass(frozen=True, slots=True)
class WrappedMass:
    """Bounds on the mass from outside the window that may have wrapped around, which a lower bound must not count.

    From below: at most exp(``log_from_below``) in delta, and exp(``log_tilted``) relative to the tilted masses. From
    above, relative to the tilted masses: Chernoff bounds exp(value - theta * (``width`` + epsilon)) for each
    (theta, value).
    """

    log_from_below: float
    log_tilted: float
    width: float
    bounds: tuple[tuple[float, float], ...]

    def from_above(self, epsilon: float) -> float:
        """A bound on the mass that wrapped around from above and is now above ``epsilon``."""
        return math.exp(min(0.0, *(value - theta * (self.width + epsilon) for theta, value in self.bounds)))


@dataclass(frozen=True, slots=True)
class SimpleBounds:
    """Bounds that need no composed distribution, for where that gives none.

    ``log_variation`` is the logarithm of the sum of the steps' total variation distances, a delta at epsilon 0;
    ``log_infinite`` is the log mass at infinity; each of ``moments`` is a tilt and log E exp(tilt * loss) without that
    mass.
    """

    log_variation: float
    log_infinite: float
    moments: tuple[tuple[float, float], ...]

    def log_delta(self, epsilon: float) -> float:
        """The best of the bounds on log delta at ``epsilon``."""
        moment = min((value - tilt * epsilon - _markov_gain(tilt) for tilt, value in self.moments), default=0.0)
        bound = min(0.0, float(np.logaddexp(moment, self.log_infinite)))
        return min(bound, self.log_variation) if epsilon >= 0 else bound

    def epsilon(self, log_delta: float) -> float:
        """The smallest epsilon by the moment bounds; inf if there is none."""
        if log_delta <= self.log_infinite:
            return math.inf
        rest = log_delta + math.log(-math.expm1(self.log_infinite - log_delta))
        return max(
            0.0, min(((value - rest - _markov_gain(tilt)) / tilt for tilt, value in self.moments), default=math.inf)
        )


def _markov_gain(tilt: float) -> float:
    """The gain over Markov's inequality: (1 - exp(-x))_+ <= exp(tilt * x - gain) (Canonne, Kamath and Steinke 2020)."""
    return math.log1p(tilt) + tilt * math.log1p(1 / tilt)


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """A composed privacy loss distribution on the grid ``start + interval * i``.

    P(loss_i) = masses[i] * exp(log_scale - tilt * loss_i). ``log_outside`` bounds the log mass above the grid or at
    infinity, and ``margin`` bounds what rounding may have subtracted from each entry of ``masses``. If ``lower``,
    everything is a lower bound instead: ``margin`` bounds what rounding may have added, and ``wrapped`` what may have
    wrapped around the grid's ends. Upper bounds are the smaller of the grid's and of ``simple``.
    """

    start: float
    interval: float
    masses: Array
    tilt: float
    log_scale: float
    log_outside: float
    margin: float
    lower: bool = False
    wrapped: WrappedMass | None = None
    simple: SimpleBounds = SimpleBounds(0.0, 0.0, ())
    _epsilons: dict[float, float] = field(default_factory=dict, repr=False, compare=False)
    _weights: list[tuple[Array, Array, Array, Array]] = field(default_factory=list, repr=False, compare=False)

    @property
    def losses(self) -> Array:
        """The grid's privacy losses, in increasing order."""
        return np.asarray(self.start + self.interval * np.arange(len(self.masses)), dtype=np.float64)

    def log_delta(self, epsilon: float) -> float:
        """An upper bound on log delta at ``epsilon`` (any real number), or a lower bound if ``lower``.

        Below the grid it is a simple bound, or, if ``lower``, the bound at ``start``.
        """
        if epsilon < self.start:
            return self.log_delta(self.start) if self.lower else self.simple.log_delta(epsilon)
        first = math.floor(min((epsilon - self.start) / self.interval, len(self.masses))) + 1
        total, excess = self._excess(first, self.start + self.interval * first - epsilon)
        error = self.margin * excess
        log_unit = self.log_scale - self.tilt * epsilon
        if self.wrapped is not None:
            below = min(self.wrapped.log_from_below - log_unit, self.wrapped.log_tilted)
            total -= error + self.wrapped.from_above(epsilon) + math.exp(below)
            return math.log(total) + log_unit if total > 0 else -math.inf
        if total + error > 1e-200:
            body = math.log(total + error) + log_unit
        else:
            # With a strong tilt the terms underflow, but not their product with exp(log_unit).
            above = self.start + self.interval * np.arange(first, len(self.masses)) - epsilon
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.log(self.masses[first:] + self.margin) - self.tilt * above + np.log(-np.expm1(-above))
            body = float(np.logaddexp.reduce(np.nan_to_num(terms, nan=-np.inf), initial=-np.inf)) + log_unit
        return min(self.simple.log_delta(epsilon), float(np.logaddexp(body, self.log_outside)))

    def _excess(self, first: int, gap: float) -> tuple[float, float]:
        """Sums over x = ``gap`` + interval * j, j >= 0, of exp(-tilt x) (1 - exp(-x)).

        The first is weighted with masses[first + j], the second is not. Since 1 - exp(-x) = (1 - exp(-gap)) +
        exp(-gap) (1 - exp(-interval j)), nothing cancels, and what depends on j is the same for every epsilon.
        """
        count = len(self.masses) - first
        if count <= 0:
            return 0.0, 0.0
        if not self._weights:
            above = self.interval * np.arange(len(self.masses))
            decay, rise = np.exp(-self.tilt * above), -np.expm1(-above)
            self._weights.append((decay, rise, np.cumsum(decay), np.cumsum(decay * rise)))
        decay, rise, decays, rises = self._weights[0]
        terms = self.masses[first:] * decay[:count]
        plain = float(terms.sum())
        np.multiply(terms, rise[:count], out=terms)
        unit, kept, lost = math.exp(-self.tilt * gap), math.exp(-gap), -math.expm1(-gap)
        total = unit * (lost * plain + kept * float(terms.sum()))
        return total, unit * (lost * float(decays[count - 1]) + kept * float(rises[count - 1]))

    def epsilon(self, delta: float) -> float:
        """The bound on epsilon (>= 0) at ``delta`` that follows from this distribution; inf if none does."""
        if delta not in self._epsilons:
            self._epsilons[delta] = self._epsilon(delta)
        return self._epsilons[delta]

    def log_rounding_error(self, epsilon: float) -> float:
        """The approximate logarithm of the rounding error of delta at ``epsilon``."""
        points = min(float(len(self.masses)), 1 / -math.expm1(-self.tilt * self.interval)) if self.tilt else 1.0
        return math.log(max(self.margin * points, 5e-324)) + self.log_scale - self.tilt * epsilon

    def _epsilon(self, delta: float) -> float:
        target = math.log(delta)
        # Delta is above the target at grid point ``low`` (or at 0, or unknown) and at most the target at ``high``.
        low, high = max(-1, math.floor(-self.start / self.interval)), len(self.masses)
        if self.lower:
            low = self._known_above(target)
            if low < 0:
                return 0.0
        elif self.log_delta(0.0) <= target:
            return 0.0
        if high - low > 1:
            high = falling_index(lambda i: self.log_delta(self.start + self.interval * i) - target, low, high)
            low = high - 1
        if high == len(self.masses):
            return self.simple.epsilon(target)
        if low < 0:
            return max(0.0, self.start)
        left, right = max(0.0, self.start + self.interval * low), self.start + self.interval * high
        crossing = self._crossing(left, right, target)
        return max(left, crossing * (1 - 1e-9)) if self.lower else crossing

    def _known_above(self, target: float) -> int:
        """A grid point with epsilon >= 0 where the lower bound exceeds the target; -1 if none is found.

        The bound is tight near the tilted mean and loose far below it, so the search goes down from there.
        """
        middle = int(np.argmax(np.cumsum(self.masses) >= 0.5 * self.masses.sum()))
        for k in range(40):
            at = middle - (1 << k)
            if at < 0 or self.start + self.interval * at < 0:
                at = max(0, math.ceil(-self.start / self.interval))
            if self.log_delta(self.start + self.interval * at) > target:
                return at
            if at == 0 or self.start + self.interval * (at - 1) < 0:
                break
        return -1

    def _crossing(self, left: float, right: float, target: float) -> float:
        """Where the chord of delta as a function of exp(epsilon), which lies above delta, meets the target."""
        if right - left > 500:
            return left if self.lower else right
        at_left, at_right = self.log_delta(left), self.log_delta(right)
        fraction = -math.expm1(target - at_left) / -math.expm1(at_right - at_left) if at_right < at_left else 1.0
        return min(right, left + math.log1p(fraction * math.expm1(right - left)))

    def profile(self) -> tuple[Array, Array]:
        """The grid's epsilons and upper bounds on delta at each; intended for a distribution without tilt."""
        losses = self.losses
        with np.errstate(divide="ignore"):
            log_p = np.log(self.masses + self.margin) + self.log_scale - self.tilt * losses
        above = np.append(np.cumsum(np.exp(log_p)[::-1])[::-1][1:], 0.0)
        log_q_above = np.append(np.logaddexp.accumulate((log_p - losses)[::-1])[::-1][1:], -np.inf)
        deltas = np.clip(above - np.exp(losses + log_q_above), 0.0, 1.0) + math.exp(self.log_outside)
        # The rounding errors of the sums are far below this margin.
        return losses, np.minimum(deltas * (1 + 1e-12) + 1e-14 + 2.0**-52 * len(losses), 1.0)
