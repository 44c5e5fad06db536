"""The best of a random number of runs against dp_accounting's Renyi bound and the verifier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

from privctl.accounting import runs_law
from privctl.accounting.events import best_of_runs, row_of
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.risk import trade_off
from privctl.accounting.runs_law import gamma_of
from privctl.cli import run
from privctl.domain.events import BestOfRuns, Ledger, SampledGaussian
from tests.few import few
from verify.events import best_of_runs as verified_best_of_runs
from verify.events import row_of as verified_row_of
from verify.events import selection_bound
from verify.events.best_of_runs import runs_exceed
from verify.losses.cells import CellReach
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
    shape = math.inf if event.shape is None else event.shape
    return RdpAccountant(orders).compose(dp_event.RepeatAndSelectDpEvent(run, event.mean_runs, shape))


@pytest.mark.parametrize(
    "event",
    few([WHOLE, replace(WHOLE, shape=0.5), replace(WHOLE, shape=None), ON_BATCHES], 1),
    ids=repr,
)
def test_against_dp_accounting(event: BestOfRuns) -> None:
    orders = [1 + k / 20 for k in range(1, 400)] + [float(k) for k in range(21, 400)]
    bound = theirs(event, orders).get_epsilon(1e-6)
    found = epsilon_bound(of(event), 1e-6)
    assert found == pytest.approx(bound, rel=6e-3)
    assert epsilon_bound(one_run(event), 1e-6) * 1.5 < found
    assert epsilon_floor(of(event), 1e-6) <= found
    assert epsilon_bound(of(replace(event, noise_multiplier=event.noise_multiplier / 2)), 1e-6) > 1.7 * bound


@pytest.mark.parametrize("event", [WHOLE, ON_BATCHES], ids=repr)
def test_the_floor_is_one_runs(event: BestOfRuns) -> None:
    """All runs may be equally good. Not the bound: what follows from divergences alone may be above the truth."""
    floor = epsilon_floor(of(event), 1e-6)
    assert floor == pytest.approx(epsilon_floor(one_run(event), 1e-6))
    assert 1.5 * floor < epsilon_bound(of(event), 1e-6)
    assert epsilon_floor(of(replace(event, shape=None)), 1e-6) == 0  # there may be no run


@pytest.mark.parametrize("event", [WHOLE, replace(ON_BATCHES, shape=5.0), replace(ON_BATCHES, shape=None)], ids=repr)
def test_divergences_of_whole_orders_against_dp_accounting(event: BestOfRuns) -> None:
    """Where the least in theorem 2 is over the same orders."""
    orders = [float(k) for k in range(2, 65)]
    bound = theirs(event, orders).rdp
    found = row_of(event).divergences(event, np.array(orders))
    assert (found <= bound * (1 + 1e-9)).all()
    high = 0 if event.shape is not None else 8  # theorem 6 is lower at larger orders than at the smallest
    assert found[high:] == pytest.approx(bound[high:], rel=0.02)


@pytest.mark.parametrize(
    "event", [WHOLE, ON_BATCHES, replace(ON_BATCHES, shape=None), replace(WHOLE, steps=3)], ids=repr
)
@pytest.mark.slow
def test_verification_accepts_the_bound_and_no_less(event: BestOfRuns) -> None:
    found = epsilon_bound(of(event), 1e-6)
    assert epsilon_of(of(event), 1e-6, (found,)).at_most(found)
    assert not epsilon_of(of(event), 1e-6, (found * 0.99,)).at_most(found * 0.99)


def epsilon_of_threshold_events(event: BestOfRuns, chance: Callable[[float], float]) -> float:
    """The epsilon at 1e-5 that 'some run is above t' or 'none is' shows, over all t; one step a run, all records.

    ``chance`` is the generating function of the number of runs.
    """
    least = 0.0
    for t in np.linspace(-6, 7, 2601):
        none, none_without = (chance(stats.norm.cdf(t - shift)) for shift in (1 / event.noise_multiplier, 0.0))
        for p, q in ((1 - none, 1 - none_without), (none_without, none)):
            if p > 1e-5 and q > 1e-12:
                least = max(least, math.log((p - 1e-5) / q))
    return least


@pytest.mark.parametrize(
    ("event", "chance"),
    [
        (BestOfRuns(noise_multiplier=2, mean_runs=4.0), lambda x: 0.25 * x / (1 - 0.75 * x)),
        (BestOfRuns(noise_multiplier=2, mean_runs=4.0, shape=None), lambda x: math.exp(4 * (x - 1))),
    ],
    ids=["geometric", "Poisson"],
)
def test_from_below_it_is_what_the_largest_of_the_runs_tells(
    event: BestOfRuns, chance: Callable[[float], float]
) -> None:
    expected = epsilon_of_threshold_events(event, chance)
    assert epsilon_from_below(event) == pytest.approx(expected, rel=0.01)
    assert expected > 1.05 * epsilon_bound(one_run(event), 1e-5), "more than one run"
    bound = epsilon_bound(of(event), 1e-5)
    assert (
        epsilon_from_below(event)
        < bound
        < epsilon_from_below(replace(event, noise_multiplier=event.noise_multiplier / 2))
    )


def epsilon_from_below(event: BestOfRuns) -> float:
    """The epsilon at 1e-5 of the verifier's law from below, in the worse order."""
    cells = verified_row_of(event).cells(event, True)(1e-3, CellReach(-40))

    def excess(epsilon: float) -> float:
        orders = (cells.p, cells.q), (cells.q, cells.p)
        return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in orders)) - 1e-5

    return float(optimize.brentq(excess, 0, 30))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_from_below_one_run_alone_costs_what_it_costs(rate: float) -> None:
    """Its steps, composed otherwise, are those of a training."""
    alone = BestOfRuns(noise_multiplier=3.0, mean_runs=1.0, sample_rate=rate, run_steps=10)
    exact = epsilon_bound(one_run(alone), 1e-5)
    assert exact * 0.995 < epsilon_from_below(alone) <= exact


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


