"""The information that all steps reveal about a secret, and the best guess it allows.

KL(mixture || N(0, sigma^2)) by the trapezoidal rule, which converges geometrically for such integrands, while the
accounting uses Gauss-Legendre panels. The posterior is the root of kl(p, r) = nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import entr, rel_entr

from privctl.domain.events import SecretMixture
from verify.losses.bound_pair import BoundPair
from verify.losses.cells import binomial_law

#: A bound on the relative error of the integral, many times its change when the spacing is halved.
_ERROR = 1e-9
_SPACING = 1 / 16
#: The most points of the sum, so that no report can exhaust memory. With so little noise that more would be needed,
#: the closed-form bounds are close together.
_MOST_POINTS = 2_000_000
#: The exponent above which ratios are computed by their logarithms.
_LARGE = 300.0


def information(event: SecretMixture) -> BoundPair:
    """Bounds in nats on what all steps reveal about the secret, relative to the run without its records.

    Example: one record of probability 0.01, sigma 1, one step: 8.38122076508e-05.
    """
    return information_about_records(event.probabilities, event.noise_multiplier, event.steps)


def information_about_records(probabilities: Sequence[float], sigma: float, steps: int) -> BoundPair:
    """Like ``information``, for records drawn with ``probabilities`` under noise of ``sigma`` clip norms."""
    law, lost = binomial_law(probabilities)
    counts = np.arange(len(law))
    if len(law) == 1 or law[0] == 1:
        return BoundPair(0.0, 0.0)
    # Counts that were cut off cost at most n^2 / (2 sigma^2) times their mass.
    cut = steps * lost * len(probabilities) ** 2 / (2 * sigma * sigma)
    side, width = 13.0, min(_SPACING, _SPACING / (1 + 1 / sigma)) * 4
    if (counts[-1] / sigma + 2 * side) / width > _MOST_POINTS:
        # p >= w_k N(k) for every k, so the divergence is E[K^2] / (2 sigma^2) minus at most the entropy of K.
        most = steps * float(law @ counts**2) / (2 * sigma * sigma)
        least = most - steps * float(entr(law).sum())
        return BoundPair(max(0.0, least * (1 - _ERROR)), most * (1 + _ERROR) + cut)
    x = np.arange(-side, counts[-1] / sigma + side, width)
    total = 0.0
    for part in np.array_split(x, max(1, len(x) * len(law) // 4_000_000)):
        exponents = part[:, None] * (counts / sigma) - (counts / sigma) ** 2 / 2
        top = np.maximum(exponents.max(1), 0.0)
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            # r - 1 has small relative error however rarely a record is drawn; computing r first would lose it.
            change = np.maximum(np.expm1(np.minimum(exponents, _LARGE)) @ law, 2.0**-53 - 1)
            log_ratio = np.log(np.exp(exponents - top[:, None]) @ law) + top
            # q (r ln r - r + 1) is never negative, so nothing cancels in the sum.
            density = np.exp(-part * part / 2)
            raised = np.exp(-part * part / 2 + log_ratio)
            near = density * _convex(change, np.log1p(change))
            value = np.where(top < _LARGE, near, raised * (log_ratio - 1) + density)
        total += float(np.maximum(value, 0.0).sum())
    nats = steps * total * float(x[1] - x[0]) / math.sqrt(2 * math.pi)
    return BoundPair(nats * (1 - _ERROR), nats * (1 + _ERROR) + cut)


def _convex(change: np.ndarray[tuple[int], np.dtype[np.float64]], logs: np.ndarray[tuple[int], np.dtype[np.float64]]
            ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:  # fmt: skip
    """The value of r ln r - r + 1 for r = 1 + change, by its series near r = 1, where the terms cancel."""
    d = change
    series = d * d * (1 / 2 - d * (1 / 6 - d * (1 / 12 - d * (1 / 20 - d * (1 / 30 - d * (1 / 42 - d / 56))))))
    return np.asarray(np.where(np.abs(d) < 0.02, series, (1 + d) * logs - d))


def relative_entropy(p: float, r: float) -> float:
    """The divergence kl(p, r) of Bernoulli distributions, in nats. Example: (0.1, 0.001) is 0.366593004807."""
    return float(rel_entr(p, r) + rel_entr(1 - p, 1 - r))


def posterior(nats: float, prior: float) -> float:
    """The largest p with kl(p, prior) at most ``nats`` (Fano). Example: 1 nat, prior 0.1: 0.689217226545."""
    if nats >= -math.log(prior):
        return 1.0
    if nats <= 0:
        return prior
    from scipy.optimize import brentq  # imported here because the import takes longer than most verifications

    return float(brentq(lambda p: relative_entropy(p, prior) - nats, prior, 1.0, xtol=1e-16, rtol=1e-13))
