"""What noise in floating point costs: the theorem's bound against exact laws, and the verifier's own."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from privctl.accounting.gaussian import epsilon_at
from privctl.accounting.gridded import (
    ACCURACY,
    ASSUMPTION,
    STEPS,
    Released,
    charge_for,
    epsilon_with_charge,
    guarantee_of_floats,
    ideal_target,
)
from privctl.domain.guarantee import Adjacency, Guarantee, Risk, RiskMeasure, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, WeightNoise
from privctl.domain.report import PrivacyReport
from verify.recompute import gridded

DELTA = 1e-6
TRAINING = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=10, batch_size=5)


def worst_ratio(error: float, steps: float, reach: float) -> float:
    """The largest log ratio of a cell's mass to that of the cell with both edges moved by ``error``; 40 digits."""
    with mpmath.workdps(40):
        width, found = 1 / mpmath.mpf(steps), mpmath.mpf(0)
        for left in np.linspace(-reach, reach, 41):
            left = mpmath.mpf(float(left))
            mass = mpmath.ncdf(left + width) - mpmath.ncdf(left)
            for sign in (-1, 1):
                moved = mpmath.ncdf(left + width + sign * error) - mpmath.ncdf(left - sign * error)
                found = max(found, abs(mpmath.log(moved / mass)))
        return float(found)


@pytest.mark.parametrize("log_tail", [-30.0, -100.0])
@pytest.mark.parametrize("coordinates", [1, 10**6, 10**12])
def test_no_cell_exceeds_the_bound_on_its_ratio(coordinates: int, log_tail: float) -> None:
    released = Released(coordinates=coordinates)
    reach = math.sqrt(2 * (math.log(coordinates) - log_tail))
    # Gaussian mass this far out needs more digits than the cells' masses have; within 8 deviations they do.
    exact = worst_ratio(ACCURACY * reach, STEPS, min(reach, 8.0))
    assert exact < released.log_ratio(log_tail) / 2 < 1.5 * exact


def test_moved_edges_by_twice_the_error_would_show() -> None:
    released = Released(coordinates=10**6)
    reach = math.sqrt(2 * (math.log(10**6) + 30))
    assert worst_ratio(2 * ACCURACY * reach, STEPS, 8.0) > released.log_ratio(-30.0) / 2


def test_sums_of_bounded_ratios_stay_within_the_deviation() -> None:
    """Coins that use the whole ratio, the worst law there is: P = 1 / (1 + e^b) against its mirror."""
    count, trials, log_tail = 4000, 20_000, math.log(1e-2)
    released = Released(coordinates=count)
    b = released.log_ratio(log_tail)
    heads = np.random.default_rng(0).binomial(count, math.exp(b) / (1 + math.exp(b)), trials)
    sums = b * (2.0 * heads - count)
    bound = released.deviation(log_tail) - 1e-2
    assert float((sums > bound).mean()) <= 1e-2
    assert float((sums > 0.6 * bound).mean()) > 1e-2, "the check must notice too small a bound"


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("coordinates", [10, 10**6, 124_000_000, 10**12])
def test_epsilon_and_delta_add_up_to_what_the_theorem_says(mu: float, coordinates: int) -> None:
    released = Released(coordinates=coordinates)
    epsilon, found = epsilon_with_charge(lambda delta: epsilon_at(delta, mu), released, DELTA)
    deviation, inner = found.epsilon / 2, epsilon - found.epsilon
    assert inner == epsilon_at(found.delta, mu) >= epsilon_at(DELTA, mu)
    # exp(e) d + 2 tail (1 + exp(epsilon + e)) <= delta, with the tail that was used.
    log_tail = math.log(DELTA) - 21 * math.log(2) - 16 * 2 ** max(0, math.ceil(math.log2(epsilon / 16)))
    assert math.exp(deviation) * found.delta + 2 * math.exp(log_tail) + 2 * math.exp(
        log_tail + inner + deviation
    ) <= DELTA * (1 + 1e-12)
    assert epsilon - epsilon_at(DELTA, mu) < 1e-3 * max(1.0, epsilon)


def test_the_cost_grows_with_the_root_of_the_count() -> None:
    costs = [charge_for(Released(coordinates=10**k), DELTA, 16.0).epsilon for k in (6, 8, 10)]
    assert 2e-8 < costs[0] < 4e-7
    assert 9 < costs[1] / costs[0] < 13
    assert 9 < costs[2] / costs[1] < 13


