"""Figures of planted canaries: exposures and completions by copies, which add up to all included ones.

Standard library only, like a gate over audits; ``kept_scores`` computes the figures again where the scores are at hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport

EXPOSURE, COMPLETION, EXTRAPOLATED = "canary exposure", "canary completion", "canary exposure, extrapolated"
MEAN, MEDIAN, DISCLOSED = "mean bits, ", "median bits, ", "disclosed, "
#: The sides of a comparison, by the beginnings of their names.
SIDES = ("included", "left out")
#: What follows the beginnings: of the tests, and of figures by copies.
_TESTED = re.compile(r"included|left out \(control\)")
_BY_COPIES = re.compile("included, (1 copy|[0-9]+ copies)|left out")
_INTERVAL, _FISHER = "Clopper-Pearson", "Fisher's test with Brown's correction"
_BY_RANK = "Clopper-Pearson, by rank; at most the bits of all secrets"
_CLOSE = 1e-6
#: The confidence that a figure without an interval states.
_UNUSED = 0.95
#: The mean exposure of a secret that the model does not know, in bits: exposures are then exponential.
_EXPECTED = 1 / math.log(2)


def planted_faults(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence for each figure of planted canaries that others contradict, or that lacks an entry."""
    exposures = [item for item in report.evidence if item.method in (EXPOSURE, COMPLETION)]
    for item in exposures:
        if wrong := _rate(item) if item.method == COMPLETION else _exposure(item):
            yield f"{item.method}, {item.quantity}: {wrong}"
    for item in report.evidence:
        if item.method == EXTRAPOLATED and (wrong := _extrapolated(item)):
            yield f"{item.method}, {item.quantity}: {wrong}"
    for side in SIDES:
        yield from _totals(exposures, side)


def _extrapolated(item: Evidence) -> str:
    """What is wrong with the limits of an extrapolated exposure.

    If the secrets that the model finds as likely as the canary were a share p, none of n random ones would be among
    them with probability (1 - p)^n. The sets of references share the error.
    """
    if item.bound is not Bound.TWO_SIDED or item.interval != _BY_RANK:
        return f"no audit states limits of it by {item.interval!r}"
    missing = {"references", "sets"} - item.details.keys()
    if missing or None in (item.lower, item.estimate, item.upper):
        return f"its {min(missing, default='limit')} is missing, without which it cannot be computed again"
    references, sets, error = item.details["references"], item.details["sets"], 1 - item.confidence
    lower, estimate, upper = item.lower or 0.0, item.estimate or 0.0, item.upper or 0.0
    if not (references >= 1 and sets >= 1 and 0 < error < 1 and lower > 0):
        return "it is of no references, or at no confidence"
    if not math.isclose(-math.expm1(references * math.log1p(-(2.0**-lower))), 1 - error / sets, rel_tol=_CLOSE):
        return f"{lower:.6g} bits are not the lower limit by {references:g} references"
    if not lower - _CLOSE <= estimate <= upper + _CLOSE:
        return f"{estimate:.6g} bits do not lie between its limits"
    return ""


def _rate(item: Evidence) -> str:
    """What is wrong with the form of a rate; its interval is compared with its counts elsewhere."""
    if not _is_named(item, DISCLOSED) or item.bound is not Bound.TWO_SIDED or item.interval != _INTERVAL:
        return "no audit states such a rate of canaries"
    missing = {"disclosed", "undecided", "safe"} - item.details.keys() or {"canaries"} - item.samples.keys()
    if missing:
        return f"its {min(missing)} is missing, without which it cannot be computed again"
    counted, limits = item.samples["canaries"], (item.lower, item.estimate, item.upper)
    if (None in limits) is (counted > 0):
        return "it has limits if and only if it counts canaries"
    if sum(item.details[name] for name in ("disclosed", "undecided", "safe")) != counted:
        return f"its canaries are not {counted} in all"
    if item.details.get("chance", 0.0) != 0.0:
        return f"its chance is {item.details['chance']:g}, and no chance writes a secret greedily"
    return ""


def _is_named(item: Evidence, begins: str) -> bool:
    """Whether the quantity begins with ``begins``, and goes on as audits have it."""
    rest = _TESTED if begins == MEAN else _BY_COPIES
    return item.quantity.startswith(begins) and rest.fullmatch(item.quantity.removeprefix(begins)) is not None


def _mean_fault(count: int, details: Mapping[str, float]) -> str:
    """What is wrong with what a mean exposure of ``count`` canaries is compared with."""
    if details["detected"] not in (0.0, 1.0):
        return f"whether it found a trace is {details['detected']:g}, neither 0 nor 1"
    if not min(1, count) * (1 - _CLOSE) <= details["effective"] <= count * (1 + _CLOSE):
        return f"{count} canaries cannot tell as much as {details['effective']:.6g}"
    if not math.isclose(details["without_memorization"], _EXPECTED, rel_tol=_CLOSE):
        stated = details["without_memorization"]
        return f"without memorization it says {stated:.6g} bits, and the mean of unknown secrets is {_EXPECTED:.6g}"
    return ""


def _exposure(item: Evidence) -> str:
    mean = _is_named(item, MEAN)
    if item.bound is not Bound.NONE or not (mean or _is_named(item, MEDIAN)) or "canaries" not in item.samples:
        return "no audit states such an exposure"
    if item.interval != (_FISHER if mean else "") or (not mean and item.confidence != _UNUSED):
        return f"no audit tests an exposure by {item.interval!r} at {item.confidence:g}"
    count, details = item.samples["canaries"], item.details
    if mean:
        needed = {"p_value", "level", "detected", "effective", "without_memorization"}
    else:
        needed = {"mean", "max", "p_value_of_max", "ceiling"} if count else set()
    if missing := needed - details.keys():
        return f"its {min(missing)} is missing"
    if (item.estimate is None) is (count > 0):
        return "it has an estimate if and only if it counts canaries"
    if mean:
        return _mean_fault(count, details)
    if item.estimate is None:
        return ""
    highest = details["max"]
    if max(item.estimate, details["mean"]) > highest + _CLOSE or highest > details["ceiling"] + _CLOSE:
        return "an exposure lies above the highest, or above what there can be"
    wanted = min(1.0, count * 2.0**-highest)
    if not math.isclose(details["p_value_of_max"], wanted, rel_tol=_CLOSE):
        return f"its highest exposure has a p-value of {wanted:.4g}, and not {details['p_value_of_max']:.4g}"
    return ""


def _totals(exposures: Sequence[Evidence], side: str) -> Iterator[str]:
    """Canaries of each number of copies must add up to those of the whole side."""
    mean = next((item for item in exposures if item.quantity.startswith(MEAN + side)), None)
    if mean is None:
        return
    count = mean.samples.get("canaries", 0)
    for begins in (MEDIAN, DISCLOSED):
        parts = [item for item in exposures if item.quantity.startswith(begins + side)]
        if (total := sum(item.samples.get("canaries", 0) for item in parts)) != count:
            yield f"{EXPOSURE}, {mean.quantity}: it is of {count} canaries, and by copies {begins}{side} is of {total}"
        elif begins == MEDIAN and mean.estimate is not None:
            bits = sum(item.samples["canaries"] * item.details.get("mean", 0.0) for item in parts)
            if not math.isclose(bits, count * mean.estimate, rel_tol=_CLOSE, abs_tol=_CLOSE):
                yield f"{EXPOSURE}, {mean.quantity}: by copies the mean is {bits / count:.6g}"
