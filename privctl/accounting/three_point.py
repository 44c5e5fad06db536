"""Steps whose privacy loss is +loss, 0 or -loss, composed exactly.

One step is the pair of distributions whose loss is (+e, 0, -e) with probabilities (w A, 1 - w, w (1 - A)) under the
first, and mirrored under the second, A = 1 / (1 + exp(-e)). With w = 1 it is randomized response, the worst (e, 0)-DP
step (Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy"). After n steps the loss is
e S, where S is a sum of n independent variables in {-1, 0, 1}, and

    delta(epsilon) = sum over j > epsilon / e of P(S = j) (1 - exp(epsilon - j e)).

P is exponentially tilted so that its mean is at epsilon / e, and then computed by a Fourier transform. The terms of the
sum then have similar magnitudes, so a delta of 1e-300 is as accurate as one of 1e-3. Rounding errors are bounded, to
first order, and added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from privctl.accounting.brackets import falling_bracket
from privctl.domain.checks import at_least, fraction, probability

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

#: More steps would need transforms of more than about a million points.
MOST_STEPS = 10**9

_UNIT = 2.0**-52
#: Natural logarithm of a bound on the tilted mass outside the transform's window, which is added to the result.
_LOG_OUTSIDE = -70.0
#: exp(-_VANISHED / 2) is 0 as a float, with a margin for rounding.
_VANISHED = 1520.0


def log_delta(epsilon: float, loss: float, weight: float, steps: int) -> float:
    """An upper bound on the natural logarithm of the smallest delta, tight to about 1e-14 * steps relative.

    ``loss`` is one step's e, ``weight`` its w. -inf if ``epsilon`` is at least the largest possible loss. Raises
    ValueError for arguments out of range or more than ``MOST_STEPS`` steps.
    """
    _check(loss, weight, steps)
    at_least("epsilon", epsilon, 0)
    if weight == 0 or epsilon >= steps * loss:
        return -math.inf
    plus = weight / (1 + math.exp(-loss))
    return log_tail(epsilon, loss, (plus, 1 - weight, plus * math.exp(-loss)), steps)


def log_tail(threshold: float, spacing: float, shares: tuple[float, float, float], steps: int) -> float:
    """An upper bound on ln of the sum over j > threshold / spacing of P(S = j) (1 - exp(threshold - j spacing)).

    S is the sum of ``steps`` independent variables that are 1, 0 or -1 with the probabilities ``shares``, of which the
    first must be above 0. ``threshold`` must lie in [0, ``steps * spacing``).
    """
    tilt = _saddle(min(threshold / (steps * spacing), 1 - 0.5 / steps), *shares)
    tilted, log_moment = _tilt_shares(tilt, *shares)
    first = math.floor(threshold / spacing)
    low, masses, half_width = _masses(tilted, steps)
    index = np.arange(low, low + len(masses))
    kept = (index >= first) & (index * spacing * (1 + 4 * _UNIT) > threshold)
    index, masses = index[kept], masses[kept]
    # The gap between loss and threshold is rounded up.
    gaps = index * (spacing * (1 + 4 * _UNIT)) - threshold
    total = float(np.sum(masses * np.exp(-tilt * (index - first)) * -np.expm1(-gaps)))
    if half_width < steps:
        total += math.exp(_LOG_OUTSIDE - tilt * max(0, low + len(masses) - first))
    if total == 0:
        return -math.inf
    exponent = steps * log_moment - tilt * first
    slack = 8 * _UNIT * (steps + abs(steps * log_moment) + abs(tilt * first))
    return min(0.0, exponent + math.log(total) + slack)


def epsilon_at(delta: float, loss: float, weight: float, steps: int) -> float:
    """The smallest epsilon at ``delta``, rounded up by about 1e-12 relative; at most ``steps * loss``.

    Raises ValueError as ``log_delta`` does, and for a ``delta`` that is not between 0 and 1.
    """
    fraction("delta", delta, zero=True)
    _check(loss, weight, steps)
    if delta == 0:
        return steps * loss
    return smallest_epsilon(lambda epsilon: log_delta(epsilon, loss, weight, steps), delta, steps * loss)


def smallest_epsilon(log_delta_of: Callable[[float], float], delta: float, most: float) -> float:
    """The smallest epsilon in [0, ``most``] whose delta is at most ``delta``, rounded up; ``most`` must satisfy it."""
    target = math.log(delta)
    if (above := log_delta_of(0.0) - target) <= 0:
        return 0.0
    return falling_bracket(lambda epsilon: log_delta_of(epsilon) - target, 0.0, above, most, relative=1e-12)[1]


def _check(loss: float, weight: float, steps: int) -> None:
    at_least("loss", loss, 0)
    probability("weight", weight)
    at_least("steps", steps, 1)
    if steps > MOST_STEPS:
        raise ValueError(f"steps is {steps}; exact composition is offered up to {MOST_STEPS} steps")


def _saddle(mean: float, plus: float, zero: float, minus: float) -> float:
    """The tilt, 0 or more, that moves the mean of one variable to ``mean``, which must lie in [0, 1)."""
    root = zero * mean + math.sqrt((zero * mean) ** 2 + 4 * plus * minus * (1 - mean) * (1 + mean))
    return max(0.0, math.log(root) - math.log(2 * plus) - math.log1p(-mean)) if root > 0 else 0.0


def _tilt_shares(tilt: float, plus: float, zero: float, minus: float) -> tuple[tuple[float, float, float], float]:
    """The three probabilities after tilting, and the logarithm of the moment by which they were divided."""
    z, m = zero * math.exp(-tilt), minus * math.exp(-2 * tilt)
    scale = plus + z + m
    small = plus * math.expm1(min(tilt, 1.0)) + minus * math.expm1(-min(tilt, 1.0))
    log_moment = math.log1p(small) if tilt <= 1 else tilt + math.log(scale)
    return (plus / scale, z / scale, m / scale), log_moment


def _masses(shares: tuple[float, float, float], steps: int) -> tuple[int, Reals, int]:
    """``low``; upper bounds on P(S = low), P(S = low + 1), ... in a window around the mean; and its half width.

    By Bernstein's inequality, at most exp(``_LOG_OUTSIDE``) lies outside; mass aliased by the transform only adds.
    """
    plus, zero, minus = shares
    variance = steps * (zero * (plus + minus) + 4 * plus * minus)
    reach = -2 * _LOG_OUTSIDE / 3
    half_width = math.ceil(reach + math.sqrt(reach * reach - 2 * _LOG_OUTSIDE * variance)) + 1
    centre = round(steps * (plus - minus))
    low, high = max(-steps, centre - half_width), min(steps, centre + half_width)
    size = 1 << (high - low).bit_length()
    cosine, sine, half_squared, squared = _turns(size)
    lost = 4 * (zero * (plus + minus) * half_squared + plus * minus * squared)
    # Elsewhere the transform is (1 - lost)^(steps / 2) < exp(-steps lost / 2), which is 0 as a float.
    frequency = np.flatnonzero(steps * lost < _VANISHED)
    lost = lost[frequency]
    real, imaginary = zero + (plus + minus) * cosine[frequency], (plus - minus) * sine[frequency]
    with np.errstate(divide="ignore"):
        log_modulus = np.where(lost < 0.5, 0.5 * np.log1p(-np.minimum(lost, 0.5)), np.log(np.hypot(real, imaginary)))
    # Half turns are split off and counted exactly; otherwise their rounding errors would be multiplied by the steps.
    flipped = real < 0
    turn = np.where(flipped, np.arctan2(-imaginary, -real), np.arctan2(imaginary, real))
    phase = steps * turn - 2 * math.pi / size * (frequency * low % size) + math.pi * (steps % 2) * flipped
    modulus = np.exp(steps * log_modulus)
    transform = np.zeros(size // 2 + 1, np.complex128)
    transform[frequency] = modulus * np.exp(-1j * phase)
    masses = np.fft.irfft(transform, size)[: high - low + 1]
    with np.errstate(invalid="ignore"):
        doubt = modulus * (4 + math.log2(size) + np.abs(steps * turn) - steps * log_modulus)
    error = 8 * _UNIT / size * float(np.nansum(doubt))
    return low, np.maximum(masses, 0) + error, half_width


@lru_cache(maxsize=2)
def _turns(size: int) -> tuple[Reals, Reals, Reals, Reals]:
    """cos(x), sin(x), sin(x / 2)^2 and sin(x)^2 at the frequencies x = 2 pi k / ``size``, k = 0 ... ``size`` / 2."""
    angle = 2 * math.pi / size * np.arange(size // 2 + 1)
    sine = np.sin(angle)
    return np.cos(angle), sine, np.sin(angle / 2) ** 2, sine**2