def test_targets_are_met_from_below() -> None:
    released = Released(coordinates=10**9)
    epsilon, delta = ideal_target(released, 1.0, DELTA)
    assert 0.9999 < epsilon < 1
    mu = 0.2
    while epsilon_at(delta, mu) < epsilon:
        mu *= 1.001
    reached, _ = epsilon_with_charge(lambda less: epsilon_at(less, mu / 1.001), released, DELTA)
    assert 0.99 < reached <= 1


def guarantee(epsilon: float) -> Guarantee:
    risk = Risk(measure=RiskMeasure.TRUE_POSITIVE_RATE, bound=0.1, at=0.01)
    return Guarantee(
        name="nonconvex", epsilon=epsilon, delta=DELTA, adjacency=Adjacency.ZERO_OUT, accountant="a",
        status=Status.PROVED, risks=(risk,),
    )  # fmt: skip


def report(dimension: int, stddevs: tuple[float, ...] = (1.0,)) -> PrivacyReport:
    mechanism = WeightNoise(
        training=TRAINING, noise_stddev=stddevs[0], dimension=dimension, calibration=Calibration.DP_WEIGHTS,
        candidate_stddevs=stddevs, grid=2.0**-5,
    )  # fmt: skip
    return PrivacyReport(step="noise", created="", versions={}, mechanism=mechanism)


@pytest.mark.parametrize("dimension", [10, 10**6, 10**9])
@pytest.mark.parametrize("mu", [0.05, 1.0, 20.0])
def test_the_verifier_finds_what_was_charged_enough_and_less_too_little(dimension: int, mu: float) -> None:
    released = Released(coordinates=dimension)
    whole, found = epsilon_with_charge(lambda delta: epsilon_at(delta, mu), released, DELTA)
    claimed = guarantee_of_floats(guarantee(epsilon_at(DELTA, mu)), released, whole, found)
    assert claimed.epsilon == whole
    assert ASSUMPTION in claimed.assumptions
    assert claimed.arithmetic is not None
    assert gridded.objection(report(dimension), claimed) == ""
    inner = gridded.ideal_guarantee(report(dimension), claimed)
    assert 0.3 * found.epsilon < inner.epsilon <= found.epsilon
    assert (inner.guarantee.epsilon or 0) >= epsilon_at(inner.guarantee.delta, mu)
    assert claimed.risks[0].bound > inner.guarantee.risks[0].bound >= 0.1 * (1 - 1e-12)
    # Who keeps the epsilon of real arithmetic claims too much, and so does who says less of what was released.
    bare = gridded.ideal_guarantee(report(dimension), replace(claimed, epsilon=epsilon_at(DELTA, mu)))
    assert (bare.guarantee.epsilon or 0) < epsilon_at(bare.guarantee.delta, mu)
    for change in (
        {"coordinates": dimension // 2},
        {"accuracy": ACCURACY / 2},
        {"steps": 32.0},
        {"epsilon": claimed.arithmetic.epsilon / 4},
    ):
        less = replace(claimed, arithmetic=replace(claimed.arithmetic, **change))  # type: ignore[arg-type]
        assert gridded.objection(report(dimension), less), change


@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.03, 0.3])
@pytest.mark.parametrize("mu", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("dimension", [10, 8672, 10**8])
def test_honest_reports_pass_at_any_delta(dimension: int, mu: float, delta: float) -> None:
    released = Released(coordinates=dimension)
    whole, found = epsilon_with_charge(lambda d: epsilon_at(d, mu), released, delta)
    claimed = guarantee_of_floats(replace(guarantee(epsilon_at(delta, mu)), delta=delta), released, whole, found)
    assert gridded.objection(report(dimension), claimed) == ""
    inner = gridded.ideal_guarantee(report(dimension), claimed)
    assert (inner.guarantee.epsilon or 0) >= epsilon_at(inner.guarantee.delta, mu)


def test_several_candidates_cost_more_together_than_each() -> None:
    alone, one = Released(coordinates=10**6, candidates=3), Released(coordinates=10**6)
    together = Released(
        coordinates=10**6, candidates=3, increments=(1.0, 1.0, 0.01), spacings=(2.0**-5, 2.0**-5, 2.0**-5)
    )
    costs = [each.deviation(-40.0) for each in (one, alone, together)]
    assert costs == sorted(costs)
    assert costs[1] < 2.5 * costs[0]
    assert costs[2] < 0.01


def test_where_nothing_finite_follows_nothing_is_claimed() -> None:
    epsilon, _ = epsilon_with_charge(lambda delta: math.inf, Released(coordinates=5), DELTA)
    assert epsilon == math.inf
    epsilon, _ = epsilon_with_charge(lambda delta: 1e7, Released(coordinates=10**15), DELTA)
    assert epsilon == math.inf
