"""DPQuant's ledger: a reference's numbers for every way of counting, and calibration of training and measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.accounting import renyi
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.published_measurements import aggregate_ledger, claimed_ledger
from privctl.domain.errors import CommandError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.train.methods import method_named
from privctl.train.methods.dpquant.measurements import measurements_of
from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode, Sensitivity
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.ledgers import ledger_of
from privctl.train.settings.choices import FormatName
from privctl.train.settings.method_settings import MethodSettings
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from tests.few import few

EXAMPLES, BATCH, DELTA = 50_000, 1024, 1e-5
RATE = BATCH / EXAMPLES
TRAINING = SampledGaussian(noise_multiplier=1.0, sample_rate=RATE, steps=2940)


def measured(noise: float, rate: float, releases: int) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=releases)


#: (events beside the training, epsilon by Renyi DP, by the privacy loss distribution), both of dp-accounting, whose
#: grid is as coarse as 1e-3 in some.
TABLE: dict[str, tuple[tuple[SampledGaussian, ...], float, float]] = {
    "training alone": ((), 7.77656021, 7.13684524),
    "as published, each measurement once": ((measured(0.5, 1 / EXAMPLES, 30),), 7.77656145, 7.13684647),
    "as published, repetitions counted": ((measured(0.5, 1 / EXAMPLES, 60),), 7.77656270, 7.13684769),
    "a batch as large as training's": ((measured(0.5, RATE, 30),), 11.38911392, 9.73455927),
    "and repetitions counted": ((measured(0.5, RATE, 60),), 12.74573653, 10.92435871),
    "and steps that are thrown away": (
        (measured(1.0, RATE, 1260), measured(0.5, RATE, 60)), 13.75641010, 11.95592042,
    ),
    "the aggregate clipped": ((measured(0.25, 1 / EXAMPLES, 30),), 11.77254860, 7.44495374),
    "the aggregate of a batch clipped": ((measured(0.25, RATE, 30),), 49.02224322, 40.75949423),
    "and of two batches": ((measured(0.25, 1 - (1 - RATE) ** 2, 30),), 64.12871467, 54.83192384),
    "four times the noise": ((measured(1.0, RATE, 30),), 7.82056186, 7.17844759),
    "eight times, of two batches": ((measured(2.0, 1 - (1 - RATE) ** 2, 30),), 7.80300316, 7.16262543),
    "all the data": ((measured(0.5, 1.0, 30),), 112.27277720, 107.30148963),
}  # fmt: skip


@pytest.mark.parametrize("name", few(TABLE, 0, 2, 5))
def test_the_reference_table(name: str) -> None:
    others, by_renyi, by_loss = TABLE[name]
    ledger = Ledger(events=(TRAINING, *others))
    assert epsilon_bound(ledger, DELTA) == pytest.approx(by_loss, rel=1.5e-4)
    found, _ = renyi.ledger_epsilon(ledger, DELTA)
    assert found == pytest.approx(by_renyi, rel=4e-3)  # over more orders than the reference took
    assert found <= by_renyi


def test_the_claim_and_what_follows_for_it() -> None:
    alone, _, _ = (epsilon_bound(Ledger(events=(TRAINING,)), DELTA), 0, 0)
    claimed, follows = (
        epsilon_bound(make(TRAINING, EXAMPLES, 30), DELTA) for make in (claimed_ledger, aggregate_ledger)
    )
    assert claimed == pytest.approx(7.13684647, rel=1e-4)
    assert 0 < claimed - alone < 1e-5  # as good as nothing, says the paper
    assert follows == pytest.approx(7.44495374, rel=1e-4)


def request(tmp_path: Path, *, epsilon: float | None = 3.0, batch: int = 200, **asked: Any) -> RetrainRequest:
    measured = {} if "layers" in asked else {"sensitivity": Sensitivity.PRIVATE}
    budget = BudgetRequest(epsilon=epsilon, noise_multiplier=None if epsilon else 1.0, delta=DELTA)
    return RetrainRequest(
        method=method_named("dpquant"),
        model=ModelRequest(path=tmp_path),
        data=DataRequest(train=tmp_path),
        budget=budget,
        settings=DpquantSettings(format=FormatName.LUQ_FP4, **{**measured, **asked}),
        output=tmp_path,
        epochs=10,
        batch_size=batch,
    )


def test_the_noise_meets_the_budget_with_all_measurements(tmp_path: Path) -> None:
    asked = request(tmp_path, every=1, repetitions=3)
    recipe, delta = recipe_for(asked, 2000)
    plan = measurements_of(asked, 2000, recipe.steps, recipe.sample_rate)
    assert delta == DELTA
    assert plan is not None
    assert (plan.releases, plan.epochs, plan.sample_rate, plan.size) == (30, 10, 16 / 2000, 16)
    event = plan.event(recipe.noise_multiplier)
    assert event == SampledGaussian(noise_multiplier=recipe.noise_multiplier, sample_rate=16 / 2000, steps=30)
    whole = epsilon_bound(ledger_of(recipe, recipe.steps, measured=event), DELTA)
    alone = epsilon_bound(ledger_of(recipe, recipe.steps), DELTA)
    assert 3 * (1 - 1e-3) < whole <= 3
    assert alone < whole
    # Counting a measurement once however often it is repeated would need less noise, and exceed the budget.
    assert (
        epsilon_bound(ledger_of(recipe, recipe.steps, measured=plan.event(recipe.noise_multiplier, 10)), DELTA) < whole
    )
    short, _ = recipe_for(replace(asked, settings=replace(asked.settings, repetitions=1)), 2000)  # type: ignore[type-var]
    assert short.noise_multiplier < recipe.noise_multiplier
    assert epsilon_bound(ledger_of(short, short.steps, measured=plan.event(short.noise_multiplier)), DELTA) > 3


def test_usual_measurements_cost_little(tmp_path: Path) -> None:
    """At the reference's size: 60 epochs, every second one twice, on 64 examples each."""
    asked = replace(request(tmp_path, epsilon=None, batch=BATCH), epochs=60.0)
    recipe, _ = recipe_for(asked, EXAMPLES)
    plan = measurements_of(asked, EXAMPLES, recipe.steps, recipe.sample_rate)
    assert plan is not None
    assert (plan.releases, plan.size) == (60, 64)
    whole, alone = (
        epsilon_bound(ledger_of(recipe, recipe.steps, measured=event), DELTA) for event in (plan.event(1.0), None)
    )
    assert 0 < whole - alone < 1e-3 * alone


