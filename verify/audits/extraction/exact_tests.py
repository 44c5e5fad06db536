"""Exact tests of an extraction audit: p-values against their counts, and the number of records that would decide.

Sums binomial coefficients where the audit calls scipy. Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privctl.domain.evidence import Evidence
from verify.audits.extraction import known_elsewhere
from verify.audits.reach import chance_to_decide, least_by_fisher
from verify.audits.terms import BEYOND
from verify.laws.counts import at_most, fisher

#: Attacks whose prompts are not prefixes of the record. Those in OUTSIDE compare equal numbers of texts of both sides.
FROM_FILE, DIVERGENCE, CONTROL = "prompts from a file", "divergence", "divergence control"
OUTSIDE = (FROM_FILE, DIVERGENCE, CONTROL)
SEARCHES = ("adversarial prefix", *OUTSIDE)
COST = "queries for one training text"
OVER_CONTROL = "prompts that give training text, beyond the control"
GRID = "share found by sampling beyond held-out text, over n and p"
_POINT = re.compile(r"(training|held out) p=([0-9.]+) n=([0-9]+)")
_LEAST_RATE, _MOST, _CLOSE = 0.01, 100_000, 1e-6
#: The power with which a number of records decides, and how precisely it is computed here.
_POWER, _NEAR = 0.8, 1e-7


def fault(item: Evidence, *, by_coins: bool = False) -> str:
    """What is wrong with a test of ``item``, or with the number of records it says it needs; "" if nothing is.

    ``by_coins`` is whether coins assigned the sides, so that all comparable texts are compared by Fisher's test.
    """
    if item.quantity in BEYOND and not known_elsewhere.compares_nothing(item):
        if item.method in SEARCHES:
            return _fisher_fault(item, ("training", "held_out"), equal=not by_coins)
        if wrong := _sides_fault(item, by_coins=by_coins):
            return wrong
    if item.method == DIVERGENCE and item.quantity == OVER_CONTROL:
        return _fisher_fault(item, ("repeating", "control"))
    if item.method in OUTSIDE and item.quantity == COST:
        return _cost(item)
    if item.method != "extraction":
        return ""
    if item.quantity in BEYOND and "needed" in item.details:
        return _needed(item)
    if item.quantity == GRID and "p_value" in item.details:
        return _grid(item)
    return ""


def _sides_fault(item: Evidence, *, by_coins: bool) -> str:
    """What is wrong with the comparison after the records' own prefixes, whose test depends on how sides were drawn."""
    if item.method != "extraction" or item.estimate is None:
        return ""
    if by_coins is not ("p_value" in item.details):
        return "it is compared as sides that coins decided about, or not, against what the audit says of its sides"
    return _fisher_fault(item, ("training", "held_out"), equal=False) if by_coins else ""


def miscounted(item: Evidence, settings: Mapping[str, Any]) -> str:
    """What is wrong if a comparison leaves out more texts as shared than both files have by ``settings``."""
    both = settings.get("windows_in_both_files")
    if item.method != "extraction" or item.quantity not in BEYOND or both is None:
        return ""
    if item.details.get("in_both", 0) > both:
        return f"{item.details['in_both']:g} texts are left out as those of both files, and only {both} are in both"
    if item.details.get("repeated") and not both:
        return "texts that repeat are left out, and no text of both files says why"
    return ""


def refutes(item: Evidence) -> bool:
    """Whether a test of ``item`` shows that training text is extracted more often than held-out text."""
    if item.quantity != GRID and not (item.method in (*SEARCHES, "extraction") and item.quantity in BEYOND):
        return False
    return item.details.get("p_value", 1.0) <= item.details.get("level", 0.0)


def why_inconclusive(item: Evidence | None) -> str:
    """Why the comparison ``item`` cannot show that nothing is extractable; "" if it can."""
    if item is None or (item.lower is None and "p_value" not in item.details):
        return "nothing is compared with held-out text"
    if item.details.get("repeated_extracted"):
        return "training texts that repeat come out, and are not compared"
    if known_elsewhere.reference_is_suspect(item.details):
        return "the reference model gives more training text than held-out text, and may have been trained on that"
    if not item.details.get("detectable", 1.0) <= _LEAST_RATE:
        return f"a share of {_LEAST_RATE:g} would not have been noticed"
    return ""


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
    if details.get("cuts", len(cuts)) != len(cuts):
        return f"its counts are of {len(cuts)} distinct cuts, and it states {details['cuts']:g}"
    wanted = min(1.0, max(1, len(cuts)) * least)
    if not math.isclose(details["p_value"], wanted, rel_tol=_CLOSE, abs_tol=1e-12):
        return f"its p-value is {details['p_value']:.4g}, and its counts give {wanted:.4g}"
    best = max(a / train - b / others for a, b in points.values())
    if item.estimate is None or not math.isclose(item.estimate, best, abs_tol=_CLOSE):
        return f"its counts differ by {best:.4g}, not by its estimate"
    return _level(item) or _reach(item, train, others, len(cuts), min(b for _, b in points.values()))


def _reach(item: Evidence, train: int, others: int, cuts: int, fewest: int) -> str:
    """What is wrong with the smallest share that Fisher's test detects at the level of each distinct cut.

    It is detected at the point where the ``fewest`` of ``others`` are found. Tests within blocks of similar texts
    state none.
    """
    if "cuts" not in item.details:
        return ""
    least = least_by_fisher(train, fewest, others, item.details["level"] / max(1, cuts))
    if math.isclose(item.details.get("detectable", math.inf), least, rel_tol=1e-4, abs_tol=1e-4):
        return ""
    return f"the least share that it would have seen is {least:.4g} by its counts, and it states another"


