"""Closed formulas again: against numbers that were computed elsewhere, at 50 digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privctl.domain.events import Batches, SecretMixture, SignBits
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import ClippedTraining, Formula, Optimizer, Regime
from verify.losses import secret
from verify.losses.bound_pair import BoundPair
from verify.recompute import compose_grid, dp_weights, gaussian, mutual_information
from verify.recompute.sensitivity import least_nonconvex, sensitivity


def training(**more: Any) -> ClippedTraining:
    facts = {"epochs": 10, "learning_rate": 5e-5, "clip_norm": 1, "dataset_size": 1000, "batch_size": 5}
    return ClippedTraining(**{**facts, **more})


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [
        (1, 1, 0.1269367375066439458), (0.5, 0.1, 6.8565824558387265598e-9), (8, 2, 0.00049540173893874536098),
        (0, 1, 0.38292492254802620728), (10, 0.5, 9.8551206108501658811e-89),
    ],
)  # fmt: skip
def test_delta_of_a_gaussian(epsilon: float, mu: float, delta: float) -> None:
    found = gaussian.delta_at(epsilon, mu)
    assert found.near(delta, 1e-13)  # mu = 0.1 is no float
    assert found.upper - found.lower < 1e-14 * delta


@pytest.mark.parametrize(
    ("delta", "mu", "epsilon"),
    [
        (1e-6, 0.5, 2.254084650219740935), (1e-6, 1, 4.8865541174622119964), (1e-5, 2, 9.9972561464343003965),
        (1e-6, 0.02, 0.070960682985433157372), (1e-9, 0.3, 1.6912523121961991527),
    ],
)  # fmt: skip
def test_epsilon_of_a_gaussian(delta: float, mu: float, epsilon: float) -> None:
    assert gaussian.epsilon_at(delta, mu).near(epsilon, 1e-12)


def test_noise_for_a_gaussian() -> None:
    for epsilon, delta, noise in ((0.1, 1e-5, 30.74956613197731), (1, 1e-6, 4.224678889326841)):
        assert gaussian.multiplier_at(epsilon, delta).near(noise, 1e-12)


def test_a_gaussian_at_its_ends() -> None:
    assert gaussian.delta_at(1, 0) == BoundPair(0, 0)
    assert gaussian.delta_at(5000, 1).upper < 1e-300
    assert gaussian.delta_at(1, 1e5).lower > 1 - 1e-15
    assert gaussian.epsilon_at(1e-5, 1e200) == BoundPair(0, math.inf)
    # Just beyond the boundary, each claim turns.
    assert gaussian.delta_at(1, 1 / 4.225).at_most(1e-6) is True
    assert gaussian.delta_at(1, 1 / 4.224).at_most(1e-6) is False


@pytest.mark.parametrize(
    ("facts", "epsilon", "formula", "stddev"),
    [
        ({}, 0.01, Formula.ALGORITHM_2, 0.0140316569058852),
        ({}, 1, Formula.ALGORITHM_2, 0.00976052988025269),
        ({"batch_size": 100, "epochs": 1}, 1, Formula.ALGORITHM_2, 0.00976000264940126),
        ({}, 100, Formula.EQUATION_1, 0.0825501379836636),
    ],
)
def test_the_published_noise(facts: dict[str, Any], epsilon: float, formula: Formula, stddev: float) -> None:
    assert dp_weights.stddev(training(**facts), epsilon, 1e-6, formula) == pytest.approx(stddev, rel=1e-13)


@pytest.mark.parametrize(
    ("facts", "regime", "adjacency", "value"),
    [
        ({}, Regime.CONVEX, Adjacency.REPLACE_ONE, 2e-4),
        ({}, Regime.CONVEX, Adjacency.ZERO_OUT, 1e-4),
        ({}, Regime.NONCONVEX, Adjacency.REPLACE_ONE, 2e-5 + 1e-4 * 1999),
        ({}, Regime.NONCONVEX, Adjacency.ZERO_OUT, 1e-5 + 1e-4 * 1999),
        ({"smoothness": 1.0}, Regime.SMOOTH, Adjacency.REPLACE_ONE, 2.1137474802529588e-4),
        (
            {"learning_rate": 0.1, "batch_size": 10, "strong_convexity": 0.1},
            Regime.STRONGLY_CONVEX, Adjacency.REPLACE_ONE, 0.03154598866323411,
        ),
        (
            {"epochs": 1, "batch_size": 10, "optimizer": Optimizer.MOMENTUM, "momentum": 0.9},
            Regime.NONCONVEX, Adjacency.REPLACE_ONE, 0.09100023905259,
        ),
        ({"optimizer": Optimizer.ADAMW}, Regime.NONCONVEX, Adjacency.REPLACE_ONE, 11816.414112980243),
    ],
)  # fmt: skip
def test_how_far_weights_move(facts: dict[str, Any], regime: Regime, adjacency: Adjacency, value: float) -> None:
    # docs/papers.md#sensitivity-of-trained-weights; the smooth row's number visits at the first step of each epoch,
    # which is nearly the worst.
    found = sensitivity(training(**facts), regime, adjacency, 124_439_808)
    assert found == pytest.approx(value, rel=1e-5 if regime is Regime.SMOOTH else 1e-12)


def test_where_a_regime_says_nothing() -> None:
    adam = training(optimizer=Optimizer.ADAM)
    assert sensitivity(adam, Regime.CONVEX, Adjacency.ZERO_OUT, 10) is None
    assert sensitivity(training(), Regime.SMOOTH, Adjacency.ZERO_OUT, 10) is None
    assert sensitivity(training(learning_rate=1, smoothness=3), Regime.CONVEX, Adjacency.ZERO_OUT, 10) is None
    assert least_nonconvex(adam) is None


def test_the_case_that_meets_the_bound_does_so_when_it_is_run() -> None:
    """SGD on C|w| upside down, begun at 0: one visit decides the side, and every step leads away."""
    facts = training()
    ends = []
    for first in (1.0, 0.0):
        w = 0.0
        for step in range(facts.total_steps):
            slope = -math.copysign(1.0, w) if w else -first / facts.batch_size if step == 0 else 1.0
            w -= facts.learning_rate * facts.clip_norm * slope
        ends.append(w)
    # With the record it goes up; without it the other examples' subgradient leads down, from the second step on.
    assert abs(ends[0] - ends[1]) == pytest.approx(least_nonconvex(facts), rel=1e-3)


def test_nats_and_what_they_allow() -> None:
    # docs/papers.md#what-nats-imply and docs/papers.md#worst-case-of-sign-bits
    signs = SignBits(groups=2, fire_probability=0.07213475204444816, sample_rate=0.005, steps=1000)
    assert mutual_information.nats(signs) == pytest.approx(0.5, rel=1e-12)
    for nats, tau, area in ((0.01, 0.1411851405, 0.6312185186), (0.5, 0.9036225083, 0.9953556895), (0.7, 1, 1)):
        assert mutual_information.total_variation(nats).near(tau, 1e-9)
        assert mutual_information.auc(nats).near(area, 1e-9)
    assert mutual_information.unavoidable_delta(signs, Batches.POISSON) == pytest.approx(0.50121107, abs=1e-8)
    assert mutual_information.unavoidable_delta(signs, Batches.SHUFFLED) == pytest.approx(0.52701312, abs=1e-8)


@pytest.mark.parametrize(
    ("probabilities", "noise", "nats"),
    [
        ((0.01,), 1, 8.38122076508e-05), ((0.1,) * 3, 1, 0.0623886341498), ((0.005,) * 8, 0.5, 0.0150818087223),
        ((0.02, 0.05, 0.1, 0.2), 0.8, 0.158499178449), ((0.001,) * 75, 0.3, 0.2330207931), ((1.0,), 1, 0.5),
        ((0.3,) * 10, 5, 0.181674018239), ((1e-4,), 0.7, 3.34134725726e-08),
    ],
)  # fmt: skip
def test_what_a_step_gives_away_of_a_secret(probabilities: tuple[float, ...], noise: float, nats: float) -> None:
    event = SecretMixture(probabilities=probabilities, noise_multiplier=noise, steps=3)
    assert secret.information(event).near(3 * nats, 1e-9)


def test_the_best_guess() -> None:
    assert secret.relative_entropy(0.1, 0.001) == pytest.approx(0.366593004807, rel=1e-11)
    assert secret.posterior(1, 0.1) == pytest.approx(0.689217226545, rel=1e-11)
    assert secret.posterior(0.1, 0.001) == pytest.approx(0.037476005540, rel=1e-10)
    assert secret.posterior(8, 0.001) == 1
    assert secret.posterior(0, 0.2) == 0.2


def test_enclosures_decide_only_what_they_know() -> None:
    found = BoundPair(1.0, 1.1)
    assert [found.at_most(value) for value in (0.9, 1.05, 1.2)] == [False, None, True]
    with pytest.raises(ValueError, match="not at most"):
        BoundPair(2.0, 1.0)


@pytest.mark.parametrize(
    ("chance", "records", "sigma", "nats"),
    # p^2 (e^(1/sigma^2) - 1) / 2 less its third moment's part, and mpmath.
    [(1e-9, 1, 5.0, 2.0405387095350e-20), (1e-6, 3, 0.5, 2.4055420879521e-10)],
)
def test_records_that_are_hardly_ever_drawn(chance: float, records: int, sigma: float, nats: float) -> None:
    found = secret.information_about_records((chance,) * records, sigma, 1)
    assert found.lower <= nats <= found.upper
    assert found.upper - found.lower < 1e-8 * nats


def test_next_to_no_noise_takes_no_memory() -> None:
    """The grid would have 10^11 points; far apart components have E[K^2] / (2 sigma^2) less the entropy of K."""
    sigma, chance = 1e-5, 0.3
    weights = [math.comb(3, k) * chance**k * (1 - chance) ** (3 - k) for k in range(4)]
    squares = sum(w * k * k for k, w in enumerate(weights))
    truth = squares / (2 * sigma**2) + sum(w * math.log(w) for w in weights)
    found = secret.information_about_records((chance,) * 3, sigma, 1)
    assert found.lower <= truth <= found.upper
    assert found.upper < truth * (1 + 1e-8)


@pytest.mark.parametrize(("mean", "spread", "times"), [(0.02, 0.2, 1000), (1.0, 1.5, 1), (-0.3, 4.0, 10)])
def test_exponents_of_a_grid_are_the_best_of_all(mean: float, spread: float, times: int) -> None:
    """They are not all tried; those of a Gaussian loss, cut off at 12 standard deviations, are known besides."""
    points = np.linspace(-12.0, 12.0, 1201)
    logs = -(points**2) / 2
    parts = [(mean + spread * points, logs - compose_grid.logsum(logs), times)]

    def cumulant(tilt: float) -> float:
        return compose_grid._cumulant(parts, tilt)

    tilt, epsilon = compose_grid._saddle(parts, -20.0)
    assert epsilon == max(0.0, min((cumulant(tilt) + 20) / tilt for tilt in compose_grid._TILTS))
    assert tilt == pytest.approx(math.sqrt(40 / times) / spread, rel=0.15)
    for sign in (-1.0, 1.0):
        reach, push = compose_grid._edge(parts, 0.0, sign, 100 / spread)
        tried = [(cumulant(sign * each) - compose_grid.WRAPPED) / each for each in 100 / spread * compose_grid._PUSHES]
        assert reach == pytest.approx(sign * min(tried), rel=1e-12)
        assert push == pytest.approx(math.sqrt(-2 * compose_grid.WRAPPED / times) / spread, rel=0.15)
