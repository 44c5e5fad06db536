"""Whether bounds from canaries, and verdicts on a mechanism, follow from their counts of correct guesses.

A bound is checked by testing values near it: slightly below it some set of guesses must reject, slightly above it none
may. The binomial probabilities are summed term by term, and the maximum in theorem 5.2 of Steinke, Nasr and Jagielski
2023 is taken over all its terms, where the audit uses the incomplete beta function and bisection. Standard library
only, except that verify's own accountant is imported to bound the curve of a mechanism if an audit tested one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import NormalDist

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.terms import BOUND, MAHLOUJIFAR, METHODS, NOISE, Counts, counts_of, of_split

#: The relative and the smallest absolute distance of the tested values from the stated one.
_RELATIVE, LEAST_STEP = 1e-6, 1e-6
#: The most canaries for which a bound is recomputed.
_MOST = 200_000
_NORMAL = NormalDist()
#: The bound on one record that one on a group of canaries gives, by its entry.
_OF_ONE = "epsilon_of_one_record_at_delta_0"
#: Part of the subject of a verdict on a mechanism.
MECHANISM = "): the mechanism stated in "
#: Relative spacing of the grid. It may be coarse, as the points only must not be below the mechanism's curve.
_GRID = 1e-3
_ROUNDING = 1e-6


def wrong_bound(item: Evidence, *, any_set: bool = False) -> str:
    """What is wrong with a bound from canaries; "" if nothing is, and for other evidence.

    With ``any_set``, the set of guesses that gives it need not be the one that the evidence names, and what it says of
    one record of a group is not looked at.
    """
    if item.method not in METHODS or item.lower is None:
        return ""
    sets = list(counts_of(item))
    if not all(0 <= right <= made <= canaries <= _MOST for canaries, made, right in sets):
        return "its numbers of canaries, guesses and right guesses are none that can be"
    share = (1 - item.confidence) / len(sets)
    if not 0 < share < 0.5:
        return f"it holds with {item.confidence:g}, which is no confidence"
    gaussian = item.method == MAHLOUJIFAR
    rejected = _gaussian_rejected if gaussian else either_rejected if item.method == BOUND else _steinke_rejected
    delta = item.details.get("delta", 0.0)

    def giving(value: float, at: float) -> set[int]:
        """How many guesses the sets have that give ``value``; empty if it is not the largest that they reject."""
        step = max(LEAST_STEP, _RELATIVE * abs(value))
        if any(rejected(counts, value + step, at, share) for counts in sets):
            return set()
        if value <= step:
            return {sets[0][1]}
        return {counts[1] for counts in sets if rejected(counts, value - step, at, share)}

    value, found = float(item.lower), ", ".join(f"{right} of {made}" for _, made, right in sets)
    if not 0 <= value < 100:
        return f"it is {value:g}, which no canaries can show"
    by = giving(value, delta)
    if not by:
        return f"a bound of {value:.6g} is not what {found} right guesses on {sets[0][0]} canaries give"
    if not any_set and item.samples["guesses"] not in by:
        return f"its {item.samples['guesses']} guesses do not give it, and {' or '.join(map(str, sorted(by)))} do"
    return "" if any_set else _of_one_fault(item, found, giving)


def _of_one_fault(item: Evidence, found: str, giving: Callable[[float, float], set[int]]) -> str:
    """What is wrong with the bound on one record that a bound on groups states; "" for a bound on records."""
    copies = item.details.get("copies", 1)
    if item.method != BOUND or copies == 1:
        return ""
    if (one := item.details.get(_OF_ONE)) is None:
        return f"it is of groups of {copies:g}, and lacks {_OF_ONE}"
    if not 0 <= one * copies < 100 or not giving(one * copies, 0.0):
        return f"its {_OF_ONE} is {one:.6g}, which {found} right guesses on groups of {copies:g} do not give"
    return ""


def curve_rejected(item: Evidence, points: Sequence[tuple[float, float]]) -> bool:
    """Whether the counts of ``item`` reject every mechanism that is (epsilon, delta)-DP at all of ``points``."""
    share = (1 - item.confidence) / item.details["sets"]

    least = trade_off_below(points)
    return any(refutes(counts, least, share) for counts in counts_of(item))


def trade_off_below(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """A lower bound on the trade-off curve of a mechanism with (epsilon, delta)-DP at each of ``points``."""
    return lambda y: max(0.0, *(max((y - d) * math.exp(-e), 1 - d - math.exp(e) * (1 - y)) for e, d in points))


def wrong_curve(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence per fault in the test of a mechanism's curve; nothing if the audit tested none."""
    mechanism, points = parameters.canary_mechanism, parameters.canary_curve
    verdict = next((verdict for verdict in report.verdicts if MECHANISM in verdict.subject), None)
    if mechanism is None or points is None:
        if verdict is not None:
            yield f"it judges {verdict.subject!r}, but does not state the curve that it tested"
        return
    if not points or not all(0 <= epsilon <= 30 and 0 <= delta <= 1 for epsilon, delta in points):
        yield "the curve that it tested has no points, or impossible ones"
        return
    from verify.recompute.ledger import bounds  # imported here because it needs more than the standard library

    exact = bounds(mechanism, None, _GRID)
    for epsilon, delta in points:
        if delta < exact.delta(epsilon).lower * (1 - _ROUNDING):
            yield f"the mechanism that it names does not have delta {delta:.6g} at epsilon {epsilon:.6g}"
            return
    tested = list(tested_bounds(report, parameters))
    if not tested and verdict is None:
        return
    if not tested or verdict is None:
        no_guesses = "it judges the mechanism of its curve, and no guesses on single records test that"
        yield no_guesses if not tested else "it tested the curve of a mechanism, but has no verdict on it"
        return
    refuted = any(curve_rejected(item, points) for item in tested) or _too_little_noise(report)
    if refuted is not (verdict.outcome is Outcome.REFUTED):
        found = "refute" if refuted else "do not refute"
        yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but its counts {found} it"
    elif verdict.outcome is Outcome.PROVED or (
        verdict.outcome is Outcome.CONSISTENT and not _could_reject(tested, points)
    ):
        yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but no number of right guesses would refute it"


