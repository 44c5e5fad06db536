"""Quantiles of Student's t distribution with the standard library, for whole degrees of freedom."""

from __future__ import annotations

import functools
import math

_LARGEST, _HALVINGS = 1e9, 100


@functools.lru_cache(64)  # an audit has few numbers of permutations and levels
def student_quantile(tail: float, freedom: int) -> float:
    """The value that Student's t with ``freedom`` degrees of freedom exceeds with probability ``tail``, below 1/2."""
    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - _inside(middle, freedom)) / 2 > tail else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """P(|T| <= ``t``) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, terms = (cosine if odd else 1.0), []
    for k in range(2 + odd, freedom + 1, 2):
        terms.append(term)
        term *= cosine**2 * (k - 1) / k
    total = sine * math.fsum(terms)
    return 2 / math.pi * (angle + total) if odd else total
