"""Corrections for having tried several things."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979).

    Rejecting where one is at most alpha errs anywhere with probability at most alpha, however the tests depend on each
    other. ``holm([0.01, 0.04, 0.03])`` is [0.03, 0.06, 0.06].
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError("a p-value lies outside 0 to 1")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
