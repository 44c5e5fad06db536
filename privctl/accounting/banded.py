"""Banded Toeplitz factorizations of prefix sums: noise correlated over steps, so that sums of steps have less noise.

A is the lower triangular matrix of ones, which sums the steps of a training run; C is a banded lower triangular
Toeplitz matrix. Noise C^-1 Z on the steps is noise A C^-1 Z on their sums. Choquette-Choo et al. 2023, "(Amplified)
Banded Matrix Factorization", section 4; McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism for
Differentially Private ML", section 3.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from privctl.accounting.poisson_binomial import Floats
from privctl.domain.ranges import BANDS

#: Coefficients are optimized for at most this many steps; beyond that they hardly change.
_MOST = 1 << 12
#: The smallest ratio of a coefficient to the one before.
_LEAST = 1e-3


def prefix_error(coefficients: tuple[float, ...], steps: int) -> float:
    """Root mean square of the noise's standard deviation over the ``steps`` prefix sums, for Z of variance 1.

    It is the Frobenius norm of A C^-1 over sqrt(steps). For ``coefficients`` (1,), independent noise, it is
    sqrt((steps + 1) / 2).
    """
    column = _first_column(np.asarray(coefficients, dtype=np.float64), steps)
    return math.sqrt(float(_frequencies(steps) @ column**2))


@lru_cache(maxsize=64)
def banded_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """The ``bands`` coefficients, of norm at most 1, that minimize ``prefix_error``.

    The search starts from the series of (1 - x)^(-1/2) truncated to ``bands`` terms; untruncated, it is optimal up to a
    constant (Fichtenberger, Henzinger and Upadhyay 2023). Raises ValueError for bands below 1 or above ``steps``.

    Example: 2 bands and 64 steps give (0.8082, 0.5889).
    """
    if not 1 <= bands <= steps:
        raise ValueError(f"bands is {bands}; it must lie between 1 and the number of steps, {steps}")
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize  # here, as importing it takes longer than most commands' accounting

    lags = np.arange(1, bands)
    solution = minimize(
        _log_error,
        (2 * lags - 1) / (2 * lags),
        args=(min(steps, _MOST),),
        jac=True,
        method="L-BFGS-B",
        bounds=[(_LEAST, 1.0)] * (bands - 1),
        options={"maxiter": 100, "ftol": 1e-10},
    )
    best = _coefficients(solution.x)
    return _norm_at_most_one(best / np.linalg.norm(best))


def most_bands(sample_rate: float, steps: int) -> int:
    """The largest number of bands for which each part of the data holds an expected batch and is reached by a step."""
    whole = int(1 / sample_rate * (1 + 1e-9)) if sample_rate > 1e-9 else steps
    return max(1, min(whole, steps, int(BANDS.high)))


def require_bands(bands: int, sample_rate: float, steps: int) -> None:
    """Raise ValueError if ``bands`` exceeds ``most_bands``."""
    if bands > (most := most_bands(sample_rate, steps)):
        raise ValueError(
            f"bands is {bands}; at a sampling rate of {sample_rate:g} and {steps} steps it must be at most {most}, as "
            "each of that many parts of the data must hold a whole batch and be reached by a step"
        )


def _norm_at_most_one(values: Floats) -> tuple[float, ...]:
    """``values``, of norm about 1, scaled down by multiples of 2^-53 until the exact sum of squares is at most 1."""
    scale = 1.0
    while True:
        shrunk = tuple(float(value) for value in values * scale)
        if sum(Fraction(value) ** 2 for value in shrunk) <= 1:
            return shrunk
        scale -= 2.0**-53


def _frequencies(steps: int) -> Floats:
    """The fraction of the rows of A C^-1 in which each entry of its first column occurs."""
    return np.asarray(1 - np.arange(steps) / steps)


def _first_column(coefficients: Floats, steps: int) -> Floats:
    """The first column of A C^-1, which is Toeplitz: the power series of 1 / ((1 - x) c(x))."""
    return _divided(np.ones(steps), coefficients)


def _divided(series: Floats, by: Floats) -> Floats:
    """The quotient of two power series, with as many terms as ``series``."""
    from scipy.signal import lfilter  # here, as importing it takes longer than most commands' accounting

    return np.asarray(lfilter([1.0], by, series))


def _coefficients(ratios: Floats) -> Floats:
    """Coefficients that begin with 1, each the one before times its ratio.

    With ratios of at most 1 the series of 1 / c(x) stays bounded: no root of c lies within the unit circle (Enestrom
    and Kakeya), so the search only meets finite numbers.
    """
    return np.cumprod(np.append(1.0, ratios))


def _log_error(ratios: Floats, steps: int) -> tuple[float, Floats]:
    """Logarithm of the squared error times the squared norm, and its gradient."""
    values = _coefficients(ratios)
    column = _first_column(values, steps)
    weighted = _frequencies(steps) * column
    error, norm = float(weighted @ column), float(values @ values)
    # A change of coefficient i changes the column by -x^i / ((1 - x) c(x)^2).
    twice = _divided(column, values)
    slopes = np.array([-float(weighted[i:] @ twice[: steps - i]) for i in range(1, len(values))])
    slopes = 2 * (slopes / error + values[1:] / norm)
    # A ratio affects all coefficients from its own on.
    cumulated = np.cumsum((slopes * values[1:])[::-1])[::-1]
    return math.log(error) + math.log(norm), np.asarray(cumulated / ratios)
