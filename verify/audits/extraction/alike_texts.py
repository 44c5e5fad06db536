"""Comparisons with held-out records that their own controls question: similar texts, and scores without the model.

The test within blocks of similar texts of an extraction audit is recomputed from the counts of the blocks.

Multiplies binomial coefficients as exact integers where the audit convolves floating-point distributions. Standard
library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from privctl.domain.evidence import Evidence

ALIKE = ", among texts alike"
_BLOCKS = re.compile(r"blocks of ([0-9]+) and ([0-9]+), ([0-9]+) out")
#: A test of the records without the model must have at least this p-value to be disregarded.
_DOUBT = 0.2
_BASELINE, APART, _OVER = "secret baseline", "area without the model", "area by {} over that"
_HELD_OUT = ", against held-out secrets, by "
#: The most texts such a test compares, and the relative tolerance of its figures.
_MOST, _CLOSE = 2000, 1e-6


def unconfirmed(evidence: Sequence[Evidence]) -> set[tuple[str, str]]:
    """The method and quantity of each comparison that is not significant within blocks of similar texts."""
    return {
        (item.method, item.quantity.removesuffix(ALIKE))
        for item in evidence
        if item.quantity.endswith(ALIKE) and not item.details["p_value"] <= item.details["level"]
    }


def uncalled_for(evidence: Sequence[Evidence], accusing: Sequence[Evidence]) -> Iterator[str]:
    """Yields a sentence for each such test of a comparison that is not in ``accusing``; no audit makes one."""
    asked = {(item.method, item.quantity) for item in accusing}
    for item in evidence:
        if item.quantity.endswith(ALIKE) and (item.method, item.quantity.removesuffix(ALIKE)) not in asked:
            yield f"{item.method}, {item.quantity}: nothing that it could confirm was found"


def fault(item: Evidence) -> str:
    """What is wrong with such a test; "" if nothing is, and for any other ``item``."""
    if not item.quantity.endswith(ALIKE):
        return ""
    details = item.details
    blocks = [
        (*(int(part) for part in match.groups()), int(count))
        for name, count in details.items()
        if (match := _BLOCKS.fullmatch(name))
    ]
    texts = sum((train + heldout) * count for train, heldout, _, count in blocks)
    if texts > _MOST or any(
        count < 1 or min(train, heldout) < 1 or not 0 < out < train + heldout for train, heldout, out, count in blocks
    ):
        return "its blocks are none of texts alike"
    compared, in_training = int(details["compared"]), int(details["compared_training"])
    if compared != sum(out * count for _, _, out, count in blocks):
        return "its blocks do not hold as many texts that come out as it compares"
    wanted = float(_at_least(in_training, blocks))
    if not math.isclose(details["p_value"], wanted, rel_tol=_CLOSE, abs_tol=1e-12):
        return f"its p-value is {details['p_value']:.4g}, and its blocks give {wanted:.4g}"
    weight = sum(Fraction(train * heldout * count, train + heldout) for train, heldout, _, count in blocks)
    expected = sum(Fraction(out * train * count, train + heldout) for train, heldout, out, count in blocks)
    if (item.estimate is None) is not (not blocks):
        return "it has an estimate if and only if a block holds texts of both files that differ in what comes out"
    if item.estimate is not None and not math.isclose(
        item.estimate, float((in_training - expected) / weight), rel_tol=_CLOSE, abs_tol=_CLOSE
    ):
        return "its estimate is not the difference within its blocks"
    if not math.isclose(details["level"], 1 - item.confidence, rel_tol=_CLOSE):
        return f"its level is {details['level']:g}, and its confidence another"
    detected = details["p_value"] <= details["level"]
    return "" if details["detected"] == detected else "whether it found a difference is not its p-value's"


def _at_least(in_training: int, blocks: Sequence[tuple[int, ...]]) -> Fraction:
    """The fraction of assignments of sides to texts within each block that give training ``in_training`` or more.

    Computed as a product of polynomials, in which the coefficient of x^k counts the assignments that give k.
    """
    ways = [1]
    for train, heldout, out, count in blocks:
        block = [math.comb(out, k) * math.comb(train + heldout - out, train - k) for k in range(min(out, train) + 1)]
        for _ in range(count):
            more = [0] * (len(ways) + len(block) - 1)
            for i, left in enumerate(ways):
                for j, right in enumerate(block):
                    more[i + j] += left * right
            ways = more
    return Fraction(sum(ways[max(0, in_training) :]), sum(ways))


def is_doubtful(trace: Evidence, evidence: Sequence[Evidence]) -> bool:
    """Whether ``trace`` compares with held-out secrets whose records may be distinguishable without the model."""
    if _HELD_OUT not in trace.quantity:
        return False
    blind = {item.quantity: item for item in evidence if item.method == _BASELINE}
    records, score = blind.get(APART), trace.quantity.split(_HELD_OUT, 1)[1]
    if records is None or records.lower is None or records.upper is None:
        return True
    if records.lower > 0.5 or records.upper < 0.5:
        return True
    beyond = blind.get(_OVER.format(score))
    return records.details.get("p_value", 0.0) <= _DOUBT and (beyond is None or not (beyond.lower or 0.0) > 0)
