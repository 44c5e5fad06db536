"""Recomputes lower bounds from models by one fixed threshold from their counts. Standard library only.

The Clopper-Pearson limits are found by bisection, from binomial tails that are summed term by term.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from statistics import NormalDist

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from verify.audits.ranks.bound import at_least
from verify.audits.terms import CLAIM, CLAIMED

METHOD = "fixed threshold"
_COUNTS = ("true_positives", "false_positives")
_NEAR, _MOST = 1e-6, 10_000_000
#: Constants no option changes: the confidence, and that twice the claim must be detected up to two misses of 0.1 each.
_CONFIDENCE, _VIOLATION, _MISSED = 0.95, 2, 0.1
_LARGEST_EPSILON, _LARGEST_MU = 64.0, 32.0
_NORMAL = NormalDist()


def fault(item: Evidence) -> str:
    """What is wrong with a lower bound by a fixed threshold; "" if nothing is, and for other evidence."""
    if item.method != METHOD or item.lower is None:
        return ""
    hits, errors = (int(item.details.get(name, -1)) for name in _COUNTS)
    inner, outer = item.samples.get("with", 0), item.samples.get("without", 0)
    if not (0 <= hits <= inner <= _MOST and 0 <= errors <= outer <= _MOST and inner and outer):
        return f"it counts {hits} of {inner} and {errors} of {outer}, which cannot be"
    tail = (1 - item.confidence) / 2
    if not 0 < tail < 0.5:
        return f"it holds with {item.confidence:g}, which is no confidence"
    recomputed, highest = (_bound(item, right, wrong, tail) for right, wrong in ((hits, errors), (inner, 0)))
    if recomputed is None:
        return "it bounds nothing that is known here"
    if not math.isclose(item.lower, recomputed, rel_tol=_NEAR, abs_tol=_NEAR):
        return f"its bound is {item.lower:.6g}, but its counts give {recomputed:.6g}"
    ceiling = item.details.get("ceiling")
    if ceiling is None or highest is None or math.isclose(ceiling, highest, rel_tol=_NEAR, abs_tol=_NEAR):
        return ""
    return f"its ceiling is {ceiling:.6g}, but so many models give {highest:.6g}"


def _bound(item: Evidence, hits: int, errors: int, tail: float) -> float | None:
    """The lower bound of ``item`` from counts at the threshold; None if its quantity is unknown."""
    inner, outer = item.samples["with"], item.samples["without"]
    least, most = _lower_limit(hits, inner, tail), 1 - _lower_limit(outer - errors, outer, tail)
    if item.quantity.startswith("epsilon lower bound") and "delta" in item.details:
        return _epsilon(least, most, item.details["delta"])
    if item.quantity.startswith("lower bound on mu"):
        return min(_LARGEST_MU, _NORMAL.inv_cdf(least) - _NORMAL.inv_cdf(most)) if least > most else 0.0
    return None


def wrong_claims(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence for each verdict on an (epsilon, delta) claim that the counts at the threshold contradict."""
    bound = next((item for item in report.evidence if item.method == METHOD and "delta" in item.details), None)
    if bound is None or fault(bound):
        return  # reported by another check
    if not math.isclose(bound.confidence, _CONFIDENCE):
        yield f"{METHOD}: it holds with {bound.confidence:g}, and such a bound with {_CONFIDENCE:g}"
    hits, errors = (int(bound.details[name]) for name in _COUNTS)
    sizes, tail = (bound.samples["with"], bound.samples["without"]), (1 - bound.confidence) / 2
    for verdict in report.verdicts:
        if (stated := CLAIM.match(verdict.subject)) is None:
            continue
        epsilon, delta = float(stated[1]), float(stated[2])
        recomputed = _certified(hits, errors, sizes, tail, delta)
        refuted = verdict.outcome is Outcome.REFUTED
        if math.isclose(epsilon, recomputed, rel_tol=CLAIMED, abs_tol=CLAIMED):
            continue
        if refuted is not (recomputed > epsilon):
            how = "refute" if recomputed > epsilon else "do not refute"
            yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but its counts {how} that"
        elif verdict.outcome is Outcome.CONSISTENT and not _would_notice(sizes, tail, epsilon, delta):
            yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but so few models would not notice more"


def _certified(hits: int, errors: int, sizes: tuple[int, int], tail: float, delta: float) -> float:
    """The bound on epsilon at ``delta`` from these counts."""
    least, most = _lower_limit(hits, sizes[0], tail), 1 - _lower_limit(sizes[1] - errors, sizes[1], tail)
    return _epsilon(least, most, delta)


def _would_notice(sizes: tuple[int, int], tail: float, claim: float, delta: float) -> bool:
    """Whether randomized response with twice the ``claim`` refutes it with probability 0.8, by the best threshold.

    Each count is taken at the value it misses with half of the remaining probability.
    """
    rate = 1 / (1 + math.exp(-_VIOLATION * claim * (1 + CLAIMED) - CLAIMED))
    hits, errors = _quantile(_MISSED, sizes[0], rate), _quantile(1 - _MISSED, sizes[1], 1 - rate)
    return _certified(hits, errors, sizes, tail, delta) > claim * (1 - CLAIMED)


def _quantile(share: float, trials: int, rate: float) -> int:
    """The least count that is not exceeded with probability at least ``share``."""
    return bisect_left(range(trials), True, key=lambda count: at_least(count + 1, trials, rate) <= 1 - share)


def _epsilon(least: float, most: float, delta: float) -> float:
    """The smallest epsilon with TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta."""
    ratios = [((least - delta), most), ((1 - most - delta), 1 - least)]
    epsilons = [math.log(above / below) for above, below in ratios if above > 0 and below > 0]
    return min(_LARGEST_EPSILON, max(0.0, *epsilons)) if epsilons else 0.0


def _lower_limit(hits: int, total: int, tail: float) -> float:
    """The rate at which ``hits`` or more have probability ``tail``; 0 for no hits.

    The search stays below the observed rate, where the tail is accurate and increases with the rate.
    """
    if not hits:
        return 0.0
    low, high = 0.0, hits / total
    for _ in range(100):
        middle = (low + high) / 2
        if at_least(hits, total, middle) > tail:
            high = middle
        else:
            low = middle
    return (low + high) / 2
