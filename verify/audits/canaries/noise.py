"""Whether the bound on the noise of the stated steps follows from its counts of correct guesses.

For steps that are as stated except for their noise, slightly more noise than the bound must be rejected by some set of
guesses, and slightly less by none. The distribution of correct guesses on independent canaries is integrated by
Simpson's rule with binomial tails summed term by term, where the audit uses cells of quantiles and the incomplete beta
function. Standard library only, except for verify's accountant.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from privctl.domain.events import (
    BandedGaussian,
    BestOfRuns,
    BufferedGaussian,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.canaries.bounds import refutes, tested_bounds, trade_off_below
from verify.audits.ranks.bound import PowerCurve, at_least, mean_tail
from verify.audits.terms import NOISE, counts_of

_QUANTITY = "noise multiplier"
#: Relative distance from the stated noise at which the test is made, and relative tolerance of its epsilon.
_NEAR, _CLOSE = 0.015, 0.01
#: Relative difference allowed between the audit's p-values and these, which barely change with large multipliers.
_SLACK = 0.02
#: The relative spacing of the accountant's grid.
_GRID = 1e-3
#: A curve is bounded at _POINTS epsilons, up to the first multiple of _STEP with delta below _SMALL, or up to _TOP.
_SMALL, _TOP, _STEP, _POINTS = 1e-8, 30.0, 0.25, 61
#: The bound is never below the noise multiplier with this epsilon.
_LARGEST_EPSILON = 100.0
_ROUNDING = 1e-9
#: The largest multiple of the stated noise that is tested. The texts below are the reasons for stating no bound.
_MOST = 64
_NO_KIND = "not bounded: the stated mechanism is no one kind of Gaussian steps"
_NO_DELTA = "not bounded: at delta 0 Gaussian noise has none"
_ANY_NOISE = f"not bounded: the guesses fit any noise up to {_MOST} times what is stated"
_NO_EPSILON = "not bounded: the accountant gives no epsilon ("
_STATEMENTS = {
    False: "the steps were those of the stated mechanism in all but the noise multiplier",
    True: "the steps were those of the stated mechanism in all but the noise multiplier, and noise and draws of each "
    "canary were independent of the others'",
}
GAUSSIAN = (SampledGaussian, BandedGaussian, BufferedGaussian, BestOfRuns, GroupGaussian, TruncatedGaussian)


def wrong_noise(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence per fault of a bound on the noise; nothing for an audit without one."""
    stated = [item for item in report.evidence if item.method == NOISE]
    for item in stated:
        wrong = _noise_fault(item, report, parameters)
        if wrong:
            yield f"{item.method}, {item.quantity}: {wrong}"
    if len(stated) > 1:
        yield "it bounds the noise of the stated steps more than once"
    if parameters.canary_steps is not None and all(item.upper is None for item in stated):
        yield "it says on what a bound on the noise rests, and has none"


def _noise_fault(item: Evidence, report: PrivacyReport, parameters: AuditParameters) -> str:
    if item.quantity != _QUANTITY:
        return "it bounds nothing that is known here"
    event = parameters.canary_mechanism.events[0] if parameters.canary_mechanism is not None else None
    one_kind = isinstance(event, GAUSSIAN) and parameters.canary_mechanism == Ledger(events=(event,))
    is_own_training = parameters.canary_commitment is None and not isinstance(event, TruncatedGaussian)
    bounds = list(tested_bounds(report, parameters))
    if item.upper is None:
        if item.estimate is not None or item.lower is not None or item.bound is not Bound.NONE:
            return "it is no bound, and has figures of one"
        if wrong := _samples_fault(item, bounds):
            return wrong
        return _reason_fault(item, event if one_kind else None, bounds, independent=is_own_training)
    if not isinstance(event, GAUSSIAN) or not one_kind:
        return "the mechanism is no one kind of Gaussian steps"
    share = item.details["share"]
    if item.details["independent"] != float(is_own_training):
        return f"what shows of one canary is {'not ' * (not is_own_training)}independent of the others in such steps"
    near = 1e-9 * event.noise_multiplier
    if not (
        item.bound is Bound.UPPER
        and item.lower is None
        and item.estimate == item.upper
        and 0 < share < math.inf
        and math.isclose(item.details["stated"], event.noise_multiplier, rel_tol=1e-9)
        and abs(item.upper - share * event.noise_multiplier) <= near * max(1.0, share)
    ):
        return "its numbers do not fit each other and the mechanism"
    expected = Assumption(
        name="steps as stated", statement=_STATEMENTS[is_own_training], state=AssumptionState.ASSERTED
    )
    if parameters.canary_steps != expected:
        return "it does not say on what it rests, as every such bound does"
    wrong = _samples_fault(item, bounds)
    return wrong or _bound_fault(item, event, bounds, independent=is_own_training)


def _samples_fault(item: Evidence, bounds: Sequence[Evidence]) -> str:
    """What is wrong with its confidence or its canaries, which are those of the bounds by the same guesses."""
    if not math.isclose(item.confidence, 1 - math.fsum(1 - bound.confidence for bound in bounds), abs_tol=1e-9):
        return f"it holds with {item.confidence:g}, which is not what the bounds by the same guesses leave"
    if bounds and dict(item.samples) != {"canaries": bounds[0].samples["canaries"]}:
        return f"it is of {dict(item.samples)}, and the bounds by the same guesses of other canaries"
    return ""