def test_the_bound_holds_for_a_poisson_number_of_exact_selections() -> None:
    """Each run releases one bit, 1 with chance p or q, and 1 is judged the better; no run at all is a third outcome."""
    mean, p, q = 3.0, 0.7, 0.45
    shows = [(1 - math.exp(-mean * s), math.exp(-mean * s) - math.exp(-mean), math.exp(-mean)) for s in (p, q)]
    orders = np.array([2.0, 5.0, 20.0, 60.0])

    def divergences(laws: list[tuple[float, ...]]) -> list[float]:
        both = [laws, laws[::-1]]
        return [
            max(math.log(sum(x**a * y ** (1 - a) for x, y in zip(*of, strict=True))) / (a - 1) for of in both)
            for a in orders
        ]

    run = np.array(divergences([(p, 1 - p), (q, 1 - q)]))
    bound = best_of_runs.of_poisson_law(orders, run, mean)
    assert (np.array(divergences(shows)) <= bound).all()
    assert (np.array(divergences(shows)) > run * 0.5).any()


@pytest.mark.parametrize(
    ("mean", "shape", "law"),
    [
        (5.0, 1.0, stats.geom(0.2)),
        (5.0, 0.0, stats.logser(1 - gamma_of(5.0, 0.0))),
        (3.0, None, stats.poisson(3.0)),
        (1.0, 1.0, stats.randint(1, 2)),
    ],
)
def test_what_is_drawn_has_the_law(mean: float, shape: float | None, law: stats.rv_frozen) -> None:
    levels = [k / 16 + 1 / 64 for k in range(16)] + [0.999]
    drawn = [runs_law.draw(mean, shape, int(level * 2.0**60) << (runs_law.BITS - 60)) for level in levels]
    assert drawn == [int(law.ppf(level)) for level in levels]
    most = runs_law.most_runs(mean, shape)
    assert runs_law.draw(mean, shape, (1 << runs_law.BITS) - 1) <= most
    assert not runs_exceed(mean, shape, most)
    assert runs_exceed(mean, shape, math.ceil(most * 0.9) - 1)


