"""The sample size an audit would need, extrapolated from a smaller one: advice, so rounded up to two digits."""

from __future__ import annotations

import math
from statistics import NormalDist

from privctl.domain.evidence import Evidence

#: Role of a sample -> the noun for its records.
_NOUNS = {
    "members": "members", "nonmembers": "non-members", "training": "training texts", "held_out": "held-out texts",
    "canaries": "canaries", "texts": "texts",
}  # fmt: skip
#: The probability of detection that detectable effects refer to.
_POWER = 0.8
#: Added to a share that depends on a few whole counts, which makes it fall in jumps.
_JUMPS = 1.05


def times_for_area(seen: float, wanted: float, members: int, nonmembers: int) -> float:
    """The factor by which the sample must grow to detect an AUC of ``wanted`` if it detects ``seen``; both above 1/2.

    The distance from 1/2 that an audit detects is a critical value plus a quantile of the AUC's deviation (Hanley and
    McNeil 1982). Both fall as one over the square root of the sample, but the deviation is larger at ``wanted``.
    """
    near, far = (_deviation(area, members, nonmembers) for area in (seen, wanted))
    return ((seen - 0.5 + NormalDist().inv_cdf(_POWER) * (far - near)) / (wanted - 0.5)) ** 2


def _deviation(area: float, members: int, nonmembers: int) -> float:
    """The standard deviation of an AUC of exponential scores, from the same formula as the detectable AUC."""
    both = (members - 1) * (area / (2 - area) - area**2) + (nonmembers - 1) * (2 * area**2 / (1 + area) - area**2)
    return math.sqrt((area * (1 - area) + both) / (members * nonmembers))


def times_for_share(seen: float, wanted: float, *, none: bool) -> float:
    """The same for a proportion. It falls as 1 / sqrt(n), but faster if the count was zero (``none``)."""
    return _JUMPS * _times_for_none(seen, wanted) if none else (seen / wanted) ** 2


def times_for_bound(estimate: float, upper: float, limit: float) -> float | None:
    """The factor by which the sample must grow for an upper bound of ``limit``, if the estimate stays.

    None if no sample is large enough, because the estimate is not below the limit.
    """
    if not estimate < limit:
        return None
    return _times_for_none(upper, limit) if estimate <= 0 else ((upper - estimate) / (limit - estimate)) ** 2


def _times_for_none(seen: float, wanted: float) -> float:
    """The factor for a share of which none was found: (1 - share)^n is the probability of that."""
    return math.log1p(-seen) / math.log1p(-wanted) if max(seen, wanted) < 1 else seen / wanted


def needed_sample(item: Evidence, times: float, *, grouped: bool = False) -> str:
    """``times`` the sample of ``item``, as "about 1,200 members and 1,200 non-members"; empty if it states none.

    If ``grouped``, the numbers count groups of members and of non-members.
    """
    unit = "groups of " if grouped else ""
    counts = [(rounded(times * count), unit + _NOUNS.get(role, role)) for role, count in item.samples.items() if count]
    return f"about {' and '.join(f'{count:,} {noun}' for count, noun in counts)}" if counts else ""


def rounded(count: float) -> int:
    """``count`` to two significant digits, upwards: with fewer, the audit would again be too small."""
    digit = 10 ** max(0, math.floor(math.log10(count)) - 1) if count >= 1 else 1
    return math.ceil(count / digit - 1e-9) * digit
