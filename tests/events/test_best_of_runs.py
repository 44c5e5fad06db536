"""The best of a random number of runs against dp_accounting's Renyi bound and the verifier."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from privctl.accounting.events import row_of
from privctl.accounting.events.best_of_runs import gamma_of
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.risk import trade_off
from privctl.domain.events import BestOfRuns, Ledger, SampledGaussian
from verify.recompute.ledger import epsilon_of

WHOLE = BestOfRuns(noise_multiplier=4.0, mean_runs=10.0)
ON_BATCHES = BestOfRuns(noise_multiplier=1.0, mean_runs=10.0, shape=0.0, sample_rate=0.01, run_steps=100)


def of(event: BestOfRuns) -> Ledger:
    return Ledger(events=(event,))


def one_run(event: BestOfRuns) -> Ledger:
    noise, rate = event.noise_multiplier, event.sample_rate
    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=event.run_steps),))


def theirs(event: BestOfRuns, orders: list[float]) -> RdpAccountant:
    step = dp_event.PoissonSampledDpEvent(event.sample_rate, dp_event.GaussianDpEvent(event.noise_multiplier))
    run = dp_event.SelfComposedDpEvent(step, event.run_steps)
    return RdpAccountant(orders).compose(dp_event.RepeatAndSelectDpEvent(run, event.mean_runs, event.shape))


@pytest.mark.parametrize(
    "event", [WHOLE, replace(WHOLE, shape=0.5), pytest.param(ON_BATCHES, marks=pytest.mark.slow)], ids=repr
)
def test_against_dp_accounting(event: BestOfRuns) -> None:
    orders = [1 + k / 20 for k in range(1, 400)] + [float(k) for k in range(21, 400)]
    bound = theirs(event, orders).get_epsilon(1e-6)
    found = epsilon_bound(of(event), 1e-6)
    assert found == pytest.approx(bound, rel=6e-3)
    assert epsilon_bound(one_run(event), 1e-6) * 1.5 < found
    assert epsilon_floor(of(event), 1e-6) <= found
    assert epsilon_bound(of(replace(event, noise_multiplier=event.noise_multiplier / 2)), 1e-6) > 1.7 * bound


@pytest.mark.parametrize("event", [WHOLE, replace(ON_BATCHES, shape=5.0)], ids=repr)
def test_divergences_of_whole_orders_against_dp_accounting(event: BestOfRuns) -> None:
    """Where the least in theorem 2 is over the same orders."""
    orders = [float(k) for k in range(2, 65)]
    bound = theirs(event, orders).rdp
    found = row_of(event).divergences(event, np.array(orders))
    assert (found <= bound * (1 + 1e-9)).all()
    assert found == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize("event", [WHOLE, ON_BATCHES, replace(WHOLE, steps=3)], ids=repr)
@pytest.mark.slow
def test_verified(event: BestOfRuns) -> None:
    found = epsilon_bound(of(event), 1e-6)
    assert epsilon_of(of(event), 1e-6, (found,)).at_most(found)
    assert not epsilon_of(of(event), 1e-6, (found * 0.99,)).at_most(found * 0.99)


def test_one_run_alone_costs_what_it_costs_by_its_divergences() -> None:
    alone = replace(WHOLE, mean_runs=1.0)
    orders = np.array([1.5, 2.0, 30.0])
    # Between orders what is straight lies a little above.
    assert row_of(alone).divergences(alone, orders) == pytest.approx(orders / 32, rel=1e-3)
    assert (row_of(alone).divergences(alone, orders) >= orders / 32 * (1 - 1e-12)).all()


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (3.9, 0.0), (54.0, 0.5), (1e6, 5.0), (1.001, 1.0)])
def test_gamma_gives_the_mean(mean: float, shape: float) -> None:
    gamma = gamma_of(mean, shape)
    law = (1 / gamma - 1) / -math.log(gamma) if shape == 0 else shape * (1 - gamma) / (gamma * (1 - gamma**shape))
    assert law == pytest.approx(mean, rel=1e-6)


@pytest.mark.slow
def test_a_record_is_not_taken_to_be_absent_from_many_runs() -> None:
    rare = BestOfRuns(noise_multiplier=0.3, mean_runs=1000.0, sample_rate=1e-3)
    assert trade_off(of(rare)).advantage() > 2e-3
