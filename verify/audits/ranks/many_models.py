"""Checks rank tests on many models: which ranks were tested, what they can show, and the verdict on a claim.

The number of models determines the ranks, the largest epsilon they can certify, and the effects they detect with the
stated power. These and the p-value of a claim determine the verdict on it. Standard library only, like
``verify.audits.consistency``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from verify.audits.ranks.bound import METHOD, ROUNDING, PowerCurve, approximate, gaussian, p_value
from verify.audits.split.groups import is_about_claim
from verify.texts.warnings.of_scores import SWAPPED

#: Constants no option changes: the part of a level left after ties, the total level, and the power.
CERTAIN, ALPHA, _POWER = 0.95, 0.05, 0.8
_DELTA, _VIOLATION = 1e-5, 2
#: Ranks as fractions of a side, with their fractions of alpha; the tail rank gets the rest of the side's half.
_PARTS = ((0.03, 0.1), (0.25, 0.13))
#: The largest parameters at which power is computed.
_MOST_EPSILON, _MOST_MU = 40.0, 16.0
#: Smaller p-values count as equal.
_TINY = 1e-9
_NEAR, _SIDES = 1e-9, ("with", "without")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedTest:
    """One test of an audit: ``rank`` of ``ranked`` models and some of ``counted`` others lie beyond its threshold.

    ``from_without`` is whether the models without the record set the threshold; ``share`` is its fraction of alpha.
    """

    rank: int
    ranked: int
    counted: int
    from_without: bool
    share: float

    def p_value(self, beyond: int, curve: PowerCurve) -> float:
        """The probability of ``beyond`` or more beyond the threshold if ``curve`` is the true one."""
        return p_value(self.rank, self.ranked, beyond, self.counted, curve)


@lru_cache(maxsize=64)
def tests_of(inner: int, outer: int) -> tuple[SizedTest, ...]:
    """The tests for ``inner`` models with the record and ``outer`` without it."""
    tests = []
    for from_without, ranked, counted in ((True, outer, inner), (False, inner, outer)):
        tail = min(ranked - 1, max(1, round(math.sqrt(ranked) / 6)))
        parts = [(int(part * ranked), share) for part, share in _PARTS if int(part * ranked) > 2 * tail]
        for rank, share in [(tail, 0.5 - sum(share for _, share in parts)), *parts]:
            tests.append(
                SizedTest(rank=rank, ranked=ranked, counted=counted, from_without=from_without, share=CERTAIN * share)
            )
    return tuple(tests)


def is_largest_rejected(value: float, tests: Sequence[tuple[SizedTest, int]], curve: PowerCurve) -> bool:
    """Whether ``value``, with power curve ``curve``, is the largest parameter that the tests reject by their counts."""
    least = min(test.p_value(beyond, curve) / (ALPHA * test.share) for test, beyond in tests)
    return least >= 1 - ROUNDING and (value == 0 or least <= 1 + ROUNDING)


def claim_p_value(tests: Sequence[tuple[SizedTest, int]], epsilon: float, delta: float) -> float:
    """The p-value of a claim of (``epsilon``, ``delta``)-DP by all tests."""
    curve = approximate(epsilon, delta)
    return min(1.0, *(test.p_value(beyond, curve) / test.share for test, beyond in tests))


def same_p_value(stated: float, recomputed: float) -> bool:
    """Whether the two differ only by rounding."""
    return math.isclose(stated, recomputed, rel_tol=ROUNDING) or max(stated, recomputed) < _TINY


def delta_of(asked: AskedAudit) -> float:
    """The delta of the bound on epsilon."""
    if asked.delta is not None:
        return asked.delta
    return asked.claims[0][1] if asked.claims else _DELTA


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each entry that does not follow from the numbers of models and the counts."""
    items, asked = [item for item in report.evidence if item.method == METHOD], parameters.asked
    if not items or asked is None:
        return  # reported by another check
    if asked.threshold is not None:
        yield f"{METHOD}: one threshold was asked for, and it judges by ranks"
    if len({tuple(sorted(item.samples.items())) for item in items}) > 1 or items[0].samples.keys() != set(_SIDES):
        yield f"{METHOD}: its figures are not all of the same models"
        return
    sizes = items[0].samples["with"], items[0].samples["without"]
    if min(sizes) < 2:
        yield f"{METHOD}: a bound takes 2 models a side, and it has {min(sizes)}"
        return
    for item in items:
        wrong = (
            _bound_faults(item, sizes, asked) if item.lower is not None else _claim_faults(item, sizes, asked, items)
        )
        yield from (f"{METHOD}, {item.quantity}: {fault}" for fault in wrong)
    yield from _verdict_faults(report, items, asked)


