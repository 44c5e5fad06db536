"""Exact tests of an extraction audit: p-values with the counts that they come from, and how many records would decide.

Binomial coefficients summed, where the audit asks scipy. Standard library only, like ``verify.audit_consistency``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from privctl.domain.evidence import Evidence
from verify.reach import least_beyond

#: The comparisons, and the share that a decision goes down to.
_BEYOND = ("rate beyond held-out text", "near-verbatim rate beyond held-out text")
_PREFIXES = ("adversarial prefix", "rate beyond held-out text")
GRID = "share found by sampling beyond held-out text, over n and p"
_POINT = re.compile(r"(training|held out) p=([0-9.]+) n=([0-9]+)")
_LEAST_RATE, _MOST, _CLOSE = 0.01, 100_000, 1e-6


def fault(item: Evidence) -> str:
    """What is wrong with a test of ``item``, or with the number of records it asks for; empty where nothing is."""
    if (item.method, item.quantity) == _PREFIXES:
        return _prefixes(item)
    if item.method != "extraction":
        return ""
    if item.quantity in _BEYOND and "needed" in item.details:
        return _needed(item)
    if item.quantity == GRID and "p_value" in item.details:
        return _grid(item)
    return ""


def refutes(item: Evidence) -> bool:
    """Whether a test of ``item`` says that training text comes out more often than held-out text."""
    if item.quantity != GRID and (item.method, item.quantity) != _PREFIXES:
        return False
    return item.details.get("p_value", 1.0) <= item.details.get("level", 0.0)


def fisher(found: int, total: int, other_found: int, other_total: int) -> float:
    """P(so many or more of ``found + other_found`` are among the first ``total``), hypergeometric."""
    everyone, counted = total + other_total, found + other_found
    log_all = _log_choices(everyone, counted)
    terms = (
        math.exp(_log_choices(total, k) + _log_choices(other_total, counted - k) - log_all)
        for k in range(max(found, counted - other_total), min(total, counted) + 1)
    )
    return min(1.0, math.fsum(terms))


def _log_choices(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _grid(item: Evidence) -> str:
    details = item.details
    train, others = (int(details.get(f"{side}_texts", 0)) for side in ("training", "held_out"))
    if min(train, others) < 1:
        return "it does not say how many texts it compares"
    points = _points(details)
    if not points:
        return "its counts are missing"
    for (p, n), pair in points.items():
        wrong = [side for side, most in zip(pair, (train, others), strict=True) if not 0 <= side <= most]
        if wrong:
            return f"it counts {wrong[0]} at n={n}, p={p:g}, which is more than it compares"
        later = [points[key] for key in points if key[0] <= p and key[1] >= n]
        if any(a < pair[0] or b < pair[1] for a, b in later):
            return f"more texts are found at n={n}, p={p:g} than with more queries or less certainty"
    cuts = {a + b for a, b in points.values()} - {0, train + others}
    least = min((fisher(a, train, b, others) for a, b in points.values() if a + b in cuts), default=1.0)
    wanted = min(1.0, max(1, len(cuts)) * least)
    if not math.isclose(details["p_value"], wanted, rel_tol=_CLOSE, abs_tol=1e-12):
        return f"its p-value is {details['p_value']:.4g}, and its counts give {wanted:.4g}"
    best = max(a / train - b / others for a, b in points.values())
    if item.estimate is None or not math.isclose(item.estimate, best, abs_tol=_CLOSE):
        return f"its counts differ by {best:.4g}, not by its estimate"
    return _level(item)


def _prefixes(item: Evidence) -> str:
    """Undecided texts count against a difference."""
    try:
        (train, ours, least), (others, theirs, most) = (
            [int(item.details[f"{side}_{name}"]) for name in ("texts", "extracted", sure)]
            for side, sure in (("training", "least"), ("held_out", "most"))
        )
        stated = item.details["p_value"]
    except KeyError as missing:
        return f"its {missing.args[0]} is missing"
    if not (0 <= least <= ours <= train > 0 and 0 <= theirs <= most <= others > 0):
        return "its counts contradict each other"
    wanted = fisher(least, train, most, others)
    if not math.isclose(stated, wanted, rel_tol=_CLOSE, abs_tol=1e-12):
        return f"its p-value is {stated:.4g}, and its counts give {wanted:.4g}"
    if item.estimate is None or not math.isclose(item.estimate, ours / train - theirs / others, abs_tol=_CLOSE):
        return "its estimate is not the difference of its counts"
    return _level(item)


def _points(details: Mapping[str, float]) -> dict[tuple[float, int], tuple[int, int]]:
    """Counts of both sides at each (p, n) that both state."""
    sides: dict[str, dict[tuple[float, int], int]] = {"training": {}, "held out": {}}
    for name, count in details.items():
        if match := _POINT.fullmatch(name):
            sides[match[1]][float(match[2]), int(match[3])] = int(count)
    ours, theirs = sides["training"], sides["held out"]
    return {point: (ours[point], theirs[point]) for point in ours} if ours.keys() == theirs.keys() else {}


def _level(item: Evidence) -> str:
    level = item.details.get("level", 1.0)
    if not math.isclose(level, 1 - item.confidence, rel_tol=_CLOSE):
        return f"its level is {level:g}, and its confidence another"
    detected = item.details["p_value"] <= level
    return (
        "" if bool(item.details.get("detected")) is detected else "whether it found a difference is not its p-value's"
    )


def _needed(item: Evidence) -> str:
    """Whether so many records would decide, and a quarter of them would not; what rounding does lies between."""
    details, tail = item.details, (1 - item.confidence) / 4
    train, others = int(details["training_texts"]), int(details["held_out_texts"])
    texts = int(details["needed"])
    if min(train, others) < 1 or not 1 <= texts <= _MOST:
        return f"{details['needed']:g} records are not a number that would decide"
    ours, theirs = details["training_extracted"] / train, details["held_out_extracted"] / others
    goal = ours if ours > theirs else theirs + _LEAST_RATE

    def decides(count: int) -> bool:
        found = math.ceil(count * theirs - 1e-9)
        return least_beyond(count, found, count, tail) + found / count <= goal * (1 + _CLOSE)

    if decides(texts) and (texts < 8 or not decides(texts // 4)):
        return ""
    return f"its counts do not say that {texts} records of each file would decide"
