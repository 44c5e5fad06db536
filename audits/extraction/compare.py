"""The comparison used for every search: Fisher's exact test of training text against held-out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from audits.extraction.counts import UncertainCount
from audits.statistics.metrics import CLOPPER_PEARSON
from audits.statistics.two_rates import FISHER, detectable_share, fisher
from privctl.domain.evidence import Bound, Evidence

#: The reason given if there is nothing to compare.
NOT_BOTH = "a comparison needs texts of both files"


def beyond(
    method: str,
    quantity: str,
    ours: UncertainCount,
    theirs: UncertainCount,
    confidence: float,
    sides: tuple[str, str] = ("training", "held_out"),
) -> Evidence:
    """Whether more of ``ours`` than of ``theirs`` come out; ``sides`` are their names.

    Undecided texts count against a difference.
    """
    level = 1 - confidence
    counts: dict[str, float] = {
        f"{sides[0]}_texts": ours.total,
        f"{sides[0]}_extracted": ours.extracted,
        f"{sides[0]}_least": ours.least,
        f"{sides[1]}_texts": theirs.total,
        f"{sides[1]}_extracted": theirs.extracted,
        f"{sides[1]}_most": theirs.most,
    }
    samples = dict(zip(sides, (ours.total, theirs.total), strict=True))
    if not (ours.total and theirs.total):
        return Evidence(
            method=method, quantity=quantity, estimate=None, confidence=confidence, samples=samples,
            details={**counts, "chance": 0.0}, reason=NOT_BOTH,
        )  # fmt: skip
    p_value = fisher(ours.least, ours.total, theirs.most, theirs.total)
    reach = detectable_share(ours.total, theirs.total, level, theirs.most)
    return Evidence(
        method=method,
        quantity=quantity,
        estimate=ours.extracted / ours.total - theirs.extracted / theirs.total,
        confidence=confidence,
        bound=Bound.NONE,
        interval=FISHER,
        samples=samples,
        details={
            **counts,
            "p_value": p_value,
            "level": level,
            "detected": float(p_value <= level),
            "chance": 0.0,
            **({} if reach is None else {"detectable": reach}),
        },
    )


def known_details(left_out: Sequence[int] | None) -> dict[str, float]:
    """The numbers of texts of each side left out because a reference model also reproduces them; empty for None."""
    return {} if left_out is None else dict(zip(("known_training", "known_held_out"), left_out, strict=True))


def accuses(item: Evidence) -> bool:
    """Whether training text comes out significantly more often, by the test or, without one, by the interval."""
    if "detected" in item.details:
        return bool(item.details["detected"])
    return item.lower is not None and item.lower > 0


def rate(
    method: str,
    side: str,
    count: UncertainCount,
    confidence: float,
    samples: Mapping[str, int],
    details: Mapping[str, float],
) -> Evidence:
    """The rate at which texts of one ``side`` come out, with its interval."""
    lower, upper = count.interval(1 - confidence)
    return Evidence(
        method=method,
        quantity=f"rate on {side} text",
        estimate=count.extracted / count.total,
        lower=lower,
        upper=upper,
        confidence=confidence,
        interval=CLOPPER_PEARSON,
        samples=samples,
        details={"texts": count.total, "extracted": count.extracted, **details},
    )
