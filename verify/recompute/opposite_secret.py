"""The information that all steps reveal about a secret with two values whose contributions are opposite.

KL(P || P') of the mixture P of N(k, sigma^2) and its mirror image P' is the integral of p' (t ln t - t + 1) with
t = p / p', a nonnegative integrand, over the whole line by the trapezoidal rule. The accounting integrates
(p - p') ln(p / p') over half the line, on panels. As a function of x / sigma the integrand has no singularity within
pi sigma of the line (Laguerre), so a spacing of a quarter of 1 / (1 + 1 / sigma) leaves an error far below rounding
(Trefethen and Weideman 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import entr, logsumexp

from verify.losses.bound_pair import BoundPair
from verify.losses.cells import binomial_law

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A relative error bound of the sum, many times its change when the spacing is halved.
_ERROR = 1e-9
_SPACING, _SIDE, _MOST_POINTS = 0.25, 13.0, 500_000
#: The exponent above which ratios are computed only by their logarithms.
_LARGE = 300.0


def opposite_information(probabilities: Sequence[float], sigma: float, steps: int) -> BoundPair:
    """Bounds in nats for all steps, with records drawn with ``probabilities`` and noise of ``sigma`` clip norms.

    Example: one record that is always drawn, sigma 1 and one step give 2 nats, as for Gaussians at distance 2.
    """
    law, lost = binomial_law(probabilities)
    shifts = np.arange(len(law)) / sigma
    if len(law) == 1 or law[0] == 1:
        return BoundPair(0.0, 0.0)
    # By joint convexity, a count of n that was cut off costs at most (2 n)^2 / (2 sigma^2).
    cut = steps * lost * 2 * (len(probabilities) / sigma) ** 2
    width = _SPACING / (1 + 1 / sigma)
    end = float(shifts[-1]) + _SIDE
    if 2 * end / width > _MOST_POINTS:
        return _closed(law, shifts, steps, cut)
    z = np.arange(-end, end + width, width)
    blocks = np.array_split(z, max(1, len(z) * len(law) // 2_000_000))
    nats = steps * width * sum(float(_density(part, law, shifts).sum()) for part in blocks) / math.sqrt(2 * math.pi)
    return BoundPair(nats * (1 - _ERROR), nats * (1 + _ERROR) + cut)


def _density(z: NDArray[np.float64], law: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The integrand times sqrt(2 pi) at ``z``."""
    ahead, behind = _log_ratio(z, law, shifts), _log_ratio(-z, law, shifts)
    log_ratio = ahead - behind
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.exp(behind - z * z / 2) * _convex(log_ratio)
        large = np.exp(ahead - z * z / 2) * (log_ratio - 1) + np.exp(behind - z * z / 2)
    return np.maximum(np.where(np.abs(log_ratio) < 1, small, large), 0.0)


def _convex(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value of x e^x - e^x + 1, by its series near 0, where the terms cancel."""
    series = x * x * (1 / 2 + x * (1 / 3 + x * (1 / 8 + x * (1 / 30 + x * (1 / 144 + x * (1 / 840 + x / 5760))))))
    return np.where(np.abs(x) < 0.02, series, x * np.exp(x) - np.expm1(x))


def _log_ratio(z: NDArray[np.float64], law: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log of the mixture's density over that of N(0, 1) at ``z``, with small relative error also near 0."""
    exponents = z[:, None] * shifts - shifts**2 / 2
    change = np.maximum(np.expm1(np.minimum(exponents, _LARGE)) @ law, 2.0**-53 - 1)
    whole = logsumexp(exponents, axis=1, b=law)
    return np.where(np.abs(change) < 0.5, np.log1p(change), whole)


def _closed(law: NDArray[np.float64], shifts: NDArray[np.float64], steps: int, cut: float) -> BoundPair:
    """Bounds for components too far apart for the trapezoidal rule.

    The upper bound is joint convexity. The lower bound uses that p is at least each of its terms and that -ln p'(z) is
    at least z^2 / 2 for z above 0.
    """
    square = float(law @ shifts**2)
    least = square / 2 - float(entr(law).sum()) - 0.25
    return BoundPair(max(0.0, steps * least * (1 - _ERROR)), 2 * steps * square * (1 + _ERROR) + cut)
