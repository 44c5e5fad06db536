"""The interval of the AUC of a score that was fitted to the labels, from its ranks and moments over relabellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from verify.audits.ranks.figures import ROUNDING, Figures, share_below
from verify.audits.ranks.limits import reaches

if TYPE_CHECKING:
    from numpy.typing import NDArray


def moments(values: NDArray[np.float64], chance: float, scale: float = 1.0) -> dict[str, float]:
    """The moments that an interval follows from, of ``values`` over relabellings, moved away from ``chance``."""
    known = chance + scale * (values[~np.isnan(values)] - chance)
    middle, deviation = float(known.mean()), float(known.std())
    skewness = float(np.mean(((known - middle) / deviation) ** 3)) if deviation > 0 else 0.0
    return {
        "chance": chance, "center": middle, "deviation": deviation, "skewness": skewness, "relabellings": len(known),
    }  # fmt: skip


def limits(value: float, law: Mapping[str, float], stderr: float, alpha: float) -> tuple[float, float]:
    """The limits of an AUC, or of a difference of two, with this standard error and these moments."""
    least = 0.0 if law["chance"] else -1.0
    below, above = reaches(law, alpha / 2) if law["deviation"] > 0 else (math.inf, math.inf)
    if not stderr > 0:
        return least, 1.0
    return max(least, value - below * stderr), min(1.0, value + above * stderr)


def of_fitted(
    members: NDArray[Any], others: NDArray[Any], law: Mapping[str, float], alpha: float, *, near: float = ROUNDING
) -> Figures:
    """The AUC of ``members`` against ``others``, with its interval by the moments ``law``.

    ``near`` is the relative difference attributed to rounding.
    """
    value, stderr = float(share_below(members, others).mean()), law["deviation"] * widening(members, others)
    lower, upper = limits(value, law, stderr, alpha)
    return Figures(
        estimate=value,
        lower=lower,
        upper=upper,
        samples=(len(members), len(others)),
        details={**law, "stderr": stderr},
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
