"""The sample size an audit would need, extrapolated from a smaller one: advice, so rounded to two digits."""

from __future__ import annotations

from privctl.domain.evidence import Evidence

#: Role of a sample -> the noun for its records.
_NOUNS = {
    "members": "members", "nonmembers": "non-members", "training": "training texts", "held_out": "held-out texts",
    "canaries": "canaries", "texts": "texts",
}  # fmt: skip


def times_for_area(seen: float, wanted: float) -> float:
    """The factor by which the sample must grow to detect an AUC of ``wanted`` if it detects ``seen``; both above 1/2.

    The distance from 1/2 that an audit detects falls as one over the square root of the sample.
    """
    return ((seen - 0.5) / (wanted - 0.5)) ** 2


def times_for_share(seen: float, wanted: float, *, none: bool) -> float:
    """The same for a proportion. It falls as 1 / n if the count was zero (``none``), else as 1 / sqrt(n)."""
    return seen / wanted if none else (seen / wanted) ** 2


def times_for_bound(estimate: float, upper: float, limit: float) -> float | None:
    """The factor by which the sample must grow for an upper bound of ``limit``, if the estimate stays.

    None if no sample is large enough, because the estimate is not below the limit.
    """
    if not estimate < limit:
        return None
    return (upper / limit) if estimate <= 0 else ((upper - estimate) / (limit - estimate)) ** 2


def needed_sample(item: Evidence, times: float, *, grouped: bool = False) -> str:
    """``times`` the sample of ``item``, as "about 1,200 members and 1,200 non-members"; empty if it states none.

    If ``grouped``, the numbers count groups of members and of non-members.
    """
    unit = "groups of " if grouped else ""
    counts = [(rounded(times * count), unit + _NOUNS.get(role, role)) for role, count in item.samples.items() if count]
    return f"about {' and '.join(f'{count:,} {noun}' for count, noun in counts)}" if counts else ""


def rounded(count: float) -> int:
    """``count`` to two significant digits."""
    return round(float(f"{count:.2g}"))
