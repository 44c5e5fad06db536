"""The numbers of a run are those of the accounting: the paper's Table 3, and what follows from a real budget."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from privctl.accounting import renyi
from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.mutual_information import nats
from privctl.accounting.randomized_response import three_point
from privctl.accounting.sign_bits import dithered_ledger, gaussian_ledger
from privctl.domain.errors import CommandError
from privctl.domain.events import Ledger, RandomizedResponse, SampledGaussian
from privctl.domain.mechanism import Optimizer
from privctl.train.methods import method_named
from privctl.train.methods.ferret.planning import FerretPlan, plan_for
from privctl.train.methods.ferret.settings import FerretSettings, Publish, ReleaseKind
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.job import TrainingJob
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from tests.accounting.theorems import exact_epsilon, one_bit_epsilon
from tests.few import few

#: 10,000 examples in batches of 50 for five epochs are 1,000 steps of rate 0.005
#: (docs/papers.md#mutual-information-of-sign-bits).
EXAMPLES, BATCH, DELTA = 10_000, 50, 1e-5


def layers(tensors: int) -> nn.Module:
    return nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(tensors))


def plan(tensors: int = 148, seed: bytes = b"public", **changes: Any) -> FerretPlan:
    """The plan of the paper's setting; ``changes`` go to wherever they belong."""
    published = changes.get("release", ReleaseKind.PUBLISHED) is ReleaseKind.PUBLISHED
    delta = changes.pop("delta", None if published else DELTA)
    budget = BudgetRequest(
        epsilon=changes.pop("epsilon", None), noise_multiplier=changes.pop("noise_multiplier", None), delta=delta
    )
    whole = {name: changes.pop(name) for name in ("epochs", "steps", "optimizer") if name in changes}
    request = RetrainRequest(
        method=method_named("ferret"),
        model=ModelRequest(path=Path("model")),
        data=DataRequest(train=Path("data")),
        output=Path("output"),
        budget=budget,
        settings=FerretSettings(**changes),
        batch_size=BATCH,
        **{"epochs": None if "steps" in whole else 5, **whole},
    )
    recipe, stated = recipe_for(request, EXAMPLES)
    return plan_for(
        cast("TrainingJob", SimpleNamespace(request=request, recipe=recipe, delta=stated)), layers(tensors), seed
    )


@pytest.mark.parametrize(
    ("groups", "number", "epsilon", "chance"),
    [
        ("2", 2, 0.1, 0.014426950408889635),
        ("2", 2, 0.5, 0.07213475204444816),
        ("2", 2, 1.0, 0.14426950408889633),
        ("2", 2, 2.0, 0.28853900817779266),
        ("8", 8, 0.5, 0.01803368801111204),
        ("eighth", 19, 0.5, 0.007593131794152),
        ("max", 148, 0.5, 0.0009747939465465969),
    ],
)
def test_fire_probabilities_are_those_of_the_table(groups: str, number: int, epsilon: float, chance: float) -> None:
    planned = plan(groups=groups, epsilon=epsilon)
    assert (len(planned.groups), planned.masks.steps, planned.sample_rate) == (number, 1000, 0.005)
    assert planned.masks.fire_probability == pytest.approx(chance, rel=1e-12)
    assert nats(planned.signs) <= epsilon
    assert planned.ledger is None


@pytest.mark.parametrize(("groups", "most"), [("2", 6.931471805599453), ("max", 512.9289136143595)])
def test_more_than_the_ceiling_is_refused_with_its_number(groups: str, most: float) -> None:
    assert plan(groups=groups, epsilon=most * (1 - 1e-12)).masks.fire_probability == pytest.approx(1)
    with pytest.raises(CommandError, match=f"ceiling of {most:.10g}"):
        plan(groups=groups, epsilon=most * 1.001)


@pytest.mark.parametrize(("epsilon", "noise"), few([(0.5, 1.355794), (1.0, 0.939293), (8.0, 0.498760)], 1))
def test_gaussian_noise_is_that_of_the_account(epsilon: float, noise: float) -> None:
    planned = plan(release=ReleaseKind.GAUSSIAN, epsilon=epsilon, fire_probability=1.0)
    assert planned.noise_multiplier == pytest.approx(noise, rel=2e-4)
    assert planned.ledger is not None
    assert epsilon_bound(planned.ledger, DELTA) <= epsilon
    (event,) = planned.ledger.events
    assert isinstance(event, SampledGaussian)
    assert (event.sample_rate, event.steps) == (0.005, 1000)


