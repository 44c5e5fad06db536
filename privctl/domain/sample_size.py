"""How large a sample would do, from what a smaller one showed: for advice, so in two digits and words."""

from __future__ import annotations

from privctl.domain.evidence import Evidence

#: Whose number is meant -> what such records are called.
_CALLED = {
    "members": "members", "nonmembers": "non-members", "training": "training texts", "held_out": "held-out texts",
    "canaries": "canaries", "texts": "texts",
}  # fmt: skip


def times_for_area(seen: float, wanted: float) -> float:
    """How many times the sample must be to see the AUC ``wanted`` where it sees ``seen``; both lie above 1/2.

    The distance from 1/2 that an audit detects falls as one over the square root of the sample.
    """
    return ((seen - 0.5) / (wanted - 0.5)) ** 2


def times_for_share(seen: float, wanted: float, *, none: bool) -> float:
    """The same for a share: as one over the sample where ``none`` came out by chance, else over its square root."""
    return seen / wanted if none else (seen / wanted) ** 2


def times_for_bound(estimate: float, upper: float, limit: float) -> float | None:
    """How many times the sample must be for an upper bound of ``limit``, if the estimate stays; None if none does."""
    if not estimate < limit:
        return None
    return (upper / limit) if estimate <= 0 else ((upper - estimate) / (limit - estimate)) ** 2


def in_words(item: Evidence, times: float, *, grouped: bool = False) -> str:
    """``times`` the sample of ``item``, as "about 1,200 members and 1,200 non-members"; empty where it states none.

    Where it is ``grouped``, these are groups of members and of non-members.
    """
    of = "groups of " if grouped else ""
    counts = [(rounded(times * count), of + _CALLED.get(name, name)) for name, count in item.samples.items() if count]
    return f"about {' and '.join(f'{count:,} {called}' for count, called in counts)}" if counts else ""


def rounded(count: float) -> int:
    """``count`` to two significant digits."""
    return round(float(f"{count:.2g}"))
