"""The probability of guessing a secret, bounded by the whole trade-off function: for one secret, or many at once.

Let K be the number of a secret's records in a batch, P = sum_k P(K = k) N(k, sigma^2) and Q = N(0, sigma^2). A guess is
correct with probability at most the prior r under Q^T, the run without the secret's records; with them, at most

    B(r) = sup {P^T(E) : Q^T(E) <= r} = min over epsilon of e^epsilon r + delta(epsilon)

(the blow-up function of Hayes, Mahloujifar and Balle 2023; delta is that of P^T against Q^T, in this order only).

Distributions of K are compared by their upper tails. If P(K >= k) <= P(K' >= k) for every k, K' reveals at least as
much: dP/dQ increases with x, so the best set for delta_K(epsilon) is a half-line x > t; its probability under P is the
mean of Phi((K - t) / sigma), which increases with K, so it is at least as large for K', and
delta_K(epsilon) <= delta_K'(epsilon) at every real epsilon. That order is preserved by T adaptive steps (Zhu, Dong and
Wang 2022, theorem 10). Hence B increases with every record's probability (by coupling), and the pointwise maximum of
several upper tails, which is itself the upper tail of a distribution, covers all of their secrets. B decreases with
sigma (adding noise to the output) and increases with T (leaving out steps), both by data processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from privctl.accounting.pld.compose import COARSE, FINE, compose
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import GaussianMixture
from privctl.accounting.poisson_binomial import Floats, PoissonBinomial
from privctl.accounting.secrets.count_laws import LawBlock
from privctl.domain.checks import at_least, fraction, positive

__all__ = ["COARSE", "FINE", "Curve", "curve_of", "pointwise_largest", "tails_of_block", "tails_of_law"]

#: Below this noise multiplier, losses are too large for the grid, and only whether any record was drawn is counted.
_LEAST_NOISE = 0.01
#: How much draws that count as infinite losses may add to a posterior, relative to the prior and the grid's precision.
_RARE = 0.01
#: Relative margin added to upper tails for the rounding of their sums and differences.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Success <= e^epsilons[i] * prior + deltas[i] for every i; ``epsilons`` increase, shape (n,) each.

    ``ever`` is the probability that any record of the secret is drawn in any step, the most that a guess can gain.
    """

    epsilons: Floats
    deltas: Floats
    ever: float = 1.0

    def posterior(self, prior: float) -> float:
        """The bound on success at one ``prior``. Raises ValueError for a prior outside (0, 1)."""
        fraction("prior", prior)
        return float(self.posteriors(np.array([prior]))[0])

    def posteriors(self, priors: Floats) -> Floats:
        """An upper bound on B at each of ``priors``, shape (m,): the line at which the slope passes the prior.

        Every line is a bound, so a badly chosen line is loose but not wrong.
        """
        growth = np.exp(np.minimum(self.epsilons, 700.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (self.deltas[:-1] - self.deltas[1:]) / np.diff(growth)
        # Convex up to rounding, and flat where deltas were limited to 1.
        falling = np.maximum.accumulate(np.nan_to_num(slopes, nan=0.0)[::-1])[::-1]
        positions = np.searchsorted(-falling, -priors)
        near = np.clip(positions + np.arange(-2, 3)[:, None], 0, len(growth) - 1)
        lines: Floats = growth[near] * priors + self.deltas[near]
        least: Floats = lines.min(axis=0)
        return np.minimum(np.minimum(least, priors + self.ever), 1.0)


def curve_of(tails: Floats, sigma: float, steps: int, precision: float = FINE, *, prior: float = 0.0) -> Curve:
    """The trade-off of ``steps`` steps at noise multiplier ``sigma``, given the upper ``tails`` of K; an upper bound.

    ``tails[k]`` is P(K >= k), decreasing from 1, shape (n,); the last one counts as an infinite loss. ``precision`` is
    roughly the relative increase of epsilon due to the grid. For priors of at least ``prior``, draws of so many records
    at once that they are very unlikely count as infinite losses too.

    Raises ValueError for a multiplier or number of steps out of range. Example: for ten records of probability 0.005,
    500 steps and sigma 1.378, the posterior at prior 0.01 is at most 0.0849.
    """
    positive("sigma", sigma)
    at_least("steps", steps, 1)
    rare = steps * tails[2:-1] <= precision * _RARE * prior
    tails = tails[: 3 + int(rare.argmax())] if rare.any() else tails
    weights = tails[:-1] - tails[1:]
    drawn = float(tails[1])
    ever = -math.expm1(steps * math.log1p(-drawn)) * (1 + _ROUNDING) if drawn < 1 else 1.0
    if sigma < _LEAST_NOISE or drawn <= 0:
        return Curve(np.array([0.0]), np.array([1.0]), ever)
    kept = np.flatnonzero(weights > 0)
    mixture = GaussianMixture(
        shifts=tuple(kept.astype(float).tolist()),
        weights=tuple(weights[kept].tolist()),
        stddev=sigma,
        lost=float(tails[-1]),
    )
    return Curve(*compose([RepeatedPair(mixture, steps)], log_delta=None, precision=precision).profile(), ever)


def tails_of_law(law: PoissonBinomial) -> Floats:
    """Upper bounds on P(K >= k) for k = 0, 1, ...; the last is the truncated mass."""
    whole = np.concatenate([np.zeros(int(law.shifts[0])), law.weights])
    return _tails(whole[:, None], np.array([law.tail_mass]))[:, 0]


def tails_of_block(block: LawBlock) -> Floats:
    """As ``tails_of_law`` for every column of the block; shape [length + 1, secrets]."""
    return _tails(block.weights, block.tail_squares / len(block.weights) ** 2)


def pointwise_largest(tails: Sequence[Floats]) -> Floats:
    """The pointwise maximum of several upper tails, which covers them all."""
    length = max(map(len, tails))
    # Beyond the end of a shorter one there is at most its truncated mass.
    padded = (np.pad(one, (0, length - len(one)), mode="edge") for one in tails)
    return reduce(np.maximum, padded)


def _tails(weights: Floats, cut: Floats) -> Floats:
    sums = np.cumsum(np.vstack([cut, weights[::-1]]), axis=0)[::-1]
    tails = np.minimum(sums * (1 + _ROUNDING), 1.0)
    tails[0] = 1.0
    return tails