def test_silent_steps_cost_nothing_and_groups_nothing_either() -> None:
    rare = plan(release=ReleaseKind.GAUSSIAN, epsilon=1.0, fire_probability=0.001)
    assert 80 < rare.masks.active_steps < 190  # 1 - 0.999^148 = 13.8 % of the steps
    direct = noise_multiplier_for(1.0, DELTA, lambda noise: gaussian_ledger({1: rare.masks.active_steps}, noise, 0.005))
    assert rare.noise_multiplier is not None
    assert direct < rare.noise_multiplier < direct * (1 + 1e-6) < 0.939
    # One group or 148, each firing every time: the same noise.
    one, many = (plan(release=ReleaseKind.GAUSSIAN, epsilon=1.0, fire_probability=1.0, groups=g) for g in ("1", "max"))
    assert one.noise_multiplier == pytest.approx(many.noise_multiplier, rel=1e-6)


def test_directions_cost_nothing_and_all_publish() -> None:
    """Whatever their number, a step is one Gaussian: noise as for one direction but for the grid of more numbers."""
    asked = {"release": ReleaseKind.GAUSSIAN, "epsilon": 1.0, "optimizer": Optimizer.SGD}
    one = plan(**asked, fire_probability=1.0, groups="2")
    many = plan(**asked, groups="2", directions=32)
    assert (many.masks.fire_probability, many.masks.total) == (1.0, 2 * 32 * 1000)
    assert many.noise_multiplier == pytest.approx(one.noise_multiplier, rel=1e-5)
    assert (many.fired_by_group, many.dimensions[0]) == ((32_000, 32_000), one.sizes[0] / 32)
    assert many.ledger is not None
    assert one.ledger is not None
    assert [event.steps for event in many.ledger.events] == [event.steps for event in one.ledger.events] == [1000]


def test_responses_follow_from_the_three_point_pair() -> None:
    planned = plan(release=ReleaseKind.RANDOMIZED_RESPONSE, epsilon=1.0, fire_probability=1.0, groups="1")
    assert planned.bit_epsilon is not None
    assert 0.99 < one_bit_epsilon(planned.bit_epsilon, 0.005, 1000, DELTA) <= 1
    assert three_point(1.0, 1, 0.005) == pytest.approx((0.008554713017922183, 0.5401934285262904), rel=1e-9)
    # docs/papers.md#sound-releases: 1,000 bits of log-odds 1 cost 0.72041534 by that pair, 0.59794354 where each order
    # has its own.
    reference_plan = plan(release=ReleaseKind.RANDOMIZED_RESPONSE, bit_epsilon=1.0, fire_probability=1.0, groups="1")
    assert reference_plan.ledger is not None
    assert exact_epsilon(1.0, 1, 0.005, 1000, DELTA) == pytest.approx(0.72041534, abs=6e-9)
    assert epsilon_bound(reference_plan.ledger, DELTA) == pytest.approx(0.59794354, rel=1e-3)
    # Several bits of one batch are one event with so many bits.
    several = plan(release=ReleaseKind.RANDOMIZED_RESPONSE, bit_epsilon=0.1, fire_probability=0.5, groups="4")
    assert several.ledger is not None
    events = [event for event in several.ledger.events if isinstance(event, RandomizedResponse)]
    assert {event.bits: event.steps for event in events} == several.masks.sizes
    assert set(several.masks.sizes) == {1, 2, 3, 4}


