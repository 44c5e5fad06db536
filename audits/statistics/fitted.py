"""The interval of the AUC of a score that is fitted to the labels of the records it judges, by cross-fitting.

Errors of cross-fitted scores are correlated, so DeLong's standard error is too small. Relabelling and fitting again
shows the deviation that fitting adds, but only where nothing tells members from non-members. If members are of two
kinds, some like no non-member, the AUC varies more: with 30 groups of members and 300 others, an interval at 95 % by
the deviation over relabellings alone missed the AUC of the fitted score on other records in 39 of 400 data sets, and
this one in 21. So that deviation is multiplied by the ratio of DeLong's standard error to the one that scores have
under relabelling, if DeLong's is larger. What is estimated is the AUC on other records of the score as it was fitted
(LeDell, Petersen and van der Laan 2015).

A deviation over few relabellings is itself uncertain. With 49 of them, normal limits at 99.8 % miss a normal variable
0.33 % of the time, so the limits of the fused score are Student's. Its AUC is also a little skewed, which they do not
allow for: without a difference, even limits by its exact deviation missed 0.34 to 0.54 % of relabellings (16,000 or
8,000 of 120 to 2,000 records, with 4 or 10 scores).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scipy.special import ndtri, stdtrit

from audits.statistics.laws import mean_ranks
from audits.statistics.metrics import auc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The names of the interval with normal limits, and with Student's.
WIDENED = "normal, standard deviation over relabellings, widened if DeLong's is larger"
STUDENT = "Student's t, standard deviation over relabellings, widened if DeLong's is larger"


def widened(scores: NDArray[Any], member: NDArray[np.bool_], deviation: float) -> float:
    """The standard error of the AUC of fitted ``scores`` [records] with this ``deviation`` over relabellings."""
    members, others = int(member.sum()), int((~member).sum())
    delong = auc(scores[member], scores[~member]).stderr
    fixed = math.sqrt(float(mean_ranks(scores).var(ddof=1)) / (members * others * len(scores)))
    return deviation * max(1.0, delong / fixed) if fixed > 0 and not math.isnan(delong) else deviation


def interval(value: float, stderr: float, confidence: float, relabellings: int | None = None) -> tuple[float, float]:
    """The limits of an AUC ``value`` with this standard error; 0 and 1 if it is 0.

    They are Student's if the standard error is a multiple of the root mean square deviation of so many ``relabellings``
    from their mean.
    """
    if not stderr > 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    if relabellings is None:
        critical = -float(ndtri(tail))
    else:
        critical = -float(stdtrit(relabellings - 1, tail)) * math.sqrt(relabellings / (relabellings - 1))
    reach = critical * stderr
    return max(0.0, value - reach), min(1.0, value + reach)
