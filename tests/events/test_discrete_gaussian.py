"""Discrete Gaussian noise against sums of its outcomes at 40 digits, dp_accounting, sampling and the verifier."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld

from privctl.accounting import renyi
from privctl.accounting.events import row_of
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.domain.events import DiscreteGaussianNoise, Ledger, SampledGaussian
from verify.events import row_of as verified_row_of
from verify.recompute.ledger import epsilon_of

EVENT = DiscreteGaussianNoise(stddev=4.0, sensitivity=3, sample_rate=0.2)


def ledger_of(event: DiscreteGaussianNoise) -> Ledger:
    return Ledger(events=(event,))


def law_of(event: DiscreteGaussianNoise) -> dict[int, mpmath.mpf]:
    reach = math.ceil(30 * event.stddev) + event.sensitivity
    weights = {
        k: mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf(event.stddev) ** 2)) for k in range(-reach, reach + 1)
    }
    total = mpmath.fsum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


def by_outcomes(event: DiscreteGaussianNoise, epsilon: float) -> float:
    """Delta of one step in the worse order: all outcomes, one by one."""
    with mpmath.workdps(40):
        law, rate, move = law_of(event), mpmath.mpf(event.sample_rate), event.sensitivity
        ratio, totals = mpmath.exp(epsilon), [mpmath.mpf(0), mpmath.mpf(0)]
        for k in law:
            without = law[k]
            present = (1 - rate) * without + rate * law.get(k - move, mpmath.mpf(0))
            totals[0] += max(0, present - ratio * without)
            totals[1] += max(0, without - ratio * present)
        return float(max(totals))


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (EVENT, 0.3),
        (replace(EVENT, sample_rate=1.0), 1.45),
        (replace(EVENT, stddev=0.4, sensitivity=1, sample_rate=1.0), 6.1),
    ],
)
def test_one_step_against_its_outcomes(event: DiscreteGaussianNoise, epsilon: float) -> None:
    delta = by_outcomes(event, epsilon)
    assert epsilon_bound(ledger_of(event), delta) == pytest.approx(epsilon, rel=1e-8)
    assert epsilon_bound(ledger_of(event), delta) >= epsilon * (1 - 1e-12)
    assert epsilon_of(ledger_of(event), delta).upper == pytest.approx(epsilon, rel=1e-9)
    assert by_outcomes(replace(event, stddev=event.stddev / 2), epsilon) > 2 * delta


def test_many_steps_against_dp_accounting() -> None:
    event = replace(EVENT, sample_rate=1.0, steps=20)
    theirs = [
        dp_pld.from_discrete_gaussian_mechanism(
            4.0, sensitivity=3, value_discretization_interval=1e-3, pessimistic_estimate=high
        )
        .self_compose(20)
        .get_epsilon_for_delta(1e-6)
        for high in (False, True)
    ]
    low, high = epsilon_floor(ledger_of(event), 1e-6), epsilon_bound(ledger_of(event), 1e-6)
    assert theirs[0] <= high <= theirs[1] * (1 + 3e-4)
    assert low <= theirs[1]
    assert high - low < 0.02 * high
    assert epsilon_of(ledger_of(event), 1e-6, (high,)).at_most(high)


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_renyi_divergences_against_sums_of_outcomes(rate: float) -> None:
    event = replace(EVENT, sample_rate=rate)
    orders = [1.5, 2.0, 7.25, 8.0]
    with mpmath.workdps(40):
        law, exact = law_of(event), []
        for order in map(mpmath.mpf, orders):
            moments = [p * (1 - rate + rate * law[k - 3] / p) ** order for k, p in law.items() if k - 3 in law]
            exact.append(float(mpmath.log(mpmath.fsum(moments)) / (order - 1)))
    found = row_of(event).divergences(event, np.array(orders))
    assert (found >= np.array(exact) * (1 - 1e-10)).all()
    assert found[[1, 3]] == pytest.approx([exact[1], exact[3]], rel=1e-10)
    assert (found <= 1.5 * np.array(exact)).all()
    many = ledger_of(replace(event, steps=40))
    assert renyi.ledger_epsilon(many, 1e-6)[0] >= epsilon_bound(many, 1e-6)


def test_much_noise_is_nearly_continuous() -> None:
    wide = ledger_of(DiscreteGaussianNoise(stddev=500, sensitivity=500, sample_rate=0.1, steps=30))
    plain = Ledger(events=(SampledGaussian(noise_multiplier=1, sample_rate=0.1, steps=30),))
    assert epsilon_bound(wide, 1e-6) == pytest.approx(epsilon_bound(plain, 1e-6), rel=1e-4)


def test_drawn_losses_have_the_law_that_is_composed() -> None:
    draw = verified_row_of(EVENT).draw(EVENT)
    assert draw is not None
    losses = draw(np.random.default_rng(3), 200_000, True)
    gains = np.maximum(1 - np.exp(0.05 - losses), 0)
    assert abs(gains.mean() - by_outcomes(EVENT, 0.05)) < 5 * gains.std() / math.sqrt(len(gains))
    assert abs(gains.mean() - by_outcomes(replace(EVENT, stddev=8.0), 0.05)) > 5 * gains.std() / math.sqrt(len(gains))


def test_noise_outside_the_range_is_refused() -> None:
    for stddev in (0.05, 20_000):
        with pytest.raises(ValueError, match=r"between 0\.1 and 10,000"):
            DiscreteGaussianNoise(stddev=stddev)
