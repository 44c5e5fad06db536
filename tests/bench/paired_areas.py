"""By how much one of two AUCs of the same records is above the other."""

from __future__ import annotations

import math
from typing import Any


def area_difference(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[float, float, dict[str, float]]:
    """The difference of the AUCs of ``first`` and ``second`` (members', non-members' scores), its error and interval.

    The interval (95 %) is DeLong's for pairs. Where that has no standard error (NaN), it combines those of both areas.
    """
    from audits.statistics.metrics import auc
    from audits.statistics.paired import auc_difference

    difference, stderr = auc_difference(*first, *second)
    if math.isnan(stderr):
        ours, theirs = (auc(*sides, 0.025) for sides in (first, second))
        return difference, stderr, {"lower": ours.lower - theirs.upper, "upper": ours.upper - theirs.lower}
    half = 1.959963984540054 * stderr
    return difference, stderr, {"lower": max(-1.0, difference - half), "upper": min(1.0, difference + half)}
