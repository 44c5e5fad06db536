"""The loop on batches with a probability for each record: resumed bit for bit, blind to records of probability 0, and
giving away of a secret what theory says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from privctl.data.rows import Stretch
from privctl.data.texts import TextRecord
from privctl.domain.errors import RunInterruptedError
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import TaskName
from privctl.models.loading import load_for_training
from privctl.models.tasks.build import text_task
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import Clipping
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import WeightedBatches
from privctl.train.steps.saved_state import SavedState
from tests.models.tasks.small import architecture, words
from tests.train.steps.test_loop import ROWS, recipe, trainer, weight

RATES = np.array([1.0, 0.25, 0.0, 0.6])


def private(steps: int) -> TrainingSettings:
    return recipe(method="dp-sgd", steps=steps, noise_multiplier=1.0, optimizer=Optimizer.ADAMW)


def keyed(plan: TrainingSettings, folder: RunFolder | None = None) -> Trainer:
    """A run whose draws and noise are those of any other such run; only tests have such keys."""
    return trainer(ROWS, plan, WeightedBatches(RATES, NoiseSource(3)), folder=folder)


@pytest.mark.usefixtures("one_thread")
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path: Path) -> None:
    plan = private(20)
    whole = keyed(plan)
    whole.run()
    begun = RunFolder.begin(tmp_path / "run", {})
    first = keyed(plan, begun)
    asked = iter(range(100))
    with begun, pytest.raises(RunInterruptedError):
        first.run(stop=lambda: next(asked) == 6)
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun) == (7, 7)
    second = keyed(plan, folder)
    assert second.run(saved).steps_begun == 20
    assert torch.equal(weight(second), weight(whole))
    # And a step that was lost, because it was begun after the state was saved, has draws that are never used again.
    lost = keyed(plan)
    lost.run(SavedState(updates=7, steps_begun=8, tensors=saved.tensors))
    assert not torch.equal(weight(lost), weight(whole))


def trained(folder: Path, texts: Sequence[str], rates: Sequence[float]) -> list[Tensor]:
    """The weights of a small language model after 6 private steps whose draws and noise are fixed."""
    model = load_for_training(folder, TaskName.CAUSAL_LM, vocabulary=words())
    records = [TextRecord(stretch=Stretch("a.jsonl line"), line=i, text=text) for i, text in enumerate(texts, start=1)]
    settings = TrainingSettings(
        method="dp-sgd",
        steps=6,
        batch_size=2.0,
        sample_rate=0.5,
        learning_rate=0.1,
        optimizer=Optimizer.SGD,
        noise_multiplier=0.5,
    )
    Trainer(
        network=model.network,
        task=text_task(model, records),
        recipe=settings,
        clipping=Clipping(norm=1.0),
        batches=WeightedBatches(np.array(rates), NoiseSource(5)),
        noise=KeyedNoise(NoiseSource(6)),
        workers=Workers(),
        device=torch.device("cpu"),
    ).run()
    return [parameter.detach() for parameter in model.network.parameters()]


@pytest.mark.usefixtures("one_thread")
def test_what_is_never_drawn_leaves_no_trace(tmp_path: Path) -> None:
    """The secret is in the second and the last record; with another value there the weights are the same bits."""
    folder = architecture(tmp_path / "gpt2", "gpt2")
    secret = ["the cat sat", "old dog", "a very old cat", "the old dog sat on the mat"]
    another = ["the cat sat", "a cat sat on the mat", "a very old cat", "dog"]
    hidden = [trained(folder, texts, (0.7, 0.0, 0.7, 0.0)) for texts in (secret, another)]
    assert all(torch.equal(one, other) for one, other in zip(*hidden, strict=True))
    seen = [trained(folder, texts, (0.7, 0.3, 0.7, 0.3)) for texts in (secret, another)]
    assert not all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


#: The secret lies in records 1 to 3; others are drawn as they like and say nothing.
SECRET = np.array([0.02, 0.3, 0.3, 0.3, 0.9, 0.02])
#: How often the best guess of one of two values with opposite contributions is right after one step at noise multiplier
#: 1: P(K = 0) / 2 + sum_k P(K = k) Phi(k), by Monte Carlo and by integration elsewhere.
BEST_GUESS = 0.7541968105


def success(rates: np.ndarray, noise: float, steps: int) -> tuple[float, float]:
    """How often the secret's value is guessed right from one step, with its standard error."""
    right = 0
    for value in (1.0, -1.0):
        rows = torch.zeros(6, 3)
        rows[1:4, 0] = 50 * value
        plan = recipe(method="dp-sgd", steps=steps, noise_multiplier=noise)
        training = trainer(rows, plan, WeightedBatches(rates, NoiseSource(int(8 + value))))
        weights = [weight(training)]
        training.advance = lambda _, made=training, seen=weights: seen.append(weight(made))  # type: ignore[misc]
        training.run()
        # The loop descends, so a positive contribution lowers the weight.
        right += sum(float((before - after)[0]) * value > 0 for before, after in pairwise(weights))
    share = right / (2 * steps)
    return share, sqrt(share * (1 - share) / (2 * steps))


def test_a_secret_is_guessed_as_often_as_theory_says() -> None:
    share, error = success(SECRET, 1.0, steps=300)
    assert abs(share - BEST_GUESS) < 4 * error


# The guess is then right with probability 0.815, or 0.62. ``test_loop`` finds half the noise in quick tests.
@pytest.mark.parametrize(
    ("rates", "noise", "steps"),
    [pytest.param(SECRET, 0.5, 800, marks=pytest.mark.slow), (np.roll(SECRET, 2), 1.0, 300)],
    ids=["noise", "shift"],
)
def test_half_the_noise_and_other_records_draws_would_be_noticed(rates: np.ndarray, noise: float, steps: int) -> None:
    share, error = success(rates, noise, steps)
    assert abs(share - BEST_GUESS) > 4 * error
