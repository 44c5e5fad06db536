"""(n, p)-discoverable extraction in closed form.

Hayes et al. 2024, "Measuring memorization in language models via probabilistic extraction". A text that one query
produces with probability p_z is among n independent ones with probability 1 - (1 - p_z)^n. The p_z of fifty tokens is
easily too small for a float, so everything is computed in logarithms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Below this, e^x nearly underflows, and -log(1 - e^x) equals e^x to the last digit.
_TINY = -700.0


def log_success(logp: NDArray[Any], queries: float) -> NDArray[Any]:
    """The log-probability that at least one of ``queries`` produces the text; ``logp`` is that of one query (nats).

    ``exp(log_success(log(.01), 100))`` is 0.633968.
    """
    hazard = np.log(queries) + _log_hazard(np.asarray(logp, dtype=np.float64))
    with np.errstate(over="ignore", divide="ignore"):
        large = np.log(-np.expm1(-np.exp(np.maximum(hazard, _TINY))))
    return np.asarray(np.where(hazard < _TINY, hazard, large))


def log_queries(logp: NDArray[Any], probability: float) -> NDArray[Any]:
    """The log of the (real) number of queries that produce the text with ``probability``; inf if no number does.

    ``log_queries(-50, .5)`` is 49.633487.
    """
    return np.asarray(math.log(-math.log1p(-probability)) - _log_hazard(np.asarray(logp, dtype=np.float64)))


def least_queries(logp: float, probability: float) -> int | None:
    """The smallest n that makes a text (n, ``probability``)-discoverable; None if it overflows a float.

    ``least_queries(log(.01), .5)`` is 69.
    """
    exponent = float(log_queries(np.array(logp), probability))
    if exponent > 700:
        return None
    n = max(1, math.ceil(math.exp(exponent)))
    # Rounding may have pushed an exact integer up to the next one.
    enough = n > 1 and -math.expm1((n - 1) * _log_miss(logp)) >= probability * (1 - 1e-15)
    return n - 1 if enough else n


def _log_hazard(logp: NDArray[np.float64]) -> NDArray[Any]:
    """log(-log(1 - p_z)); -inf for probability 0, inf for 1."""
    x = np.clip(logp, _TINY, 0.0)
    with np.errstate(divide="ignore"):
        miss = np.where(x < -math.log(2), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))
        return np.asarray(np.where(logp < _TINY, logp, np.log(-miss)))


def _log_miss(logp: float) -> float:
    """log(1 - p_z)."""
    return -math.exp(float(_log_hazard(np.array(logp))))
