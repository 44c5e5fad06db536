"""Monte Carlo: what simulations show, the published test that sees nothing, and a toy training with a planted fault.

Numbers are those of docs/claims.md#what-a-simulation-can-show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.domain.events import Batches, LaplaceNoise, Ledger, RandomizedResponse, SampledGaussian
from privctl.domain.guarantee import Adjacency, Guarantee, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from tests.few import few
from tests.verify.reports import noise, plan
from verify.events.toy_training import toy_training
from verify.recompute import ledger
from verify.recompute.gaussian import delta_at, multiplier_at
from verify.run import read
from verify.simulate.bounds import black_box, violation_rate, white_box
from verify.simulate.law import law_of
from verify.simulate.losses import Draw, LossSamples, gaussian, ledger_losses, sample
from verify.simulate.run import simulate

LEVEL = 1e-3
#: The shift that is just (1, 1e-5)-DP.
EXACT = 1 / multiplier_at(1, 1e-5).upper


def drawn(mu: float, count: int, seed: int = 1) -> LossSamples:
    return sample(gaussian(mu), seed, 1e9, count)


def test_the_mechanism_at_its_boundary_is_not_flagged() -> None:
    found = drawn(EXACT, 1_000_000)
    assert black_box(found, 1, LEVEL).lower <= 1e-5
    mean = white_box(found.present, 1, LEVEL)
    assert mean.lower <= 1e-5 <= mean.upper


def test_twice_the_sensitivity_is_flagged() -> None:
    found = drawn(2 * EXACT, 100_000)
    true = delta_at(1, 2 * EXACT).upper
    assert true == pytest.approx(0.0103949, rel=1e-5)
    for test in (black_box(found, 1, LEVEL), white_box(found.present, 1, LEVEL)):
        assert 1e-5 < test.lower <= true <= test.upper


def test_dp_weights_on_a_nonconvex_training_is_flagged() -> None:
    found = drawn(0.2 / 0.00976052988025269, 100_000)
    assert black_box(found, 1, LEVEL).lower > 0.99
    assert white_box(found.present, 1, LEVEL).lower > 0.99


def test_dp_weights_on_a_convex_training_at_a_small_epsilon() -> None:
    # docs/claims.md#what-a-simulation-can-show: losses flag it at 1e5, events need 1e7.
    found = drawn(2e-4 / 0.0140316569058852, 100_000)
    assert white_box(found.present, 0.01, LEVEL).lower == pytest.approx(0.001792, rel=0.1)
    assert black_box(found, 0.01, LEVEL).lower < 1e-6


def test_false_alarms_are_rare() -> None:
    alarms = sum(
        black_box(found, 1, 0.05).lower > 1e-5 or white_box(found.present, 1, 0.05).lower > 1e-5
        for found in (drawn(EXACT, 20_000, seed) for seed in range(100))
    )
    assert alarms <= 10  # 5 % of 100, in the worst case


def test_the_published_test_sees_nothing() -> None:
    """It draws from the shift it assumes; and a private mechanism may exceed epsilon far more often than delta."""
    assert violation_rate(drawn(1e-7 / 0.00976, 100_000).present, 1.0) == 0
    lawful = drawn(EXACT, 1_000_000).present
    assert violation_rate(lawful, 1.0) > 2e-5


@pytest.mark.parametrize(
    "events",
    [
        (SampledGaussian(noise_multiplier=1, sample_rate=0.2, steps=3),),
        (LaplaceNoise(scale=2, sample_rate=0.5, steps=3),),
        (RandomizedResponse(epsilon=1, bits=2, sample_rate=0.3, steps=2), LaplaceNoise(scale=1)),
        # Two passes, and a part of a third.
        pytest.param(
            (SampledGaussian(noise_multiplier=1, sample_rate=0.25, steps=10, batches=Batches.BALLS_AND_BINS),),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_simulated_losses_are_those_of_the_recomputed_law(events: tuple[object, ...]) -> None:
    whole = Ledger(events=events)  # type: ignore[arg-type]
    draw = ledger_losses(whole)
    assert draw is not None
    found = sample(draw, 3, 1e9, 200_000)
    bulk = ledger.bounds(whole, None, 1e-4)
    for side, above, below in zip((found, found.reversed()), bulk.above, bulk.below, strict=True):
        test = white_box(side.present, 0.4, 1e-6)
        assert test.lower <= above.delta(0.4)
        assert below.delta(0.4) <= test.upper


@pytest.mark.parametrize(
    "event",
    [
        SampledGaussian(noise_multiplier=1.5, sample_rate=0.3, steps=20),
        pytest.param(
            # Five passes, and half of a sixth.
            SampledGaussian(noise_multiplier=1.0, sample_rate=0.25, steps=22, batches=Batches.BALLS_AND_BINS),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda event: str(event.batches),
)
def test_a_training_as_promised_passes_and_one_with_half_the_noise_does_not(event: SampledGaussian) -> None:
    delta = 1e-3
    epsilon = ledger.epsilon_of(Ledger(events=(event,)), delta, (1.0,)).upper

    def lower(draw: Draw) -> float:
        found = sample(draw, 5, 1e9, 40_000)
        return max(white_box(found.present, epsilon, LEVEL).lower, black_box(found, epsilon, LEVEL).lower)

    assert lower(toy_training(event, event.steps)) <= delta
    assert lower(toy_training(event, event.steps, noise=0.5)) > 10 * delta


@pytest.fixture
def noise_of(tmp_path: Path, write_model: Callable[..., Path]) -> PrivacyReport:
    return read(noise(tmp_path, write_model))


@pytest.mark.slow
def test_a_report_of_noise_is_simulated(noise_of: PrivacyReport) -> None:
    found = simulate(noise_of, seed=1, seconds=0.1)
    assert found is not None
    outcomes = {judged.verdict.subject: judged.verdict.outcome for judged in found.judged}
    assert outcomes["published, simulated"] is Outcome.REFUTED
    assert outcomes["convex, simulated"] is Outcome.CONSISTENT
    rate = next(e for e in found.evidence if e.quantity == "violation rate of published")
    assert rate.estimate == 0
    assert "says nothing of delta" in rate.reason
    assert simulate(noise_of, seed=1, seconds=0.0) is not None


def report_of(mechanism: WeightNoise | Ledger, *guarantees: Guarantee) -> PrivacyReport:
    return PrivacyReport(step="made", created="2026-01-01", versions={}, mechanism=mechanism, guarantees=guarantees)


def claimed(name: str, epsilon: float, delta: float, noise: float, sensitivity: float | None = None) -> Guarantee:
    return Guarantee(
        name=name, epsilon=epsilon, delta=delta, adjacency=Adjacency.ZERO_OUT, accountant="made",
        status=Status.CONDITIONAL, noise_multiplier=noise, sensitivity=sensitivity,
    )  # fmt: skip


def test_each_guarantee_of_noise_is_simulated_with_its_own_shift() -> None:
    """One visit and 99 steps move a weight by 199 times what the published formula takes for the whole distance."""
    facts = ClippedTraining(epochs=10, learning_rate=0.1, clip_norm=1, dataset_size=100, batch_size=10)
    noise = WeightNoise(training=facts, noise_stddev=0.01 / EXACT, dimension=1, calibration=Calibration.DP_WEIGHTS)
    published, convex = claimed("published", 1, 1e-5, 1 / EXACT, 0.01), claimed("convex", 1, 1e-5, 1 / EXACT)
    found = simulate(report_of(noise, published, convex), seed=1, seconds=0)
    assert found is not None
    assert [judged.verdict.outcome for judged in found.judged] == [Outcome.REFUTED, Outcome.CONSISTENT]
    # The published test sees nothing: it draws with the shift that the paper assumes.
    rates = [item.estimate for item in found.evidence if item.quantity.startswith("violation rate")]
    assert max(rates) < 1e-3


def test_a_ledger_of_one_kind_is_simulated_with_a_toy_training() -> None:
    event = SampledGaussian(noise_multiplier=1, sample_rate=0.5, steps=2)
    claim = claimed("dp-sgd", ledger.epsilon_of(Ledger(events=(event,)), 0.01).upper, 0.01, 1)
    for deviation, outcome in ((1.0, Outcome.CONSISTENT), (0.5, Outcome.REFUTED)):
        found = simulate(
            report_of(Ledger(events=(replace(event, noise_multiplier=deviation),)), claim), seed=1, seconds=0
        )
        assert found is not None
        assert [judged.verdict.outcome for judged in found.judged] == [outcome] * 2
        assert found.judged[1].verdict.subject == "a toy training of 2 steps"
    unknown = Ledger(events=(replace(event, batches=Batches.FIXED_SIZE),))
    assert simulate(report_of(unknown, claim), seed=1, seconds=0) is None


@pytest.mark.slow
@pytest.mark.forged("the epsilon is that of twice the noise")
def test_a_report_of_passes_with_half_of_its_noise_is_refuted(tmp_path: Path) -> None:
    more = ["--batches", "balls-and-bins", "--sample-rate", "0.25", "--steps", "10", "--delta", "0.01"]
    report_path = tmp_path / "plan.report.json"
    assert run(["account", *more, "--noise-multiplier", "1", "--no-peers", "-o", str(report_path), "-q"]) == 0
    report = read(report_path)
    assert isinstance(report.mechanism, Ledger)
    (event,) = report.mechanism.events
    assert isinstance(event, SampledGaussian)
    halved = replace(report, mechanism=Ledger(events=(replace(event, noise_multiplier=0.5),)))
    for each, outcome in ((report, Outcome.CONSISTENT), (halved, Outcome.REFUTED)):
        found = simulate(each, seed=1, seconds=0.0)
        assert found is not None
        assert {judged.verdict.outcome for judged in found.judged} == {outcome}
        assert {judged.verdict.subject for judged in found.judged} >= {"a toy training of 10 steps"}


@pytest.mark.slow
def test_a_plan_is_simulated_with_a_training(tmp_path: Path) -> None:
    report = read(plan(tmp_path, "plan"))
    found = simulate(report, seed=1, seconds=0.1)
    assert found is not None
    assert [j.verdict.outcome for j in found.judged] == [Outcome.CONSISTENT] * 2
    assert "toy training" in found.judged[1].verdict.subject
    assert simulate(read(plan(tmp_path, "plan of signs")), seed=1, seconds=0.1) is None


@pytest.mark.parametrize("kind", few(["plan", "plan of passes"], 1))
def test_the_law_that_is_drawn_integrates_to_one(kind: str, tmp_path: Path) -> None:
    law = law_of(read(plan(tmp_path, kind)))
    assert law is not None
    assert float(np.trapezoid(law.density, law.losses)) == pytest.approx(1, abs=2e-2)
    assert (np.diff(law.deltas) <= 1e-12).all()
    assert np.interp(law.epsilon, law.epsilons, np.log(np.maximum(law.deltas, 1e-300))) == pytest.approx(
        math.log(law.delta), abs=0.2
    )
