"""Whether a rate is larger in one group of records than in another, by Fisher's exact test.

Fisher 1935. Given the total count, the assignment of records to sides is a uniform draw under the null hypothesis, so
the count on the first side is hypergeometric.
"""

from __future__ import annotations

from bisect import bisect_left

from scipy.special import betaincinv

from audits.statistics.laws import hypergeometric
from audits.statistics.power import POWER

FISHER = "Fisher's exact test, one-sided"


def fisher(found: int, total: int, other_found: int, other_total: int) -> float:
    """The one-sided p-value of ``found`` of ``total`` against ``other_found`` of ``other_total``, for a larger rate.

    3 of 4 against 1 of 4 (the lady tasting tea) is 17/70, .242857.
    """
    least, law = hypergeometric(total + other_total, found + other_found, total)
    return min(1.0, float(law[max(0, found - least) :].sum()))


def detectable_share(total: int, other_total: int, level: float, other_found: int) -> float | None:
    """The least true rate of ``total`` in excess of the others' that ``fisher`` detects with power ``POWER``.

    The others have ``other_found`` of ``other_total``. None if even all of ``total`` would not reach ``level``.
    """

    def found(count: int) -> bool:
        return fisher(count, total, other_found, other_total) <= level

    fewest = 1 + bisect_left(range(1, total + 1), True, key=found)
    if fewest > total:
        return None
    return max(0.0, float(betaincinv(fewest, total - fewest + 1, POWER)) - other_found / other_total)
