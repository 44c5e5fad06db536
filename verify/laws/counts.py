"""Binomial, hypergeometric and gamma tails, summed term by term where the audit calls scipy. Standard library only."""

from __future__ import annotations

import math
from statistics import NormalDist

#: The relative tolerance of a tail.
_TAIL = 1e-4
#: From this shape on, the cube root of a gamma variable counts as normal (Wilson and Hilferty 1931).
_SHAPE = 100_000.0


def at_most(most: int, total: int, chance: float) -> float:
    """P(Binomial(total, chance) <= most), summed from ``most`` away from the mean."""
    if not 0 < chance < 1:
        return 1.0 if chance <= 0 or most >= total else 0.0
    below = most < total * chance
    first = most if below else most + 1
    if not 0 <= first <= total:
        return float(not below)
    term = math.exp(_log_choices(total, first) + first * math.log(chance) + (total - first) * math.log1p(-chance))
    found, odds = term, chance / (1 - chance)
    for k in range(first, 0, -1) if below else range(first, total):
        term *= k / ((total - k + 1) * odds) if below else (total - k) * odds / (k + 1)
        found += term
        if term <= 1e-18 * found:
            break
    return found if below else 1 - found


def is_limit(chance: float, most: int, total: int, wanted: float, *, at_end: bool, end: float) -> bool:
    """Whether ``chance`` is a limit of a Clopper-Pearson interval: P(X <= ``most``) is ``wanted`` (up to 1e-4 of it).

    X is binomial with ``total`` trials. A limit that counts put ``at_end`` of the range is ``end``.
    """
    if at_end:
        return chance == end
    below = at_most(most, total, chance)
    return abs(below - wanted) <= _TAIL * min(wanted, 1 - wanted) + 1e-12


def fisher(found: int, total: int, other_found: int, other_total: int) -> float:
    """One-sided Fisher's exact test: P(at least ``found`` of all ``found + other_found`` are in the first group)."""
    everyone, counted = total + other_total, found + other_found
    log_all = _log_choices(everyone, counted)
    terms = (
        math.exp(_log_choices(total, k) + _log_choices(other_total, counted - k) - log_all)
        for k in range(max(found, counted - other_total), min(total, counted) + 1)
    )
    return min(1.0, math.fsum(terms))


def gamma_beyond(shape: float, least: float) -> float:
    """P(Gamma(shape) >= ``least``), from one minus a series; relative error within 1e-4 for tails from 1e-9 on.

    ``gamma_beyond(2, 3)`` is 4 / e^3, .199148.
    """
    if least <= 0:
        return 1.0
    if shape > _SHAPE:
        return NormalDist().cdf(3 * math.sqrt(shape) * (1 - 1 / (9 * shape) - (least / shape) ** (1 / 3)))
    term = math.exp(shape * math.log(least) - least - math.lgamma(shape + 1))
    found, k = term, shape
    while term > 1e-18 * found:
        k += 1
        term *= least / k
        found += term
    return max(0.0, 1 - found)


def _log_choices(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