def _reason_fault(item: Evidence, event: object, bounds: Sequence[Evidence], *, independent: bool) -> str:
    """What is wrong with the reason for stating no bound; ``event`` is None if the steps are not of a single kind."""
    from verify.recompute.ledger import NoBoundError, epsilon_of  # imported here because it needs numpy and scipy

    delta = max((bound.details.get("delta", 0.0) for bound in bounds), default=0.0)
    if event is None or delta == 0:
        expected = _NO_KIND if delta else _NO_DELTA
        return "" if item.reason == expected else f"it has no bound, for which {expected!r} is the reason"
    assert isinstance(event, GAUSSIAN)
    most = event.noise_multiplier * _MOST * (1 - _NEAR)
    try:
        if item.reason == _ANY_NOISE:
            rejected = _rejects(_with_noise(event, most), bounds, independent=independent, slack=1 - _SLACK)
            return "it leaves a bound out: the right guesses reject so much noise" if rejected else ""
        if item.reason.startswith(_NO_EPSILON):
            epsilon_of(_with_noise(event, most), delta)
            return "it leaves a bound out: the steps have an epsilon"
    except NoBoundError:
        return ""
    return "it is no bound, and does not say why"


def _bound_fault(item: Evidence, event: object, bounds: Sequence[Evidence], *, independent: bool) -> str:
    """What is wrong with the bound: guesses must reject slightly more noise but not less, and epsilon must follow."""
    from verify.recompute.ledger import NoBoundError, epsilon_of  # needs more than the standard library

    stated, delta = float(item.upper or 0), item.details["delta"]
    try:
        above = _rejects(_with_noise(event, stated * (1 + _NEAR)), bounds, independent=independent, slack=1 + _SLACK)
        below = _rejects(_with_noise(event, stated * (1 - _NEAR)), bounds, independent=independent, slack=1 - _SLACK)
        below = below and epsilon_of(_with_noise(event, stated * (1 - _NEAR)), delta).upper <= _LARGEST_EPSILON
        epsilon = epsilon_of(_with_noise(event, stated), delta).upper
    except NoBoundError as error:
        return f"it cannot be computed again ({error})"
    if not above or below:
        which = "a little more noise is not rejected" if not above else "less noise is rejected too"
        return f"a noise multiplier of {stated:.6g} is not what the right guesses give: {which}"
    if not math.isclose(item.details["epsilon"], epsilon, rel_tol=_CLOSE, abs_tol=1e-6):
        return f"such steps have an epsilon of {epsilon:.6g} at delta {delta:g}, and not {item.details['epsilon']:.6g}"
    return ""


def _with_noise(event: object, noise: float) -> Ledger:
    assert isinstance(event, GAUSSIAN)
    return Ledger(events=(replace(event, noise_multiplier=noise),))


def _rejects(ledger: Ledger, bounds: Sequence[Evidence], *, independent: bool, slack: float) -> bool:
    """Whether some set of guesses rejects ``ledger`` at its level times ``slack``."""
    points = list(_curve(ledger))

    least = trade_off_below(points)
    for item in bounds:
        level = slack * (1 - item.confidence) / item.details["sets"]
        for counts in counts_of(item):
            if independent and chance_of(counts, points) < level:
                return True
            if not independent and refutes(counts, least, level):
                return True
    return False


def _curve(ledger: Ledger) -> Iterator[tuple[float, float]]:
    """Yields pairs (epsilon, delta) that ``ledger`` certainly satisfies, at the epsilons of the audit's test."""
    from verify.recompute.ledger import bounds  # needs more than the standard library

    exact = bounds(ledger, None, _GRID)  # sharp for large deltas, by which most guesses are judged
    steps = range(1, round(_TOP / _STEP))
    top = _STEP * (1 + bisect_left(steps, True, key=lambda i: exact.upper_delta(_STEP * i) < _SMALL))
    for i in range(_POINTS):
        epsilon = top * i / (_POINTS - 1)
        yield epsilon, min(1.0, exact.upper_delta(epsilon) * (1 + _ROUNDING))


def chance_of(counts: tuple[int, int, int], points: Sequence[tuple[float, float]]) -> float:
    """The largest probability of so many or more correct guesses if each canary is observed separately.

    Of outcomes with total probability ``share``, any guess is wrong on at least (``share`` - delta) / (1 + e^epsilon).
    """
    canaries, guesses, right = counts
    weighed = [(delta, 1 / (1 + math.exp(epsilon))) for epsilon, delta in points]

    def hit(share: float) -> float:
        wrong = max([(share - delta) * weight for delta, weight in weighed])
        return min(1.0, 1 - wrong / share) if share > 0 else 1.0

    if guesses == canaries:
        return at_least(right, guesses, hit(1.0))
    return mean_tail(guesses + 1, canaries - guesses, right, guesses, PowerCurve(most=hit))