def _bound_faults(item: Evidence, sizes: tuple[int, int], asked: AskedAudit) -> Iterator[str]:
    if not math.isclose(item.confidence, 1 - ALPHA):
        yield f"it holds with {item.confidence:g}, and such a bound with {1 - ALPHA:g}"
    tests, details = tests_of(*sizes), item.details
    if not any(_is_of(item, test) for test in tests):
        yield f"no test of {sizes[0]} models with the record and {sizes[1]} without has its rank and its share"
    if details.get("tests") != len(tests):
        yield f"so many models have {len(tests)} tests, and it tells of {details.get('tests', 'none')}"
    if "delta" in details:
        if details["delta"] != delta_of(asked):
            yield f"it is at delta {details['delta']:g}, and {delta_of(asked):g} was asked for"
        yield from _size_faults(item, sizes, details["delta"], 0.0)


def _is_of(item: Evidence, test: SizedTest) -> bool:
    """Whether ``item`` is by this test."""
    details = item.details
    return (
        (details["rank"], details["ranked"], details["counted"]) == (test.rank, test.ranked, test.counted)
        and math.isclose(details["share"], test.share, rel_tol=_NEAR)
        and details.get("threshold_from_without") == test.from_without
    )


def _size_faults(item: Evidence, sizes: tuple[int, int], delta: float, claim: float) -> Iterator[str]:
    """Checks the ceiling, and the detectable epsilons of randomized response and Gaussian noise against ``claim``."""
    details = item.details
    if details.get("power") != _POWER:
        yield f"what is noticed is noticed {100 * _POWER:g} times in 100, and it says another number"
    if not _is_ceiling(details.get("ceiling", -1.0), sizes, delta):
        yield f"its ceiling is {_figure(details.get('ceiling'))}, which is not what so many models can certify at most"
    for name, kind in (("detectable", "randomized response"), ("detectable_gaussian", "Gaussian noise")):
        if not _is_noticed_from(details.get(name), name, sizes, delta, claim):
            yield f"so many models do not notice {kind} from epsilon {_figure(details.get(name))} on, as it says"


@lru_cache(maxsize=256)
def _is_ceiling(value: float, sizes: tuple[int, int], delta: float) -> bool:
    perfect = [(test, test.counted) for test in tests_of(*sizes)]
    return 0 <= value <= _MOST_EPSILON * 2 and is_largest_rejected(value, perfect, approximate(value, delta))


@lru_cache(maxsize=256)
def _is_noticed_from(value: float | None, name: str, sizes: tuple[int, int], delta: float, claim: float) -> bool:
    """Whether a mechanism with epsilon ``value`` is detected with exactly the power; for None, whether none is."""
    if name == "detectable":
        curve = approximate(min(_MOST_EPSILON, value if value is not None else _MOST_EPSILON), 0.0)
    elif not delta:
        return value is None
    else:
        curve = gaussian(_MOST_MU if value is None else _mu_at(value, delta))
    seldom, often = _chances(sizes, delta, claim, curve)
    near = ROUNDING * _POWER
    return seldom < _POWER + near and (value is None or often >= _POWER - near)


@lru_cache(maxsize=64)
def _needed(sizes: tuple[int, int], delta: float, claim: float) -> tuple[tuple[SizedTest, int, int], ...]:
    """For each test, the least count that rejects ``claim``, and the least that does despite rounding."""
    found, curve = [], approximate(claim, delta)
    for test in tests_of(*sizes):
        level = ALPHA * test.share
        at_most = partial(_rejects, test, curve, level * (1 + ROUNDING))
        fewest = bisect_left(range(test.counted + 1), True, key=at_most)
        surely = fewest
        while surely <= test.counted and not _rejects(test, curve, level * (1 - ROUNDING), surely):
            surely += 1
        found.append((test, fewest, surely))
    return tuple(found)


