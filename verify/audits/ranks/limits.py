"""Whether an interval by the deviation over relabellings is that of its estimate. Standard library only."""

from __future__ import annotations

import math
from statistics import NormalDist

from privctl.domain.evidence import Evidence
from verify.audits.terms import RELABELLED, STUDENT, WIDENED
from verify.laws.student import student_quantile

#: The intervals by the deviation over relabellings.
OVER_RELABELLINGS = (RELABELLED, WIDENED, STUDENT)
#: The numbers of the fused score's relabellings: at most, at least, and of labels in total.
_DRAWN, _LEAST, _LABELS = 199, 49, 5_000_000
_ROUNDING = 1e-6


def wrong_limits(item: Evidence, limits: tuple[float, float, float], least: float) -> str:
    """What is wrong with the ``limits`` of ``item``, its estimate among them; none is below ``least``."""
    low, value, high = limits
    deviation = item.details.get("deviation")
    if deviation is None or deviation < 0:
        return "the deviation of its interval is missing"
    if item.interval != RELABELLED:
        deviation, least_error = item.details.get("stderr", -1.0), deviation
        if not deviation >= least_error * (1 - _ROUNDING):
            return "its standard error is missing, or below its deviation over relabellings"
    critical = NormalDist().inv_cdf((1 + item.confidence) / 2)
    if item.interval == STUDENT:
        drawn, records = item.details.get("relabellings"), sum(item.samples.values())
        count = max(_LEAST, min(_DRAWN, _LABELS // max(1, records)))
        if drawn != count:
            return "its number of relabellings is not that of an audit of so many records"
        critical = student_quantile((1 - item.confidence) / 2, count - 1) * math.sqrt(count / (count - 1))
    reach = critical * deviation
    ends = (max(least, value - reach), min(1.0, value + reach)) if deviation else (least, 1.0)
    fits = math.isclose(low, ends[0], abs_tol=_ROUNDING) and math.isclose(high, ends[1], abs_tol=_ROUNDING)
    return "" if fits else "its interval is not its estimate's and its deviation's"
