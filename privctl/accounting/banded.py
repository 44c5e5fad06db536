"""Banded Toeplitz factors of the prefix sum: the noise of steps, correlated so that sums of them hold less of it.

A is the lower triangular matrix of ones, which adds up the steps of a training; C a banded lower triangular Toeplitz
matrix. Noise C^-1 Z on the steps is A C^-1 Z on their sums. Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
Factorization", section 4; McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism for Differentially
Private ML", section 3.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from privctl.accounting.poisson_binomial import Floats
from privctl.domain.ranges import BANDS

#: Coefficients are chosen for so many steps at most: beyond, they hardly change, and the error is only a goal.
_MOST = 1 << 12
#: Each coefficient is at least this share of the one before.
_LEAST = 1e-3


def prefix_error(coefficients: tuple[float, ...], steps: int) -> float:
    """Root mean square, over ``steps`` prefix sums, of their noise's standard deviation, for Z of variance 1.

    It is the Frobenius norm of A C^-1 over sqrt(steps). For ``coefficients`` (1,), independent noise, it is
    sqrt((steps + 1) / 2).
    """
    row = _first_column(np.asarray(coefficients, dtype=np.float64), steps)
    return math.sqrt(float(_shares(steps) @ row**2))


@lru_cache(maxsize=64)
def banded_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """The coefficients, of norm 1 at most, that make ``prefix_error`` least for so many ``bands``.

    The search starts from the series of (1 - x)^(-1/2), cut off after ``bands`` terms, whose uncut form is optimal up
    to a constant (Fichtenberger, Henzinger and Upadhyay 2023). Raises ValueError for bands below 1 or above ``steps``.

    Example: 2 bands and 64 steps give (0.8082, 0.5889).
    """
    if not 1 <= bands <= steps:
        raise ValueError(f"bands is {bands}; it must lie between 1 and the number of steps, {steps}")
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize  # here, as importing it takes longer than most commands' accounting

    places = np.arange(1, bands)
    found = minimize(
        _log_error,
        (2 * places - 1) / (2 * places),
        args=(min(steps, _MOST),),
        jac=True,
        method="L-BFGS-B",
        bounds=[(_LEAST, 1.0)] * (bands - 1),
        options={"maxiter": 100, "ftol": 1e-10},
    )
    best = _falling(found.x)
    return _within_one(best / np.linalg.norm(best))


def most_bands(sample_rate: float, steps: int) -> int:
    """The most bands at which each part of the data still holds a whole expected batch, and that the steps fill."""
    whole = int(1 / sample_rate * (1 + 1e-9)) if sample_rate > 1e-9 else steps
    return max(1, min(whole, steps, int(BANDS.high)))


def require_bands(bands: int, sample_rate: float, steps: int) -> None:
    """Raise ValueError for more ``bands`` than ``most_bands``."""
    if bands > (most := most_bands(sample_rate, steps)):
        raise ValueError(
            f"bands is {bands}; at a sampling rate of {sample_rate:g} and {steps} steps it must be {most} at most, as "
            "each of so many parts of the data must hold a whole batch, and the steps reach each"
        )


def _within_one(values: Floats) -> tuple[float, ...]:
    """``values``, of norm about 1, shrunk by rounding errors until the sum of their exact squares is 1 at most."""
    scale = 1.0
    while True:
        shrunk = tuple(float(value) for value in values * scale)
        if sum(Fraction(value) ** 2 for value in shrunk) <= 1:
            return shrunk
        scale -= 2.0**-53


def _shares(steps: int) -> Floats:
    """In what share of the rows of A C^-1 each entry of its first column stands."""
    return np.asarray(1 - np.arange(steps) / steps)


def _first_column(coefficients: Floats, steps: int) -> Floats:
    """Of A C^-1, which is Toeplitz: the series of 1 / ((1 - x) c(x))."""
    return _divided(np.ones(steps), coefficients)


def _divided(series: Floats, by: Floats) -> Floats:
    """The first terms of the quotient of two power series, as many as ``series`` has."""
    from scipy.signal import lfilter  # here, as importing it takes longer than most commands' accounting

    return np.asarray(lfilter([1.0], by, series))


def _falling(ratios: Floats) -> Floats:
    """Coefficients from 1 on, each the one before times its ratio.

    With ratios of 1 at most the series of 1 / c(x) stays bounded: no root of c lies within the unit circle (Enestrom
    and Kakeya), so the search meets no number that is not finite.
    """
    return np.cumprod(np.append(1.0, ratios))


def _log_error(ratios: Floats, steps: int) -> tuple[float, Floats]:
    """Log of the squared error times the squared norm, with its gradient."""
    values = _falling(ratios)
    column = _first_column(values, steps)
    weighted = _shares(steps) * column
    error, norm = float(weighted @ column), float(values @ values)
    # A change of coefficient i changes the column by -x^i / ((1 - x) c(x)^2).
    twice = _divided(column, values)
    slopes = np.array([-float(weighted[i:] @ twice[: steps - i]) for i in range(1, len(values))])
    slopes = 2 * (slopes / error + values[1:] / norm)
    # A change of a ratio changes all coefficients from there on.
    onwards = np.cumsum((slopes * values[1:])[::-1])[::-1]
    return math.log(error) + math.log(norm), np.asarray(onwards / ratios)