def contradictions(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yields one sentence per contradiction between the figures of an attack with prompts from outside."""
    for method in OUTSIDE:
        by_quantity = {item.quantity: item.details for item in evidence if item.method == method}
        exact, near = (by_quantity.get(name, {}) for name in BEYOND)
        cost, rate = by_quantity.get(COST, {}), by_quantity.get("rate on training text", {})
        for side in ("training", "held_out"):
            if exact.get(f"{side}_extracted", 0) > near.get(f"{side}_extracted", math.inf):
                yield f"{method}: more of its {side} texts come out word for word than nearly so"
        if exact.get("training_extracted", 0) > rate.get("extracted", math.inf):
            yield f"{method}: more of its training texts are compared than come out"
        if bool(cost.get("giving", 0)) is not bool(rate.get("extracted", cost.get("giving", 0))):
            yield f"{method}: its queries give training text if and only if some comes out"
        if bool(rate.get("extracted", 0)) is not bool(rate.get("longest_tokens", rate.get("extracted", 0))):
            yield f"{method}: its longest stretch is not that of texts that come out"


def _cost(item: Evidence) -> str:
    """What is wrong with the queries per training text: the inverse of a rate, and of the limits of its interval."""
    queries, giving = (int(item.details.get(name, -1)) for name in ("queries", "giving"))
    if not 0 <= giving <= queries or not 0 < queries <= 100_000_000 or item.lower is None:
        return "it does not say how many queries give training text"
    if (item.estimate is None) is not (giving == 0) or (item.upper is None) is not (giving == 0):
        return f"{giving} of its {queries} queries give training text, and its estimate says otherwise"
    if item.estimate is not None and not math.isclose(item.estimate, queries / giving, rel_tol=_CLOSE):
        return f"its estimate is {item.estimate:.6g}, and {giving} of {queries} queries give training text"
    tail = (1 - item.confidence) / 2
    fits = giving == queries if item.lower == 1 else _is_tail(at_most(giving, queries, 1 / item.lower), tail)
    if item.upper is not None:
        fits = fits and _is_tail(1 - at_most(giving - 1, queries, 1 / item.upper), tail)
    return "" if fits else f"its interval is not that of {giving} of {queries} queries"


def _is_tail(chance: float, tail: float) -> bool:
    return math.isclose(chance, tail, rel_tol=1e-4, abs_tol=1e-12)


def _fisher_fault(item: Evidence, sides: tuple[str, str], *, equal: bool = True) -> str:
    """What is wrong with Fisher's test of two sides; undecided texts are counted against a difference.

    With ``equal``, attacks with prompts from outside must compare equal numbers of both sides.
    """
    try:
        (train, ours, least), (others, theirs, most) = (
            [int(item.details[f"{side}_{name}"]) for name in ("texts", "extracted", sure)]
            for side, sure in zip(sides, ("least", "most"), strict=True)
        )
        stated = item.details["p_value"]
    except KeyError as missing:
        return f"its {missing.args[0]} is missing"
    if not (0 <= least <= ours <= train > 0 and 0 <= theirs <= most <= others > 0):
        return "its counts contradict each other"
    known = "known_training" in item.details  # texts left out as known may leave unequal numbers
    if equal and item.method in OUTSIDE and train != others and not known:
        return f"it compares {train} with {others}, and such a search takes as many of each"
    wanted = fisher(least, train, most, others)
    if not math.isclose(stated, wanted, rel_tol=_CLOSE, abs_tol=1e-12):
        return f"its p-value is {stated:.4g}, and its counts give {wanted:.4g}"
    if item.estimate is None or not math.isclose(item.estimate, ours / train - theirs / others, abs_tol=_CLOSE):
        return "its estimate is not the difference of its counts"
    return _level(item)


def _points(details: Mapping[str, float]) -> dict[tuple[float, int], tuple[int, int]]:
    """The counts of both sides by (p, n); empty if the sides state different points."""
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
    return "" if item.details.get("detected", 0.0) == detected else "whether it found a difference is not its p-value's"


def _needed(item: Evidence) -> str:
    """What is wrong with the number of records needed: they must decide with power 0.8, and one fewer must not.

    As the power does not rise steadily, an audit looks for such a number between the first power of two that decides
    and the one before it, which must not decide either.
    """
    details, tail = item.details, (1 - item.confidence) / 4
    train, others = int(details["training_texts"]), int(details["held_out_texts"])
    texts = int(details["needed"])
    if min(train, others) < 1 or not 1 <= texts <= _MOST:
        return f"{details['needed']:g} records are not a number that would decide"
    ours, theirs = details["training_extracted"] / train, details["held_out_extracted"] / others
    goal = ours if ours > theirs else theirs + _LEAST_RATE
    if goal > 1:
        return f"nearly all held-out text comes out, so {texts} records would not decide"

    before = (1 << (texts - 1).bit_length()) // 2
    decide = chance_to_decide(texts, goal, theirs, tail) >= _POWER - _NEAR
    if decide and all(chance_to_decide(count, goal, theirs, tail) < _POWER + _NEAR for count in {before, texts - 1}):
        return ""
    return f"its counts do not say that {texts} records of each file would decide"