def _rejects(test: SizedTest, curve: PowerCurve, level: float, seen: int) -> bool:
    return test.p_value(seen, curve) <= level


def _chances(sizes: tuple[int, int], delta: float, claim: float, curve: PowerCurve) -> tuple[float, float]:
    """Bounds on the power of the best test against ``claim`` if ``curve`` is the true one."""
    chances = [
        tuple(0.0 if seen > test.counted else test.p_value(seen, curve) for seen in dict.fromkeys((surely, fewest)))
        for test, fewest, surely in _needed(sizes, delta, claim)
    ]
    return max(interval[0] for interval in chances), max(interval[-1] for interval in chances)


def _mu_at(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian mechanism has this ``epsilon`` at ``delta``, by bisection."""
    low, high = 0.0, 2 * _MOST_MU
    for _ in range(80):
        middle = (low + high) / 2
        first, second = (math.erfc((epsilon / middle + sign * middle / 2) / math.sqrt(2)) / 2 for sign in (-1, 1))
        # In the far tail both underflow to 0, and so does their difference.
        above = first - (math.exp(epsilon + math.log(second)) if second > 0 else 0.0) > delta
        low, high = (low, middle) if above else (middle, high)
    return (low + high) / 2


def _claim_faults(
    item: Evidence, sizes: tuple[int, int], asked: AskedAudit, items: Sequence[Evidence]
) -> Iterator[str]:
    """The p-value of a claim must not exceed those of the tests behind the bounds."""
    if _claim_of(item) not in asked.claims:
        yield "no such claim was to be judged"
        return
    epsilon, delta = asked.claims[0]
    if item.quantity != f"p-value of the claim of epsilon {epsilon:g} at delta {delta:g}":
        yield "it is called after another claim"
    if item.estimate is None or not 0 <= item.estimate <= 1:
        yield f"{_figure(item.estimate)} is no p-value"
        return
    curve = approximate(epsilon, delta)
    for bound in items:
        for test in tests_of(*sizes):
            if bound.lower is None or not _is_of(bound, test):
                continue
            most = test.p_value(int(bound.details["beyond"]), curve) / test.share
            if item.estimate > most and not same_p_value(item.estimate, most):
                yield f"its p-value is {item.estimate:.4g}, but {bound.quantity} is by a test that gives {most:.4g}"
    yield from _size_faults(item, sizes, delta, epsilon)


def _claim_of(item: Evidence) -> tuple[float | None, float | None]:
    return item.details.get("epsilon"), item.details.get("delta")


def _verdict_faults(report: PrivacyReport, items: Sequence[Evidence], asked: AskedAudit) -> Iterator[str]:
    """The verdict on the claim must follow from its p-value, the ceiling and the power."""
    for epsilon, delta in asked.claims:
        tested = next(
            (i for i in items if (i.details.get("epsilon"), i.details.get("delta")) == (epsilon, delta)), None
        )
        if tested is None or tested.estimate is None:
            yield f"{METHOD}: it was to judge ({epsilon:g}, {delta:g})-DP, and states no p-value of it"
            continue
        expected = outcome(tested, tested.estimate, epsilon, swapped=says_swapped(report))
        for verdict in report.verdicts:
            if is_about_claim(verdict.subject, epsilon, delta) and verdict.outcome is not expected:
                yield f"its verdict on {verdict.subject!r} is {verdict.outcome}, but its figures make it {expected}"


def says_swapped(report: PrivacyReport) -> bool:
    """Whether the report warns that models without the record score higher."""
    return any(re.fullmatch(SWAPPED, text) for text in report.warnings)


def outcome(tested: Evidence, p: float, epsilon: float, *, swapped: bool) -> Outcome:
    """The verdict on a claim of ``epsilon`` with p-value ``p``, given the ceiling and power stated in ``tested``."""
    if p <= ALPHA:
        return Outcome.REFUTED
    details = tested.details
    noticed = [details.get("detectable", math.inf)]
    noticed += [details.get("detectable_gaussian", math.inf)] if details.get("delta") else []
    silent = swapped or details.get("ceiling", 0.0) < epsilon or max(noticed) > _VIOLATION * epsilon
    return Outcome.INCONCLUSIVE if silent else Outcome.CONSISTENT


def _figure(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"
