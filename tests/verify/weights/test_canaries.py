"""How far canary gradients move weights by verify's account, beside what the trainer's canaries add."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from privctl.domain.events import Batches
from privctl.domain.mechanism import Optimizer
from privctl.randomness import NoiseSource
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.steps.canary_laws import law_of
from privctl.train.steps.sampling import PoissonBatches, TruncatedPoisson
from tests.verify.weights.test_check import settings
from verify.weights.moves import draws_bound, reach, signal
from verify.weights.settings import MixedIn, TrainingFacts, _canaries

if TYPE_CHECKING:
    from verify.methods.expected import StatedTraining

COUNT, EXAMPLES, BATCH, STEPS, NOISE, LEVEL = 2000, 60, 12, 10, 0.5, 1e-6
BAND = (0.8, 0.5, 0.3)
#: What the recipe has besides, and what verify makes of it.
KINDS: dict[str, tuple[dict[str, Any], MixedIn]] = {
    "poisson": ({}, MixedIn(count=COUNT, most=1.0, share=0.2)),
    "bins": ({"batches": Batches.BALLS_AND_BINS}, MixedIn(count=COUNT, most=1.0, share=0.2)),
    "users": ({"group": 4}, MixedIn(count=COUNT, most=4.0, share=1 - 0.8**4)),
    "cut": ({"largest_batch": BATCH}, MixedIn(count=COUNT, most=2.0, share=0.2)),
    "bands": ({"coefficients": BAND}, MixedIn(count=COUNT, most=1.0, share=0.6, apart=3)),
}


#: What a report states of a training of each kind.
STATED: dict[str, dict[str, Any]] = {
    "poisson": {},
    "bins": {"batches": "balls-and-bins"},
    "users": {"max_records_per_user": 4},
    "cut": {"largest_batch": BATCH},
    "bands": {"coefficients": BAND},
    "buffers": {"matrix": {"first": 0.9, "weights": [0.2], "decays": [0.5]}},
}


@pytest.mark.parametrize("name", STATED)
def test_canaries_are_taken_for_what_the_report_states(name: str) -> None:
    stated: dict[str, Any] = {"gradient_canaries": COUNT, "examples": EXAMPLES, "batch_size": BATCH}
    stated |= {"max_records_per_user": None, **STATED[name]}
    in_passes = MixedIn(count=COUNT, most=1.0, share=1.0, apart=EXAMPLES // BATCH)
    expected = KINDS[name][1] if name in KINDS else in_passes
    found = _canaries(cast("StatedTraining", SimpleNamespace(**stated)))
    assert found is not None
    assert asdict(found) == pytest.approx(asdict(expected))
    assert _canaries(cast("StatedTraining", SimpleNamespace(**stated | {"gradient_canaries": None}))) is None


@pytest.mark.parametrize("asked", [signal, reach])
def test_batches_and_canaries_share_the_level(
    asked: Callable[[TrainingFacts, float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What any one number of draws exceeds has a chance of its own, and all of these together are the level."""
    spent: list[float] = []
    monkeypatch.setattr(
        "verify.weights.moves.draws_bound",
        lambda trials, rate, level: spent.append(level) or draws_bound(trials, rate, level),
    )
    facts = settings(
        updates=STEPS, planned=STEPS, examples=EXAMPLES, batch_size=BATCH, noise_multiplier=NOISE, clip_norm=1.0,
        optimizer=Optimizer.SGD, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0,
    )  # fmt: skip
    for canaries in (None, KINDS["poisson"][1]):
        spent.clear()
        asked(replace(facts, canaries=canaries), LEVEL)
        once, total, *mixed = spent
        assert STEPS * once + total + STEPS * sum(mixed) == pytest.approx(LEVEL)


@pytest.mark.parametrize("name", KINDS)
def test_canaries_move_weights_no_farther_than_verify_allows(name: str) -> None:
    more, mixed = KINDS[name]
    recipe = TrainingSettings(
        method="dp-sgd", steps=STEPS, batch_size=BATCH, sample_rate=0.2, learning_rate=0.1, noise_multiplier=NOISE,
        **more,
    )  # fmt: skip
    law, source = law_of(recipe, COUNT), NoiseSource(2)
    batches = TruncatedPoisson(EXAMPLES, 0.2, BATCH, source) if name == "cut" else PoissonBatches(EXAMPLES, 0.2, source)
    included = np.random.default_rng(1).random(COUNT) < 0.5
    added = np.array([included * law.amounts(step, np.random.default_rng, batches) for step in range(STEPS)])

    correlation = {"correlation": BAND} if name == "bands" else {}
    without = settings(
        updates=STEPS, planned=STEPS, examples=EXAMPLES, batch_size=BATCH, noise_multiplier=NOISE, clip_norm=1.0,
        optimizer=Optimizer.SGD, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0, **correlation,
    )  # fmt: skip
    with_them = replace(without, canaries=mixed)
    alone = (signal(with_them, LEVEL) - signal(without, LEVEL)) * NOISE / math.fsum(without.correlation)
    found = float(np.linalg.norm(added))
    assert found <= alone <= 4 * found, "also not by much more: little would be seen then"
    moved = float(np.linalg.norm((without.rates[:, None] * added).sum(0))) / BATCH
    assert moved <= reach(with_them, LEVEL) - reach(without, LEVEL) <= 5 * moved