def _could_reject(tested: Sequence[Evidence], points: Sequence[tuple[float, float]]) -> bool:
    """Whether the curve would be rejected if all guesses were right."""
    return any(curve_rejected(replace(item, details={**item.details, **_all_right(item)}), points) for item in tested)


def _all_right(item: Evidence) -> dict[str, float]:
    return {f"correct {i}": made for i, (_, made, _) in enumerate(counts_of(item), start=1)}


def _too_little_noise(report: PrivacyReport) -> bool:
    """Whether a bound on the noise of the stated steps, which ``noise`` checks, excludes the stated noise."""
    return any(
        item.method == NOISE and item.upper is not None and item.details["share"] <= 1 for item in report.evidence
    )


def tested_bounds(report: PrivacyReport, parameters: AuditParameters) -> Iterator[Evidence]:
    """The bounds by which curves are judged: those from canaries if there are any, otherwise those from a split."""
    bounds = list(single_record_bounds(report))
    planted = [item for item in bounds if not of_split(item, parameters)]
    yield from planted or bounds


def single_record_bounds(report: PrivacyReport) -> Iterator[Evidence]:
    """The bounds on epsilon from canaries or a split with one copy of each record."""
    for item in report.evidence:
        if item.method == BOUND and item.lower is not None and item.details.get("copies") == 1:
            yield item


def either_rejects_zero(canaries: int, guesses: int, delta: float, alpha: float) -> Callable[[int], bool]:
    """A test of whether a number of correct guesses rejects epsilon 0; the probabilities are summed only once."""
    chances = chances_of(guesses, 0.0)
    above = list(accumulate(reversed(chances)))

    def rejects(right: int) -> bool:
        found = above[guesses - right]
        if delta and right:
            below = accumulate(chances[right - 1 :: -1])
            found += 2 * canaries * delta * max(mass / i for i, mass in enumerate(below, start=1))
        return found < alpha or refutes((canaries, guesses, right), lambda y: max(0.0, y - delta), alpha)

    return rejects


def either_rejected(counts: Counts, epsilon: float, delta: float, alpha: float) -> bool:
    """Whether counts reject (epsilon, delta)-DP, by the test of Steinke et al. or by the trade-off curve."""
    if _steinke_rejected(counts, epsilon, delta, alpha):
        return True
    shrink, grow = math.exp(-epsilon), math.exp(epsilon)
    return refutes(counts, lambda y: max(0.0, (y - delta) * shrink, 1 - delta - grow * (1 - y)), alpha)


def _gaussian_rejected(counts: Counts, mu: float, _: float, alpha: float) -> bool:
    def least(y: float) -> float:
        return 0.0 if y <= 0 else 1.0 if y >= 1 else _NORMAL.cdf(_NORMAL.inv_cdf(y) - mu)

    return refutes(counts, least, alpha)


def _steinke_rejected(counts: Counts, epsilon: float, delta: float, alpha: float) -> bool:
    canaries, guesses, right = counts
    chances = chances_of(guesses, epsilon)
    found = math.fsum(chances[right:])
    if delta and right:
        below = accumulate(chances[right - 1 :: -1])
        found += 2 * canaries * delta * max(mass / i for i, mass in enumerate(below, start=1))
    return found < alpha


def chances_of(guesses: int, epsilon: float) -> list[float]:
    """P[k of ``guesses`` correct] under randomized response with ``epsilon``, for every k."""
    yes, no = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    whole = math.lgamma(guesses + 1)
    return [
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(guesses - k + 1) + k * yes + (guesses - k) * no)
        for k in range(guesses + 1)
    ]


def refutes(counts: Counts, least: Callable[[float], float], alpha: float) -> bool:
    """Whether counts reject a trade-off curve ``least``, by algorithm 3 of Mahloujifar, Melis and Chaudhuri 2024.

    From the stated number of correct guesses down, the mass of results with one correct guess fewer grows by what the
    curve forces onto the neighbours with one more miss. If the total exceeds the mass available, the curve is rejected.
    """
    canaries, guesses, right = counts
    hits, misses = alpha * right / canaries, alpha * (guesses - right) / canaries
    for missed, hit in enumerate(range(right - 1, -1, -1), start=guesses - right + 1):
        forced = least(min(1.0, hits))
        if forced <= misses:
            break
        hits, misses = hits + (forced - misses) * hit / missed, forced
        if hits + misses > guesses / canaries:
            return True
    return hits + misses > guesses / canaries