@pytest.mark.parametrize("dither", few([0.1, 1.0, 4.0], 1))
def test_dithered_signs_have_a_certificate(dither: float) -> None:
    """It lies below the Renyi bound of docs/papers.md#dithered-signs: a step shifts F derivatives of a batch by 2."""
    planned = plan(groups="2", epsilon=0.5, dither=dither, release=ReleaseKind.DITHERED)
    assert planned.masks.fire_probability == pytest.approx(0.07213475204444816)
    assert planned.ledger is not None
    excess = np.geomspace(1e-4, 100, 400)
    exponents = {size: 2 * size * (1 + excess) * excess / dither**2 for size in planned.masks.sizes}
    assert set(exponents) == {1, 2}
    divergences = sum(
        planned.masks.sizes[size] * np.logaddexp(math.log1p(-0.005), math.log(0.005) + exponent) / excess
        for size, exponent in exponents.items()
    )
    by_hand, _ = renyi.epsilon_at(1 + excess, divergences, DELTA)
    assert epsilon_floor(planned.ledger, DELTA) <= epsilon_bound(planned.ledger, DELTA) < by_hand
    # That bound is nearly reached where noise is small: half the shift would lie far below.
    if dither == 0.1:
        assert epsilon_bound(planned.ledger, DELTA) > 0.8 * by_hand


def test_groups_of_one_batch_cost_more_than_groups_of_their_own() -> None:
    """F signs of one batch are one event of F shifts; F events of one shift would be too cheap."""
    together = epsilon_bound(dithered_ledger({16: 100}, 8.0, 0.05), DELTA)
    apart = epsilon_bound(dithered_ledger({1: 1600}, 8.0, 0.05), DELTA)
    assert together > 1.5 * apart
    (event,) = dithered_ledger({16: 100}, 8.0, 0.05).events
    assert event == SampledGaussian(noise_multiplier=1.0, sample_rate=0.05, steps=100)
    assert isinstance(dithered_ledger({1: 2, 3: 4}, 1.0, 0.5), Ledger)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "--epsilon or --fire-probability"),
        ({"epsilon": 0.5, "fire_probability": 0.1}, "one of them"),
        ({"epsilon": 0.5, "noise_multiplier": 1.0}, "--noise-multiplier does not apply"),
        ({"epsilon": 0.5, "bit_epsilon": 1.0}, "--bit-epsilon does not apply"),
        ({"fire_probability": 1.5}, "at most 1"),
        ({"fire_probability": -0.5}, "above 0"),
        ({"epsilon": 0.5, "publish": Publish.VALUE}, "--publish value"),
        ({"epsilon": 0.5, "directions": 2}, "--directions 2 needs --release gaussian"),
        (
            {"bit_epsilon": 0.5, "release": ReleaseKind.RANDOMIZED_RESPONSE, "directions": 2},
            "each sign costs",
        ),
        ({"epsilon": 0.5, "directions": 0}, "--directions is 0"),
        (
            {"epsilon": 1.0, "release": ReleaseKind.GAUSSIAN, "directions": 2},
            "which needs --optimizer sgd",
        ),
        ({"release": ReleaseKind.GAUSSIAN}, "--epsilon or --noise-multiplier"),
        ({"release": ReleaseKind.GAUSSIAN, "epsilon": 1.0, "noise_multiplier": 1.0}, "one of them"),
        ({"release": ReleaseKind.RANDOMIZED_RESPONSE}, "--epsilon or --bit-epsilon"),
        ({"release": ReleaseKind.DITHERED, "epsilon": 0.5, "dither": math.inf}, "--dither is inf"),
        ({"release": ReleaseKind.GAUSSIAN, "epsilon": 1.0, "fire_probability": 1e-9}, "nothing would be trained"),
        ({"epsilon": 0.5, "delta": 1e-5}, "--delta asks for"),
        ({"epsilon": 0.5, "groups": "149"}, "--groups is '149'"),
        ({"epsilon": 0.5, "steps": 201}, "--steps is 201"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((CommandError, ValueError), match=words):
        plan(**changes)


def test_the_budget_is_held_by_every_seed() -> None:
    """Noise is found for the masks at hand: seeds with more of them get more of it."""
    planned = [
        plan(seed=bytes([i]), release=ReleaseKind.GAUSSIAN, epsilon=1.0, fire_probability=1e-3) for i in range(3)
    ]
    assert len({each.masks.active_steps for each in planned}) > 1
    for each in planned:
        assert each.ledger is not None
        assert 0.99 < epsilon_bound(each.ledger, DELTA) <= 1
