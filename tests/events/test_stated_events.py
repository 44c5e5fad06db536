"""Stated guarantees as events: against Kairouz, Oh and Viswanath's composition, dp_accounting, and the verifier."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from dp_accounting.rdp import rdp_privacy_accountant as dp_rdp

from privctl.accounting import renyi
from privctl.accounting.events import row_of
from privctl.accounting.ledger import delta_bound, epsilon_bound, epsilon_floor
from privctl.accounting.renyi_profile import log_deltas
from privctl.cli import run
from privctl.domain.events import EpsilonDeltaDp, Event, Ledger, SampledGaussian, ZeroConcentratedDp
from tests.accounting.theorems import optimal
from tests.few import few
from verify.recompute.ledger import epsilon_of

HALF = EpsilonDeltaDp(epsilon=0.5, delta=0.2, sample_rate=0.5)


def of(*events: Event) -> Ledger:
    return Ledger(events=events)


def test_one_step_is_what_is_stated() -> None:
    stated = of(EpsilonDeltaDp(epsilon=1, delta=1e-6))
    assert epsilon_bound(stated, 1e-6) == pytest.approx(1, rel=1e-9)
    assert math.isinf(epsilon_bound(stated, 0.99e-6))
    # (1 - delta) (e^(t) - e^(epsilon)) / (e^t + 1) + delta, with t = 1
    wider = 1e-6 + (1 - 1e-6) * (math.e - math.exp(0.5)) / (math.e + 1)
    assert epsilon_bound(stated, wider) == pytest.approx(0.5, rel=1e-8)
    assert epsilon_of(stated, wider).upper == pytest.approx(0.5, rel=1e-10)


@pytest.mark.parametrize(("epsilon", "delta", "steps"), few([(0.1, 1e-8, 10), (0.1, 0.0, 200), (0.5, 1e-9, 40)], 1, 2))
def test_steps_compose_as_the_theorem_says(epsilon: float, delta: float, steps: int) -> None:
    """No better number follows from the steps' epsilon and delta (Kairouz, Oh and Viswanath 2015, theorem 3.3)."""
    stated = of(EpsilonDeltaDp(epsilon=epsilon, delta=delta, steps=steps))
    best = optimal(epsilon, delta, steps, 1e-6)
    found = epsilon_bound(stated, 1e-6)
    assert best * (1 - 1e-9) <= found <= best * (1 + 3e-4)
    assert epsilon_floor(stated, 1e-6) == pytest.approx(best, rel=0.03)
    assert epsilon_of(stated, 1e-6, (found,)).at_most(found)
    assert not epsilon_of(stated, 1e-6, (best * 0.98,)).at_most(best * 0.98)


def test_on_batches_against_dp_accounting() -> None:
    """Theirs knows only the amplified epsilon and delta of a step, which say less than its loss does."""
    stated = EpsilonDeltaDp(epsilon=1.0, delta=1e-8, sample_rate=0.1, steps=50)
    amplified = common.DifferentialPrivacyParameters(math.log1p(0.1 * math.expm1(1)), 1e-9)
    theirs = dp_pld.from_privacy_parameters(amplified).self_compose(50).get_epsilon_for_delta(1e-6)
    found = epsilon_bound(of(stated), 1e-6)
    assert 0.5 * theirs < found < theirs
    assert epsilon_floor(of(stated), 1e-6) <= found
    assert epsilon_of(of(stated), 1e-6, (found,)).at_most(found)
    assert epsilon_bound(of(replace(stated, sample_rate=0.2)), 1e-6) > 1.5 * found


def test_what_tells_of_the_absence_lies_at_the_least_loss_on_a_batch() -> None:
    """Log(1 - rate), which is finite: were it taken for less, an upper bound would be too low."""
    pair = row_of(HALF).pair(HALF, False).pair
    least = math.log(0.5)
    log_p, log_q = pair.cells(np.array([least - 1, least - 0.01, least + 0.01, 0.0, 1.0]))
    assert np.exp(log_p[:3]) == pytest.approx([0, 0, 0.5 * 0.2])
    assert np.exp(log_q[:3]) == pytest.approx([0, 0, 0.2])
    assert np.exp(log_p[-1]) == pytest.approx(0.5 * 0.2)


def test_a_delta_has_no_renyi_divergence() -> None:
    with pytest.raises(ValueError, match="no finite Renyi divergence"):
        renyi.ledger_epsilon(of(EpsilonDeltaDp(epsilon=1, delta=1e-9)), 1e-6)
    pure = EpsilonDeltaDp(epsilon=0.5, sample_rate=0.3)
    with mpmath.workdps(30):
        p, odds, order = 1 / (1 + mpmath.exp(-0.5)), mpmath.exp(0.5), mpmath.mpf(6.5)
        ratios = [1 - 0.3 + 0.3 * odds, 1 - 0.3 + 0.3 / odds]
        exact = mpmath.log((1 - p) * ratios[0] ** order + p * ratios[1] ** order) / (order - 1)
    assert renyi.renyi(pure, [6.5])[0] == pytest.approx(float(exact), rel=1e-10)


def best_conversion(rho: float, xi: float, epsilon: float) -> float:
    """The least of Canonne, Kamath and Steinke's deltas over all orders, by golden section at 30 digits."""
    with mpmath.workdps(30):

        def log_delta(a: mpmath.mpf) -> mpmath.mpf:
            return (a - 1) * (xi + rho * a - epsilon) + (a - 1) * mpmath.log(1 - 1 / a) - mpmath.log(a)

        root = mpmath.findroot(
            lambda a: xi - epsilon + rho * (2 * a - 1) + mpmath.log(1 - 1 / a), (epsilon - xi) / (2 * rho) + 1
        )
        return float(mpmath.exp(log_delta(root)))


