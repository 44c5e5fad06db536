"""Fisher's exact test by binomial coefficients summed, where the audit asks scipy. Standard library only."""

from __future__ import annotations

import math


def fisher(found: int, total: int, other_found: int, other_total: int) -> float:
    """P(so many or more of ``found + other_found`` are among the first ``total``), hypergeometric."""
    everyone, counted = total + other_total, found + other_found
    log_all = _log_choices(everyone, counted)
    terms = (
        math.exp(_log_choices(total, k) + _log_choices(other_total, counted - k) - log_all)
        for k in range(max(found, counted - other_total), min(total, counted) + 1)
    )
    return min(1.0, math.fsum(terms))


def _log_choices(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