@pytest.mark.parametrize("shape", [None, 1.0, 0.5, 0.0])
def test_the_most_runs_that_a_search_states_are_not_refuted(shape: float | None) -> None:
    for mean in (1.0, 1.1, 1.5, 4.0, 6.0, 7.0, 9.0, 12.0, 15.0, 40.0, 300.0, 500.0, 700.0, 1000.0):
        most = runs_law.most_runs(mean, shape)
        assert not runs_exceed(mean, shape, most), mean
        if mean > 1 or shape is None:
            assert all(runs_exceed(mean, shape, fewer) for fewer in (most - max(2, most // 20), 0, -1)), mean


@pytest.mark.slow
def test_a_plan_of_a_search_meets_its_epsilon_and_is_verified(tmp_path: Path) -> None:
    report_path = tmp_path / "plan.report.json"
    asked = ["account", "--mechanism", "search", "--expected-runs", "10", "--epsilon", "8", "--delta", "1e-5"]
    assert (
        run([*asked, "--dataset-size", "6000", "--batch-size", "60", "--epochs", "10", "-q", "-o", str(report_path)])
        == 0
    )
    report = json.loads(report_path.read_text())
    assert 7.99 < report["guarantees"][0]["epsilon"] <= 8
    assert "raises it to 8" in report["warnings"][-1]
    assert run(["verify", str(report_path), "-q"]) == 0


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_so_little_noise_that_the_number_of_runs_hardly_counts(rate: float) -> None:
    """Theorem 2 with order 1 for what the number of runs adds, by mpmath at whole orders."""
    event = BestOfRuns(noise_multiplier=0.1, mean_runs=5.0, sample_rate=rate, run_steps=20)

    def epsilon(order: int) -> float:
        with mpmath.workdps(40):
            moment = mpmath.fsum(
                mpmath.binomial(order, k) * mpmath.mpf(1 - rate) ** (order - k) * mpmath.mpf(rate) ** k
                * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(event.noise_multiplier) ** 2))
                for k in range(order + 1)
            )  # fmt: skip
            run = event.run_steps * mpmath.log(moment) / (order - 1)
            selection = run + mpmath.log(5) / (order - 1) + 2 * mpmath.log(5)
            return float(selection + mpmath.log1p(-1 / mpmath.mpf(order)) - mpmath.log(1e-6 * order) / (order - 1))

    least = min(epsilon(order) for order in range(2, 8))
    # Orders between whole ones may give less, at most down to twice the log of the mean, which every order pays.
    assert 2 * math.log(5) < epsilon_bound(of(event), 1e-6) <= least * (1 + 1e-9)
    again = epsilon_of(of(event), 1e-6, (least,))
    assert 2 * math.log(5) < again.upper <= least * (1 + 1e-9)


@pytest.mark.parametrize("event", [WHOLE, replace(WHOLE, shape=None), ON_BATCHES], ids=repr)
def test_the_best_order_is_the_best_of_all(event: BestOfRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    epsilons = np.concatenate([np.linspace(0, 60, 60), np.geomspace(1e-6, 1e4, 40)])
    found: list[tuple[np.ndarray, np.ndarray]] = []
    moments_of = selection_bound._moments
    monkeypatch.setattr(selection_bound, "_moments", lambda *given: found.append(moments_of(*given)) or found[-1])
    bound = verified_best_of_runs._bound.__wrapped__(event)
    orders, moments = found[0]
    lines = moments - (orders - 1) * (epsilons[:, None] - np.log1p(-1 / orders)) - np.log(orders)
    none_apart = math.log(-math.expm1(-float(moments[0] / (orders[0] - 1)))) / 2
    expected = np.minimum(lines.min(axis=1), min(0.0, none_apart))
    np.testing.assert_allclose(bound.log_delta(epsilons), expected, rtol=1e-12, atol=1e-12)


def test_the_largest_order_counts_where_epsilon_is_small() -> None:
    """Theorem 2 at order 2048, by the binomial expansion at 40 digits and the geometric law's gamma, 1 / mean."""
    event = BestOfRuns(noise_multiplier=52.0, mean_runs=275.0, sample_rate=0.00177, run_steps=187)
    with mpmath.workdps(40):
        rate, order = mpmath.mpf(event.sample_rate), 2048
        moment = mpmath.fsum(
            mpmath.binomial(order, k)
            * rate**k
            * (1 - rate) ** (order - k)
            * mpmath.exp(mpmath.mpf(k * k - k) / (2 * 52**2))
            for k in range(order + 1)
        )
        once = event.run_steps * mpmath.log(moment) / (order - 1)
        stop = (1 - mpmath.mpf(1) / order) * once + mpmath.log(275) / order
        whole = once + mpmath.log(275) / (order - 1) + 2 * stop
        rest = mpmath.log1p(-mpmath.mpf(1) / order) - (mpmath.log(2e-8) + mpmath.log(order)) / (order - 1)
    assert epsilon_bound(of(event), 2e-8) <= float(whole + rest) * (1 + 1e-4)
