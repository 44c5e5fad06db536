"""The best of a random number of runs with Laplace noise, against dp_accounting and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from privctl.accounting.events import laplace, row_of
from privctl.accounting.ledger import delta_bound, epsilon_bound, epsilon_floor
from privctl.domain.events import BestOfLaplaceRuns, LaplaceNoise, Ledger
from verify.events import row_of as verified_row_of
from verify.losses.cells import CellReach
from verify.recompute.ledger import NoBoundError, epsilon_of

EVENT = BestOfLaplaceRuns(scale=20, mean_runs=2, run_steps=10)
LAWS = [EVENT, replace(EVENT, shape=0.0), replace(EVENT, shape=None), replace(EVENT, mean_runs=1.0)]


def of(event: BestOfLaplaceRuns) -> Ledger:
    return Ledger(events=(event,))


def theirs(event: BestOfLaplaceRuns, orders: list[float]) -> RdpAccountant:
    run = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(event.scale), event.run_steps)
    shape = math.inf if event.shape is None else event.shape
    return RdpAccountant(orders).compose(dp_event.RepeatAndSelectDpEvent(run, event.mean_runs, shape), event.steps)


@pytest.mark.parametrize("event", [*LAWS, replace(EVENT, steps=3)], ids=repr)
def test_divergences_against_dp_accounting(event: BestOfLaplaceRuns) -> None:
    orders = [1 + k / 20 for k in range(1, 400)] + [float(k) for k in range(21, 4000, 7)]
    found = event.steps * row_of(event).divergences(event, np.array(orders))
    expected = theirs(event, orders).rdp
    assert (found <= expected * (1 + 3e-4)).all()
    assert found[150:] == pytest.approx(expected[150:], rel=0.02)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
def test_at_infinite_order_it_is_that_of_pure_runs(shape: float) -> None:
    """Corollary 3 of Papernot and Steinke: (2 + shape) epsilon."""
    event = BestOfLaplaceRuns(scale=2, mean_runs=1000, shape=shape)
    assert row_of(event).divergences(event, np.array([1e12]))[0] == pytest.approx((2 + shape) / 2, rel=1e-6)
    assert delta_bound(of(event), (2 + shape) / 2 * 1.001, near=1e-6) < 1e-9


def test_divergences_of_a_run_against_an_integral() -> None:
    alone, orders = replace(EVENT, mean_runs=1.0), np.array([1.001, 1.5, 2.0, 30.0, 1000.0])
    integral = 10 * laplace.ROW.divergences(LaplaceNoise(scale=20), orders)
    assert row_of(alone).divergences(alone, orders) == pytest.approx(integral, rel=1e-9)


@pytest.mark.parametrize("event", LAWS, ids=repr)
def test_the_verifier_agrees_and_notices_half_the_noise(event: BestOfLaplaceRuns) -> None:
    found = epsilon_bound(of(event), 1e-5)
    assert epsilon_of(of(event), 1e-5, (found,)).at_most(found) is True
    if event.mean_runs > 1:  # one run has an exact loss, below what its divergences show
        assert epsilon_of(of(event), 1e-5, (found * 0.99,)).at_most(found * 0.99) is not True
    half = of(replace(event, scale=event.scale / 2))
    assert epsilon_of(half, 1e-5, (found,)).at_most(found) is False


@pytest.mark.parametrize("shape", [1.0, None])
def test_the_floor_is_a_single_run(shape: float | None) -> None:
    event = replace(EVENT, shape=shape)
    run = Ledger(events=(LaplaceNoise(scale=20, steps=10),))
    expected = 0.0 if shape is None else epsilon_floor(run, 1e-5)  # a Poisson number of runs may be none
    assert epsilon_floor(of(event), 1e-5) == pytest.approx(expected, abs=1e-12)
    assert epsilon_floor(of(event), 1e-5) < epsilon_bound(of(event), 1e-5)


@pytest.mark.parametrize(
    ("shape", "growth"),
    [(1.0, lambda x, y: 2 * math.log((1 - 0.8 * y) / (1 - 0.8 * x))), (None, lambda x, y: 5 * (x - y))],
    ids=["geometric", "Poisson"],
)
def test_from_below_it_is_what_the_lowest_of_the_runs_tells(
    shape: float | None, growth: Callable[[float, float], float]
) -> None:
    """One number a run: losses just below epsilon or above have mass 1/2 with the record and e^-epsilon / 2 without.

    ``growth`` is the log of the ratio of derivatives of the generating function of the number of runs, at two points.
    """
    epsilon, event = 0.5, BestOfLaplaceRuns(scale=2, mean_runs=5, shape=shape)
    cells = verified_row_of(event).cells(event, True)(1e-3, CellReach(-40))
    largest = float(np.abs(np.log(cells.p / cells.q)).max())
    assert largest == pytest.approx(epsilon + growth(0.5, math.exp(-epsilon) / 2), rel=0.01)
    assert largest > 1.9 * epsilon
    assert largest < epsilon_bound(of(event), 1e-9)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("shape", [1.0, None])
@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e308])
def test_noise_that_nobody_has_is_verified_without_warnings(scale: float, shape: float | None) -> None:
    event = BestOfLaplaceRuns(scale=scale, mean_runs=3, shape=shape)
    if scale < 1:
        with pytest.raises(NoBoundError, match="so large that floats cannot hold them"):
            epsilon_of(of(event), 1e-5)
    else:
        assert epsilon_of(of(event), 1e-5).at_most(1e-9)
