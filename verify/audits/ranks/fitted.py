"""The interval of the AUC of a score that was fitted to the labels, from its ranks and deviation over relabellings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from verify.audits.ranks.figures import ROUNDING, Figures, share_below
from verify.audits.terms import STUDENT, WIDENED
from verify.laws.common import normal_quantile, student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray


def of_fitted(
    members: NDArray[Any],
    others: NDArray[Any],
    deviation: float,
    alpha: float,
    called: str,
    *,
    relabellings: int = 0,
    near: float = ROUNDING,
) -> Figures:
    """The AUC of ``members`` against ``others``, with the interval named ``called``.

    ``deviation`` is that over so many ``relabellings``, which the interval may depend on. ``near`` is the relative
    difference attributed to rounding. Older audits used the deviation alone, and normal limits.
    """
    above = share_below(members, others)
    details = {"chance": 0.5, "deviation": deviation}
    stderr, critical = deviation, float(normal_quantile(alpha / 2))
    if called in (WIDENED, STUDENT):
        stderr = details["stderr"] = deviation * widening(members, others)
    if called == STUDENT and relabellings > 1:
        details["relabellings"] = relabellings
        critical = student_quantile(alpha / 2, relabellings - 1) * math.sqrt(relabellings / (relabellings - 1))
    value, reach = float(above.mean()), critical * stderr
    return Figures(
        estimate=value,
        lower=max(0.0, value - reach) if reach > 0 else 0.0,
        upper=min(1.0, value + reach) if reach > 0 else 1.0,
        samples=(len(members), len(others)),
        details=details,
        near=near,
    )


def widening(members: NDArray[Any], others: NDArray[Any]) -> float:
    """DeLong's standard error in units of that of the same scores under relabelling, at least 1.

    The latter has the variance of a rank sum with ties (Lehmann 1975), computed from the counts of equal scores.
    """
    m, n = len(members), len(others)
    if min(m, n) < 2:
        return 1.0
    ties = np.unique(np.concatenate([members, others]), return_counts=True)[1].astype(np.float64)
    fixed = (m + n + 1 - float((ties**3 - ties).sum()) / ((m + n) * (m + n - 1))) / (12 * m * n)
    sides = share_below(members, others), share_below(others, members)
    delong = sum(float(side.var(ddof=1)) / len(side) for side in sides)
    return max(1.0, math.sqrt(delong / fixed)) if fixed > ROUNDING**2 else 1.0
