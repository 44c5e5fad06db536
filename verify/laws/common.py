"""Distribution functions and quantiles of common laws, by ``scipy.special``.

``scipy.stats`` has them too, and importing it takes longer than most verifications.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import (
    betaincc,
    betainccinv,
    betaincinv,
    chdtr,
    chdtrc,
    gammainccinv,
    gammaincinv,
    ndtr,
    ndtri,
    smirnov,
    stdtrit,
)


def normal_below(x: Any) -> Any:
    """P(X <= x) of a standard normal X."""
    return ndtr(x)


def normal_quantile(tail: Any) -> Any:
    """The number that a standard normal exceeds with probability ``tail``."""
    return -ndtri(tail)


def student_quantile(tail: float, freedom: float) -> float:
    """The number that Student's t with ``freedom`` degrees exceeds with probability ``tail``."""
    return -float(stdtrit(freedom, tail))


def chi_square_tails(x: float, freedom: float) -> tuple[float, float]:
    """P(X <= x) and P(X > x) of a chi-square X with ``freedom`` degrees."""
    return float(chdtr(freedom, x)), float(chdtrc(freedom, x))


def chi_square_quantiles(tail: float, freedom: float) -> tuple[float, float]:
    """The numbers that a chi-square falls below, and exceeds, with probability ``tail`` each."""
    return 2 * float(gammaincinv(freedom / 2, tail)), 2 * float(gammainccinv(freedom / 2, tail))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The number that a beta law falls below with probability ``share``."""
    return float(betaincinv(a, b, share))


def beta_upper_quantile(tail: float, a: float, b: float) -> float:
    """The number that a beta law exceeds with probability ``tail``."""
    return float(betainccinv(a, b, tail))


def binomial_below(count: int, trials: int, rate: float) -> float:
    """P(X <= count) of the number X of successes in ``trials``."""
    return 1.0 if count >= trials else float(betaincc(count + 1, trials - count, rate))


def kolmogorov_tail(distance: float, count: int) -> float:
    """The probability that Kolmogorov's distance of ``count`` numbers exceeds ``distance``, at most.

    Twice the exact one of the one-sided distance: where it is below 0.01 it is too large by less than 1e-6 of itself
    (Simard and L'Ecuyer, Journal of Statistical Software 39(11), 2011).
    """
    return float(np.minimum(1.0, 2 * smirnov(count, distance)))