@pytest.mark.parametrize("sensitivity", [None, Sensitivity.SYNTHETIC])
def test_made_up_inputs_leave_the_whole_budget_to_the_steps(sensitivity: Sensitivity | None, tmp_path: Path) -> None:
    asked = request(tmp_path, sensitivity=sensitivity)
    recipe, _ = recipe_for(asked, 2000)
    assert measurements_of(asked, 2000, recipe.steps, recipe.sample_rate) is None
    private, _ = recipe_for(request(tmp_path), 2000)
    assert recipe.noise_multiplier < private.noise_multiplier


@pytest.mark.parametrize("mode", few([LayerMode.RANDOM, LayerMode.STATIC, LayerMode.ALL, LayerMode.NONE], 0, 3))
def test_other_ways_measure_nothing(mode: LayerMode, tmp_path: Path) -> None:
    asked = request(tmp_path, layers=mode)
    recipe, _ = recipe_for(asked, 2000)
    assert measurements_of(asked, 2000, recipe.steps, recipe.sample_rate) is None
    plain, _ = recipe_for(replace(asked, method=method_named("dp-sgd"), settings=MethodSettings()), 2000)
    assert recipe.noise_multiplier == plain.noise_multiplier


def test_epochs_that_measure(tmp_path: Path) -> None:
    for epochs, every, expected in ((1, 2, 1), (2, 2, 1), (3, 2, 2), (10, 3, 4), (10, 100, 1)):
        asked = replace(request(tmp_path, every=every, repetitions=1), epochs=float(epochs))
        recipe, _ = recipe_for(asked, 2000)
        plan = measurements_of(asked, 2000, recipe.steps, recipe.sample_rate)
        assert plan is not None
        assert plan.releases == expected


def test_a_measurement_is_no_larger_than_a_batch_unless_asked(tmp_path: Path) -> None:
    small = measurements_of(request(tmp_path, batch=8), 2000, 100, 8 / 2000)
    large = measurements_of(request(tmp_path, batch=1000), 2000, 100, 0.5)
    own = measurements_of(request(tmp_path, rate=0.25, noise=5.0), 2000, 100, 0.1)
    assert small is not None
    assert large is not None
    assert own is not None
    assert (small.size, large.size, own.size) == (8, 62.5, 500)
    assert own.event(1.0) == SampledGaussian(noise_multiplier=5.0, sample_rate=0.25, steps=own.releases)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"noise": 0.3, "every": 1, "rate": 0.5}, "take an epsilon of"),
        ({"every": 0}, "--measure-every is 0"),
        ({"repetitions": 0}, "--measure-repetitions is 0"),
        ({"noise": -1.0}, "--measure-noise is -1"),
        ({"clip": 0.0}, "--measure-clip is 0"),
        ({"rate": 1.5}, "--measure-rate is 1.5"),
    ],
)
def test_measurements_that_cannot_be(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((CommandError, ValueError), match=message):
        recipe_for(request(tmp_path, **asked), 2000)
