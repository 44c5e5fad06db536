"""An upper bound on the noise, if everything else about the stated steps is as stated.

Steps of the stated kind with other noise multipliers are tested by the guesses of the epsilon bounds, at the same
level. Adding noise to the output of a step gives a step with more noise, so the trade-off curve increases with the
multiplier, and if one multiplier is rejected, all larger ones are. The reported multiplier was rejected: it is below
the true one only if the true curve is rejected too, which the same guesses then do to the bounds, so they hold jointly
(``verdict.curves``).

Canary gradients lie in coordinates of their own, with their own noise and draws, so for the stated steps the
observations of one canary are independent of the others, and ``independent_guesses`` gives the distribution of correct
guesses. Planted texts share their steps, and if batches are truncated, canaries share the batch size: there only the
test of the curve applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from audits.canaries.bounds import EITHER, counts_of
from audits.claims import CurveClaim, NoiseFamily, Points, noise_of
from audits.statistics import f_dp
from audits.statistics.independent_guesses import p_value
from audits.statistics.search import smallest
from privctl.domain.events import TruncatedGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.shown import downward, upward
from privctl.reports.codec import encode_value

METHOD, QUANTITY = "one run, stated steps", "noise multiplier"
#: The range of the noise relative to the stated noise, and the precision of the result's logarithm (rounded up).
_LEAST, _MOST, _PRECISION = 2.0**-20, 2.0**6, 2e-3
#: Larger epsilons are not distinguished: accountants no longer agree there.
_LARGEST_EPSILON = 100.0
_DIGITS = 4
_AS_STATED = "the steps were those of the stated mechanism in all but the noise multiplier"
_INDEPENDENT = "noise and draws of each canary were independent of the others'"


def noise_bound(
    evidence: Sequence[Evidence], curve: CurveClaim | None, delta: float, *, own_coordinates: bool
) -> tuple[Evidence, ...]:
    """An upper bound on the noise multiplier, from the guesses of all epsilon bounds of single records in ``evidence``.

    Empty if no curve was tested. ``own_coordinates`` says that canaries lie in coordinates of their own. Without a
    bound, the estimate is None, with the reason.
    """
    bounds = [item for item in evidence if item.method == EITHER and item.details["copies"] == 1]
    if curve is None or not bounds or bounds[0].lower is None:
        return ()
    confidence = round(1 - math.fsum(1 - item.confidence for item in bounds), 12)
    samples = {"canaries": bounds[0].samples["canaries"]}
    if curve.family is None or delta == 0:
        why = "the stated mechanism is no one kind of Gaussian steps" if delta else "at delta 0 Gaussian noise has none"
        return (_unbounded(why, confidence, samples),)
    family, independent = curve.family, own_coordinates and are_independent(curve)
    share = _least_rejected(partial(_is_rejected_at, bounds, family, test_of(independent=independent), delta))
    if share is None:
        why = f"the guesses fit any noise up to {_MOST:g} times what is stated"
        return (_unbounded(why, confidence, samples),)
    try:
        epsilon = family.epsilon(share, delta)
    except (ArithmeticError, ValueError) as error:
        return (_unbounded(f"the accountant gives no epsilon ({error})", confidence, samples),)
    return (
        Evidence(
            method=METHOD,
            quantity=QUANTITY,
            estimate=share * family.stated,
            upper=share * family.stated,
            confidence=confidence,
            bound=Bound.UPPER,
            samples=samples,
            details={
                "stated": family.stated,
                "share": share,
                "epsilon": epsilon,
                "delta": delta,
                "independent": float(independent),
            },
        ),
    )


def noise_parameters(noise: Sequence[Evidence]) -> dict[str, object]:
    """The assumption of the bound, as a parameter of a report."""
    stated = next((_assumption(item) for item in noise if item.upper is not None), None)
    return {} if stated is None else {"canary_steps": encode_value(stated)}


def noise_in_words(noise: Sequence[Evidence]) -> list[str]:
    """The bound in a sentence, with its assumption."""
    return [
        f"noise multiplier at most {upward(item.upper, _DIGITS)}, {upward(item.details['share'], _DIGITS)} times what "
        f"is stated ({100 * item.confidence:.4g} %), if all else of the steps is as stated, for which the accountant "
        f"gives an epsilon of at least {downward(item.details['epsilon'], _DIGITS)} at delta "
        f"{item.details['delta']:g}; of other steps it says nothing; taken to be so: {_assumption(item).statement}"
        for item in noise
        if item.upper is not None
    ]


def too_little_noise(noise: Sequence[Evidence]) -> str:
    """How much noise there was at most, if that is no more than stated; otherwise empty."""
    shares = [item.details["share"] for item in noise if item.upper is not None and item.details["share"] <= 1]
    return "".join(
        f"the noise was at most {upward(share, 2)} of what is stated, if all else of the steps is as stated"
        for share in shares
    )


def _assumption(item: Evidence) -> Assumption:
    statement = f"{_AS_STATED}, and {_INDEPENDENT}" if item.details["independent"] else _AS_STATED
    return Assumption(name="steps as stated", statement=statement, state=AssumptionState.ASSERTED)


def are_independent(curve: CurveClaim) -> bool:
    """Whether canaries in coordinates of their own are independent in the stated steps, of one kind.

    Then no random number that a step draws for all records affects several canaries.
    """
    return noise_of(curve.mechanism) is not None and not isinstance(curve.mechanism.events[0], TruncatedGaussian)


def test_of(*, independent: bool) -> Callable[[tuple[int, int, int], Points, float], bool]:
    """A test of whether counts of correct guesses reject, at a level, all mechanisms whose curve has these points."""
    if independent:
        return lambda counts, points, level: p_value(*counts, points) < level
    return lambda counts, points, level: f_dp.rejects(*counts, f_dp.lines(points), level)


def _is_rejected_at(
    bounds: Sequence[Evidence],
    family: NoiseFamily,
    rejects: Callable[[tuple[int, int, int], Points, float], bool],
    delta: float,
    log_share: float,
) -> bool:
    """Whether any set of guesses rejects this share of the noise, at its share of the failure probability.

    Shares whose epsilon at ``delta`` is too large are not tested.
    """
    try:
        points = family.points(math.exp(log_share))
        rejected = any(
            rejects(counted.counts, points, (1 - item.confidence) / item.details["sets"])
            for item in bounds
            for counted in counts_of(item)
        )
        return rejected and (log_share >= 0 or family.epsilon(math.exp(log_share), delta) <= _LARGEST_EPSILON)
    except (ArithmeticError, ValueError):  # too little or too much noise to compute
        return False


def _least_rejected(rejected: Callable[[float], bool]) -> float | None:
    """A share of the noise that is rejected, slightly above one that is not; None if none is rejected."""
    low, high = (math.log(0.5), 0.0) if rejected(0.0) else (0.0, math.log(2.0))
    if high == 0:
        while low > math.log(_LEAST) and rejected(low):
            low, high = low - math.log(2.0), low
    else:
        while not rejected(high):
            low, high = high, high + math.log(2.0)
            if high > math.log(_MOST) + _PRECISION:
                return None
    return math.exp(smallest(rejected, low, high, _PRECISION))


def _unbounded(why: str, confidence: float, samples: dict[str, int]) -> Evidence:
    return Evidence(
        method=METHOD,
        quantity=QUANTITY,
        estimate=None,
        confidence=confidence,
        bound=Bound.NONE,
        samples=samples,
        reason=f"not bounded: {why}",
    )
