"""The success of guessing a secret, bounded by the whole trade-off curve: for one secret, or one law that covers many.

Let K be how many of a secret's records a batch holds, P = sum_k P(K = k) N(k, sigma^2) and Q = N(0, sigma^2). A guess
is right with probability at most the prior r under Q^T, the run without the secret's records; with them at most

    B(r) = sup {P^T(E) : Q^T(E) <= r} = min over epsilon of e^epsilon r + delta(epsilon)

(the blow-up function of Hayes, Mahloujifar and Balle 2023; delta is that of P^T against Q^T, in this order alone).

Laws are compared by their upper tails. If P(K >= k) <= P(K' >= k) for every k, K' gives away at least as much: dP/dQ
rises with x, so the best set for delta_K(epsilon) is a half-line x > t; its probability under P is the mean of
Phi((K - t) / sigma), which rises with K, so K' gives that half-line no less and delta_K(epsilon) <= delta_K'(epsilon)
at every real epsilon. Pairs ordered like that stay ordered after T adaptive steps (Zhu, Dong and Wang 2022, theorem
10). Hence B rises with every record's probability (couple the coins), and the pointwise largest of several upper tails,
which is the upper tail of a law too, covers all of their secrets. B falls with sigma (adding noise to the output) and
rises with T (leaving steps out): both by data processing.
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

#: Below this noise multiplier losses leave what the grid can hold: only whether a record was drawn at all is counted.
_LEAST_NOISE = 0.01
#: What draws that count as infinite losses may add to a posterior, relative to the prior and the grid's precision.
_RARE = 0.01
#: Added to upper tails, relatively, for what sums and differences of them may lose.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Success <= e^epsilons[i] * prior + deltas[i] for every i; ``epsilons`` rise, shape (n,) both.

    ``ever`` is the chance that any record of the secret is drawn in any step: no guess gains more than that.
    """

    epsilons: Floats
    deltas: Floats
    ever: float = 1.0

    def posterior(self, prior: float) -> float:
        """The largest success at one ``prior``. Raises ValueError outside (0, 1)."""
        fraction("prior", prior)
        return float(self.posteriors(np.array([prior]))[0])

    def posteriors(self, priors: Floats) -> Floats:
        """An upper bound on B at each of ``priors``, shape (m,): the line at whose corner the slope passes the prior.

        Every line is a bound, so that a line chosen badly is loose and not wrong.
        """
        growth = np.exp(np.minimum(self.epsilons, 700.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (self.deltas[:-1] - self.deltas[1:]) / np.diff(growth)
        # Convex but for rounding, and flat where deltas were cut off at 1.
        falling = np.maximum.accumulate(np.nan_to_num(slopes, nan=0.0)[::-1])[::-1]
        at = np.searchsorted(-falling, -priors)
        near = np.clip(at + np.arange(-2, 3)[:, None], 0, len(growth) - 1)
        lines: Floats = growth[near] * priors + self.deltas[near]
        least: Floats = lines.min(axis=0)
        return np.minimum(np.minimum(least, priors + self.ever), 1.0)


def curve_of(tails: Floats, sigma: float, steps: int, precision: float = FINE, *, prior: float = 0.0) -> Curve:
    """The trade-off curve of ``steps`` steps at noise multiplier ``sigma`` for a law with these upper ``tails``.

    ``tails[k]`` is P(K >= k), falling from 1, shape (n,); the last of them counts as an infinite loss. ``precision``
    is about what the grid may add to epsilon, relatively; for priors from ``prior`` on, draws of so many records at
    once that they hardly ever happen count as infinite losses too. Never below the true curve.

    Raises ValueError for a multiplier or number of steps out of range. Example: ten records of probability 0.005, 500
    steps and sigma 1.378 leave a prior of 0.01 at most 0.0849.
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
    """P(K >= k) for k = 0, 1, ..., never below the true value; the last is the mass that was cut off."""
    whole = np.concatenate([np.zeros(int(law.shifts[0])), law.weights])
    return _tails(whole[:, None], np.array([law.tail_mass]))[:, 0]


def tails_of_block(block: LawBlock) -> Floats:
    """As ``tails_of_law`` for every law of the block: shape [length + 1, secrets]."""
    return _tails(block.weights, block.tail_squares / len(block.weights) ** 2)


def pointwise_largest(tails: Sequence[Floats]) -> Floats:
    """The pointwise largest of several upper tails: a law that covers them all."""
    length = max(map(len, tails))
    # Beyond the end of a shorter one there is at most what it cut off.
    padded = (np.pad(one, (0, length - len(one)), mode="edge") for one in tails)
    return reduce(np.maximum, padded)


def _tails(weights: Floats, cut: Floats) -> Floats:
    sums = np.cumsum(np.vstack([cut, weights[::-1]]), axis=0)[::-1]
    tails = np.minimum(sums * (1 + _ROUNDING), 1.0)
    tails[0] = 1.0
    return tails
