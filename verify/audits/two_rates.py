"""Recomputes the interval of a difference of two rates from their counts. Standard library only.

The Clopper-Pearson limits of each rate are found by bisection, with a quarter of the error in each tail. The interval
of the difference follows from the limits of the two rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from privctl.domain.evidence import Evidence
from verify.laws.counts import at_most

_KEYS = ("training_texts", "training_extracted", "held_out_texts", "held_out_extracted")
_HALVINGS, _CLOSE = 60, 1e-6
#: Larger counts, and more undecided texts, are not supported.
_MOST, _UNSURE = 100_000_000, 1000


def fault(item: Evidence, evidence: Sequence[Evidence]) -> str:
    """What is wrong with the difference ``item`` and its interval, given the undecided texts in ``evidence``."""
    train, successes, others, other_found = (int(item.details[key]) for key in _KEYS)
    if not (0 <= successes <= train <= _MOST and 0 <= other_found <= others <= _MOST):
        return f"it counts {successes} of {train} and {other_found} of {others}, which cannot be"
    if item.estimate is None or item.lower is None or item.upper is None or not (train and others):
        return ""
    difference = successes / train - other_found / others
    if not math.isclose(item.estimate, difference, abs_tol=_CLOSE):
        return f"its counts differ by {difference:.6g}, not by its estimate"
    tail = (1 - item.confidence) / 4
    unsure = {
        side: min(_UNSURE, *(int(item.details.get("undecided", 0)) for item in evidence if item.quantity == name))
        for side, name in (("train", "rate on training text"), ("others", "rate on held-out text"))
        if any(item.quantity == name for item in evidence)
    }
    lows = [
        _lower(successes, train, tail) - _upper(other_found + more, others, tail)
        for more in range(min(unsure.get("others", 0), others - other_found) + 1)
    ]
    highs = [
        _upper(successes + more, train, tail) - _lower(other_found, others, tail)
        for more in range(min(unsure.get("train", 0), train - successes) + 1)
    ]
    for end, stated, ends in (("lower", item.lower, lows), ("upper", item.upper, highs)):
        if not any(math.isclose(stated, end, abs_tol=_CLOSE) for end in ends):
            return f"its {end} limit is {stated:.6g}, and its counts give {ends[0]:.6g}"
    return ""


def _lower(successes: int, total: int, tail: float) -> float:
    """The Clopper-Pearson lower limit: the rate at which P(at least ``successes``) is ``tail``; 0 for none."""
    if not successes:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 - at_most(successes - 1, total, middle) > tail else (middle, high)
    return (low + high) / 2


def _upper(successes: int, total: int, tail: float) -> float:
    return 1 - _lower(total - successes, total, tail)
