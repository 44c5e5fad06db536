"""A single step in closed form: without a grid, it stays accurate for small epsilons and rarely sampled records.

Sampling at rate q turns delta0 of the base pair into (Balle, Barthe and Gaboardi 2018, theorem 2, which is an equality
for P = (1 - q) Q + q P0 against Q)

    q delta0(ln(1 + (e^epsilon - 1) / q))                               with the record against without it,
    w delta0(ln(e^epsilon q / w)), w = 1 - e^epsilon (1 - q),           without it against with it, if w > 0.
"""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting import gaussian
from privctl.accounting.composition import amplified_epsilon
from privctl.accounting.pld.pairs import Atoms, Gaussian, Laplace, Pair, Sampled, Symmetrized

#: Generous bound on the relative error of a delta in closed form; the Gaussian's is about 1e-11.
_ROUNDING = 1e-10


def single_step_epsilon(pair: Pair, delta: float) -> tuple[float, float] | None:
    """Lower and upper bounds on epsilon at ``delta`` of one use of ``pair``, in the worse order; None if no formula.

    They differ only by rounding. Gaussian, Laplace and pairs with finitely many losses have formulas, sampled or not.
    """
    if isinstance(pair, Symmetrized) and isinstance(pair.pair, Sampled):
        pair = pair.pair  # has the same delta at epsilon >= 0
    base, rate = (pair.base, pair.rate) if isinstance(pair, Sampled) else (pair, 1.0)
    if not isinstance(base, Gaussian | Laplace | Atoms) or (isinstance(base, Atoms) and not base.mirrored):
        return None
    if isinstance(base, Atoms) and delta < rate * base.infinite:
        return 0.0 if delta >= rate * base.infinite * (1 - _ROUNDING) else math.inf, math.inf
    known = _AtomMasses(base) if isinstance(base, Atoms) else base
    bounds = []
    for rounding in (_ROUNDING, -_ROUNDING):
        target = math.log(delta) + rounding
        bounds.append(max(_epsilon_with_record(known, rate, target), _epsilon_without_record(known, rate, target)))
    return max(0.0, bounds[0] * (1 - _ROUNDING)), bounds[1] * (1 + _ROUNDING)


class _AtomMasses:
    """The positive losses of atoms, increasing, with their probabilities, and the mass at infinite loss."""

    def __init__(self, atoms: Atoms) -> None:
        losses = np.array(atoms.losses)
        first = int(np.searchsorted(losses, 0.0, side="right"))
        self.losses, self.p = losses[first:], np.exp(np.array(atoms.log_p[first:]))
        self.most, self.infinite = float(losses[-1]), atoms.infinite

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon`` >= 0, as a sum without negative terms."""
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        return float((self.p[first:] * -np.expm1(epsilon - self.losses[first:])).sum()) + self.infinite


#: Base pairs with a formula for delta.
_Base = Gaussian | Laplace | _AtomMasses


def _epsilon_with_record(base: _Base, rate: float, target: float) -> float:
    """Epsilon with the record against without it."""
    if target >= math.log(rate):
        return 0.0
    return amplified_epsilon(_least_epsilon(base, target - math.log(rate)), rate)


def _epsilon_without_record(base: _Base, rate: float, target: float) -> float:
    """Epsilon without the record against with it: below -ln(1 - rate)."""
    if rate == 1:
        return _least_epsilon(base, target)
    low, high = 0.0, -math.log1p(-rate)

    def log_delta(epsilon: float) -> float:
        weight = -math.expm1(epsilon + math.log1p(-rate))
        if weight <= 0:
            return -math.inf
        return math.log(weight) + _log_delta(base, epsilon + math.log(rate) - math.log(weight))

    if log_delta(0.0) <= target:
        return 0.0
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (low, middle) if log_delta(middle) <= target else (middle, high)
    return high


def _least_epsilon(base: _Base, target: float) -> float:
    """The smallest epsilon of the base pair at delta = exp(``target``)."""
    if isinstance(base, Gaussian):
        return gaussian.epsilon_at(math.exp(target), base.mu)
    if isinstance(base, Laplace):
        return max(0.0, 1 / base.scale + 2 * math.log1p(-math.exp(target)))
    low, high = 0.0, base.most
    if _log_delta(base, low) <= target:
        return low
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (low, middle) if _log_delta(base, middle) <= target else (middle, high)
    return high


def _log_delta(base: _Base, epsilon: float) -> float:
    """Log of the smallest delta of the base pair, which is symmetric, at ``epsilon`` >= 0."""
    if isinstance(base, Gaussian):
        return gaussian.log_delta(max(epsilon, 0.0), base.mu)
    if isinstance(base, Laplace):
        gap = 1 / base.scale - epsilon
        return math.log(-math.expm1(-gap / 2)) if gap > 0 else -math.inf
    total = base.delta(epsilon)
    return math.log(total) if total > 0 else -math.inf
