"""How much noise there was at most, if all else of the stated steps is as stated.

Steps of the stated kind, with another noise multiplier, are tested by the guesses of the epsilon bounds, at the same
level. Noise that is added to what steps release makes steps of more noise, so the trade-off curve rises with the
multiplier, and where one is rejected all larger ones are. What is reported is a multiplier that was rejected: it is
below the true one only where the true curve is rejected too, which happens to the bounds by the same guesses, so they
hold together (``verdict.curves``).

Canary gradients lie in coordinates of their own, with noise and draws of their own, so within the stated steps what
shows of one canary is independent of the others, and ``independent_guesses`` gives the law of right guesses. Planted
texts share their steps, and where a batch is cut, canaries share its size: there the test is that of the curve alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from audits.canaries.bounds import EITHER, counts_of
from audits.claims import CurveClaim, NoiseFamily, Points
from audits.statistics import f_dp
from audits.statistics.independent_guesses import p_value
from audits.statistics.search import smallest
from privctl.domain.events import TruncatedGaussian
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Assumption, AssumptionState
from privctl.domain.shown import downward, upward
from privctl.reports.codec import encode_value

METHOD, QUANTITY = "one run, stated steps", "noise multiplier"
#: Shares of the stated noise lie between these, found to this precision of their logarithm, from above.
_LEAST, _MOST, _PRECISION = 2.0**-6, 2.0**6, 2e-3
_DIGITS = 4
_AS_STATED = "the steps were those of the stated mechanism in all but the noise multiplier"
_INDEPENDENT = "noise and draws of each canary were independent of the others'"


def noise_bound(
    evidence: Sequence[Evidence], curve: CurveClaim | None, delta: float, *, own_coordinates: bool
) -> tuple[Evidence, ...]:
    """An upper bound on the noise multiplier, from the guesses of all epsilon bounds in ``evidence`` of single records.

    Nothing where no curve was tested. ``own_coordinates`` says that canaries lie in coordinates of their own.
    Without a bound, the estimate is None, with the reason.
    """
    bounds = [item for item in evidence if item.method == EITHER and item.details["copies"] == 1]
    if curve is None or not bounds or bounds[0].lower is None:
        return ()
    confidence = round(1 - math.fsum(1 - item.confidence for item in bounds), 12)
    samples = {"canaries": bounds[0].samples["canaries"]}
    if curve.family is None or delta == 0:
        why = "the stated mechanism is no one kind of Gaussian steps" if delta else "at delta 0 Gaussian noise has none"
        return (_unbounded(why, confidence, samples),)
    family, independent = curve.family, own_coordinates and _is_independent(curve)
    share = _least_rejected(partial(_rejected, bounds, family, _test(independent=independent)))
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
    """What the bound rests on, as a parameter of a report."""
    stated = next((_assumption(item) for item in noise if item.upper is not None), None)
    return {} if stated is None else {"canary_steps": encode_value(stated)}


def noise_in_words(noise: Sequence[Evidence]) -> list[str]:
    """The bound in a sentence, with what it rests on."""
    return [
        f"noise multiplier at most {upward(item.upper, _DIGITS)}, {upward(item.details['share'], _DIGITS)} times what "
        f"is stated ({100 * item.confidence:.4g} %), if all else of the steps is as stated, for which the accountant "
        f"gives an epsilon of at least {downward(item.details['epsilon'], _DIGITS)} at delta "
        f"{item.details['delta']:g}; of other steps it says nothing; taken to be so: {_assumption(item).statement}"
        for item in noise
        if item.upper is not None
    ]


def too_little_noise(noise: Sequence[Evidence]) -> str:
    """How much noise there was at most, where that is no more than stated; empty else."""
    shares = [item.details["share"] for item in noise if item.upper is not None and item.details["share"] <= 1]
    return "".join(
        f"the noise was at most {upward(share, 2)} of what is stated, if all else of the steps is as stated"
        for share in shares
    )


def _assumption(item: Evidence) -> Assumption:
    statement = f"{_AS_STATED}, and {_INDEPENDENT}" if item.details["independent"] else _AS_STATED
    return Assumption(name="steps as stated", statement=statement, state=AssumptionState.ASSERTED)


def _is_independent(curve: CurveClaim) -> bool:
    """Whether no number that a step draws for all records decides about several canaries."""
    return not any(isinstance(event, TruncatedGaussian) for event in curve.mechanism.events)


def _test(*, independent: bool) -> Callable[[tuple[int, int, int], Points, float], bool]:
    """Whether counts of right guesses reject a mechanism that has all of the points, at a level."""
    if independent:
        return lambda counts, points, level: p_value(*counts, points) < level
    return lambda counts, points, level: f_dp.rejects(*counts, f_dp.lines(points), level)


def _rejected(
    bounds: Sequence[Evidence],
    family: NoiseFamily,
    rejects: Callable[[tuple[int, int, int], Points, float], bool],
    log_share: float,
) -> bool:
    """Whether any set of guesses rejects this share of the noise, at its share of the failure probability."""
    try:
        points = family.points(math.exp(log_share))
    except (ArithmeticError, ValueError):  # so little noise, or so much, that nothing is computed
        return False
    return any(
        rejects(counted.counts, points, (1 - item.confidence) / item.details["sets"])
        for item in bounds
        for counted in counts_of(item)
    )


def _least_rejected(rejected: Callable[[float], bool]) -> float | None:
    """A share of the noise that is rejected, a little above one that is not; None where all are compatible."""
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
