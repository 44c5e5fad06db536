"""Discrete Laplace noise against sums of its outcomes at 40 digits, dp_accounting, sampling and the verifier."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld

from privctl.accounting import renyi
from privctl.accounting.events import row_of
from privctl.accounting.ledger import delta_bound, epsilon_bound, epsilon_floor
from privctl.domain.events import DiscreteLaplaceNoise, Ledger
from verify.events import row_of as verified_row_of
from verify.recompute.ledger import epsilon_of

EVENT = DiscreteLaplaceNoise(decay=0.4, sensitivity=3, sample_rate=0.2)


def ledger(event: DiscreteLaplaceNoise) -> Ledger:
    return Ledger(events=(event,))


def by_outcomes(event: DiscreteLaplaceNoise, epsilon: float) -> float:
    """Delta of one step in the worse order: all outcomes from -400 to 400, one by one."""
    with mpmath.workdps(40):
        fade, rate = mpmath.exp(-mpmath.mpf(event.decay)), mpmath.mpf(event.sample_rate)
        law = {k: (1 - fade) / (1 + fade) * fade ** abs(k) for k in range(-410, 411)}
        ratio, totals = mpmath.exp(epsilon), [mpmath.mpf(0), mpmath.mpf(0)]
        for k in range(-400, 401):
            without, present = law[k], (1 - rate) * law[k] + rate * law[k - event.sensitivity]
            totals[0] += max(0, present - ratio * without)
            totals[1] += max(0, without - ratio * present)
        return float(max(totals))


@pytest.mark.parametrize("event", [EVENT, replace(EVENT, sample_rate=1.0), replace(EVENT, sensitivity=1)])
@pytest.mark.parametrize("epsilon", [0.02, 0.08])
def test_one_step_against_its_outcomes(event: DiscreteLaplaceNoise, epsilon: float) -> None:
    delta = by_outcomes(event, epsilon)
    assert epsilon_bound(ledger(event), delta) == pytest.approx(epsilon, rel=1e-8)
    assert epsilon_bound(ledger(event), delta) >= epsilon * (1 - 1e-12)
    assert epsilon_of(ledger(event), delta).upper == pytest.approx(epsilon, rel=1e-9)
    assert delta_bound(ledger(event), epsilon, near=delta) == pytest.approx(delta, rel=1e-3)


def test_many_steps_against_dp_accounting() -> None:
    event = replace(EVENT, steps=40)
    theirs = [
        dp_pld.from_discrete_laplace_mechanism(
            0.4, sensitivity=3, sampling_prob=0.2, value_discretization_interval=1e-4, pessimistic_estimate=high
        )
        .self_compose(40)
        .get_epsilon_for_delta(1e-6)
        for high in (False, True)
    ]
    low, high = epsilon_floor(ledger(event), 1e-6), epsilon_bound(ledger(event), 1e-6)
    assert theirs[0] <= high <= theirs[1] * (1 + 1e-4)
    assert low <= theirs[1]
    assert high - low < 0.02 * high
    found = epsilon_of(ledger(event), 1e-6, (high,), (low,))
    assert found.at_most(high)


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_renyi_divergences_against_sums_of_outcomes(rate: float) -> None:
    event = replace(EVENT, sample_rate=rate)
    with mpmath.workdps(40):
        fade = mpmath.exp(-mpmath.mpf("0.4"))
        law = {k: (1 - fade) / (1 + fade) * fade ** abs(k) for k in range(-310, 311)}
        exact = []
        for order in (mpmath.mpf(1.5), mpmath.mpf(8), mpmath.mpf(64)):
            moments = [law[k] * (1 - rate + rate * law[k - 3] / law[k]) ** order for k in range(-300, 301)]
            exact.append(float(mpmath.log(mpmath.fsum(moments)) / (order - 1)))
    assert row_of(event).divergences(event, np.array([1.5, 8.0, 64.0])) == pytest.approx(exact, rel=1e-10)
    many = ledger(replace(event, steps=40))
    assert renyi.ledger_epsilon(many, 1e-6)[0] >= epsilon_bound(many, 1e-6)


def test_drawn_losses_have_the_law_that_is_composed() -> None:
    draw = verified_row_of(EVENT).draw(EVENT)
    assert draw is not None
    losses = draw(np.random.default_rng(3), 200_000, True)
    gains = np.maximum(1 - np.exp(0.05 - losses), 0)
    assert abs(gains.mean() - by_outcomes(EVENT, 0.05)) < 5 * gains.std() / math.sqrt(len(gains))
    assert abs(gains.mean() - by_outcomes(replace(EVENT, decay=0.2), 0.05)) > 5 * gains.std() / math.sqrt(len(gains))


def test_more_than_the_largest_sensitivity_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 100,000"):
        DiscreteLaplaceNoise(decay=1, sensitivity=100_001)
