"""Distribution functions and quantiles of common distributions, by ``scipy.special``.

``scipy.stats`` has them too, but importing it takes longer than most verifications.
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
    """P(X <= x) for a standard normal X."""
    return ndtr(x)


def normal_quantile(tail: Any) -> Any:
    """The value that a standard normal variable exceeds with probability ``tail``."""
    return -ndtri(tail)


def student_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t with ``freedom`` degrees of freedom exceeds with probability ``tail``."""
    return -float(stdtrit(freedom, tail))


def chi_square_tails(x: float, freedom: float) -> tuple[float, float]:
    """P(X <= x) and P(X > x) for a chi-squared X with ``freedom`` degrees of freedom."""
    return float(chdtr(freedom, x)), float(chdtrc(freedom, x))


def chi_square_quantiles(tail: float, freedom: float) -> tuple[float, float]:
    """The values that a chi-squared variable falls below and exceeds, with probability ``tail`` each."""
    return 2 * float(gammaincinv(freedom / 2, tail)), 2 * float(gammainccinv(freedom / 2, tail))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The value that a Beta(a, b) variable falls below with probability ``share``."""
    return float(betaincinv(a, b, share))


def beta_upper_quantile(tail: float, a: float, b: float) -> float:
    """The value that a Beta(a, b) variable exceeds with probability ``tail``."""
    return float(betainccinv(a, b, tail))


def binomial_below(count: int, trials: int, rate: float) -> float:
    """P(X <= count) for a binomial X with ``trials`` trials of success probability ``rate``."""
    return 1.0 if count >= trials else float(betaincc(count + 1, trials - count, rate))


def kolmogorov_tail(distance: float, count: int) -> float:
    """An upper bound on the probability that the Kolmogorov distance of ``count`` numbers exceeds ``distance``.

    Twice the exact probability for the one-sided distance. Below 0.01, its relative error is less than 1e-6 (Simard and
    L'Ecuyer, Journal of Statistical Software 39(11), 2011).
    """
    return float(np.minimum(1.0, 2 * smirnov(count, distance)))