@pytest.mark.parametrize(
    ("rho", "xi", "epsilon"),
    [
        (0.1, 0.0, 2.0),
        pytest.param(1.0, 0.5, 8.0, marks=pytest.mark.slow),
        pytest.param(0.001, 0.0, 0.2, marks=pytest.mark.slow),
    ],
)
def test_zcdp_at_the_best_order(rho: float, xi: float, epsilon: float) -> None:
    stated = of(ZeroConcentratedDp(rho=rho, xi=xi))
    delta = best_conversion(rho, xi, epsilon)
    assert epsilon * (1 - 1e-9) <= epsilon_bound(stated, delta) <= epsilon * (1 + 3e-5)
    assert epsilon_of(stated, delta).upper == pytest.approx(epsilon, rel=2e-5)
    assert float(np.exp(log_deltas(lambda a: xi + rho * a, np.array([epsilon]))[0])) == pytest.approx(delta, rel=1e-4)
    # A Gaussian has this rho: nothing below its epsilon can be right.
    shift = SampledGaussian(noise_multiplier=1 / math.sqrt(2 * rho))
    assert epsilon_bound(stated, delta) > epsilon_bound(of(shift), delta)
    assert epsilon_bound(of(ZeroConcentratedDp(rho=rho / 4, xi=xi / 4)), delta) < 0.8 * epsilon


def test_zcdp_against_dp_accounting() -> None:
    orders = np.concatenate([np.linspace(1.01, 30, 4000), np.linspace(31, 400, 370)])
    theirs = dp_rdp.compute_epsilon(orders, 0.3 * orders, 1e-6)[0]
    several = of(ZeroConcentratedDp(rho=0.05, steps=4), ZeroConcentratedDp(rho=0.1))
    found = epsilon_bound(several, 1e-6)
    assert found == pytest.approx(theirs, rel=3e-5)
    assert renyi.ledger_epsilon(several, 1e-6)[0] == pytest.approx(theirs, rel=2e-3)
    assert delta_bound(several, theirs, near=1e-6) == pytest.approx(1e-6, rel=1e-2)


@pytest.mark.slow
def test_zcdp_composes_with_other_kinds() -> None:
    """By loss distributions, and tighter than by Renyi divergences, which add."""
    mixed = of(ZeroConcentratedDp(rho=0.1), SampledGaussian(noise_multiplier=1, sample_rate=0.01, steps=500))
    found = epsilon_bound(mixed, 1e-6)
    assert epsilon_floor(mixed, 1e-6) <= found < renyi.ledger_epsilon(mixed, 1e-6)[0]
    assert epsilon_of(mixed, 1e-6, (found,)).at_most(found)
    stated = of(ZeroConcentratedDp(rho=0.1), EpsilonDeltaDp(epsilon=1, delta=1e-8))
    found = epsilon_bound(stated, 1e-6)
    assert epsilon_of(stated, 1e-6, (found,)).at_most(found)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (["laplace", "--scale", "2", "--sample-rate", "0.1", "--steps", "3"], 3 * math.log1p(0.1 * math.expm1(0.5))),
        (["k-ary-response", "--answer-epsilon", "0.5", "--steps", "4"], 2.0),
        (["discrete-laplace", "--decay", "0.5", "--sensitivity", "3"], 1.5),
        (["approximate-dp", "--step-epsilon", "0.3", "--step-delta", "1e-9"], None),
        (["zcdp", "--rho", "0.1"], None),
    ],
)
def test_at_delta_0_the_largest_loss_counts(options: list[str], most: float | None, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run(["account", "--mechanism", *options, "--delta", "0", "-o", str(path), "-q"]) == 0
    epsilon = json.loads(path.read_text())["guarantees"][0]["epsilon"]
    assert epsilon == (None if most is None else pytest.approx(most, rel=1e-8))
    assert run(["verify", str(path), "-q"]) == 0


@pytest.mark.parametrize(
    "options",
    [
        ["gaussian", "--noise-multiplier", "1", "--no-peers"],
        ["laplace", "--epsilon", "1"],
        ["secret", "--record", "0.1", "--prior", "0.1", "--noise-multiplier", "1"],
        ["ferret", "--epsilon", "1", "--groups", "3"],
    ],
)
def test_delta_0_is_refused_where_it_says_nothing(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "--mechanism", *options, "--delta", "0"]) == 2
    assert "give one above 0" in capsys.readouterr().err


@pytest.mark.parametrize(("rho", "epsilon"), [(1000.0, 1230.0), (1e4, 10740.0)])
def test_zcdp_beyond_the_floats_exponents(rho: float, epsilon: float) -> None:
    stated, delta = of(ZeroConcentratedDp(rho=rho)), best_conversion(rho, 0.0, epsilon)
    assert epsilon <= epsilon_bound(stated, delta) <= epsilon * (1 + 1e-5)
    assert epsilon_of(stated, delta, (epsilon,)).upper == pytest.approx(epsilon, rel=1e-9)


def test_a_plan_of_a_large_rho_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    call = ["account", "--mechanism", "zcdp", "--rho", "1000", "--delta", "1e-6", "--prior", "0.01"]
    assert run([*call, "-o", str(path), "-q"]) == 0
    assert run(["verify", str(path), "-q"]) == 0
