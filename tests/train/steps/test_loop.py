"""The loop does what its recipe says: sums, normaliser, noise, budget, resume, diverging runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from privctl.domain.errors import InputError
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import TaskName
from privctl.models.tasks.base import group_by_length
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.randomness.gridded import spacing
from privctl.train.clipping.factors import Clipping
from privctl.train.settings.choices import Schedule
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import BatchSource, Passes, PoissonBatches

DIMENSION = 3


class Points:
    """Linear losses <w, x_i> over rows x_i: the gradient of an example is its row."""

    name = TaskName.CAUSAL_LM

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        return group_by_length(units, lambda _: 1, max_examples, max_tokens)

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        return {"rows": self.rows[list(examples)]}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        found: Tensor = network(batch["rows"])[:, 0]
        return found

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        return {"loss": 0.0}


def recipe(**changes: Any) -> TrainingSettings:
    settings: dict[str, Any] = {
        "method": "clipped", "steps": 4, "batch_size": 5.0, "sample_rate": 0.25, "learning_rate": 0.1,
        "optimizer": Optimizer.SGD, "clip_norm": 1.0,
    }  # fmt: skip
    return TrainingSettings(**{**settings, **changes})


def trainer(rows: Tensor, plan: TrainingSettings, batches: BatchSource, **changes: Any) -> Trainer:
    network = nn.Linear(DIMENSION, 1, bias=False)
    nn.init.zeros_(network.weight)
    private = plan.method == "dp-sgd"
    settings: dict[str, Any] = {
        "network": network,
        "task": Points(rows),
        "recipe": plan,
        "clipping": None if plan.method == "plain" else Clipping(norm=plan.clip_norm),
        "batches": batches,
        "noise": KeyedNoise(NoiseSource(7)) if private else None,
        "workers": Workers(),
        "device": torch.device("cpu"),
    }
    return Trainer(**{**settings, **changes})


def weight(training: Trainer) -> Tensor:
    found: Tensor = training.network.weight.detach().clone()  # type: ignore[union-attr,operator,assignment]
    return found[0]


ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.1, 0.0, 0.2], [0.0, 0.0, -9.0], [0.5, 0.5, 0.5]])


def clipped_total(rows: Tensor, norm: float) -> Tensor:
    return (rows * (norm / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)


@pytest.mark.parametrize("micro", [1, 3, 64])
def test_a_clipped_step_is_the_sum_over_the_fixed_normaliser(micro: int) -> None:
    training = trainer(ROWS, recipe(steps=1, micro_examples=micro), Passes(4, 4, seed=0))
    done = training.run()
    assert (done.updates, done.steps_begun) == (1, 1)
    assert done.history[0] == pytest.approx({"step": 1.0, **_measured()})
    expected = -0.1 * clipped_total(ROWS, 1.0) / 5
    assert torch.allclose(weight(training), expected, rtol=1e-5)
    assert not torch.allclose(weight(training), -0.1 * ROWS.sum(0) / 5, rtol=1e-2)


def _measured() -> dict[str, float]:
    norms = ROWS.norm(dim=1)
    return {
        "training_loss": 0.0,
        "clipped_fraction": float((norms > 1).double().mean()),
        "median_norm": float(norms.double().median()),
    }


def test_a_plain_step_does_not_clip() -> None:
    training = trainer(ROWS, recipe(method="plain", steps=1), Passes(4, 4, seed=0))
    training.run()
    assert torch.allclose(weight(training), -0.1 * ROWS.sum(0) / 5, rtol=1e-5)


def test_activations_that_are_written_out_train_by_the_kernel_to_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained() -> tuple[list[bool], Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(DIMENSION, 8), NewGELUActivation(), nn.Linear(8, 1))
        plan = recipe(method="dp-sgd", steps=3, noise_multiplier=0.5)
        training = trainer(ROWS, plan, Passes(4, 4, seed=0), network=network)
        seen: list[bool] = []
        training.advance = lambda _: seen.append("forward" in vars(network[1]))
        training.run()
        assert "forward" not in vars(network[1])
        return seen, torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    fused, found = trained()
    monkeypatch.setattr("privctl.models.activations.KERNELS", {})
    own, expected = trained()
    assert (fused, own) == ([True] * 3, [False] * 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def noises(multiplier: float, steps: int = 400) -> Tensor:
    """The weights' moves over many steps without any examples: pure noise, divided as gradients are."""
    plan = recipe(method="dp-sgd", steps=steps, noise_multiplier=multiplier, clip_norm=2.0, sample_rate=0.25)
    training = trainer(ROWS, plan, PoissonBatches(4, 0.0, NoiseSource(1)))
    moves, before = [], weight(training)

    def note(_: int) -> None:
        nonlocal before
        moves.append(weight(training) - before)
        before = weight(training)

    training.advance = note
    training.run()
    return torch.stack(moves)


def test_noise_has_the_stated_scale_and_half_of_it_would_not() -> None:
    """Empty batches are steps like others: noise_multiplier * clip_norm / batch_size * learning_rate."""
    moves = noises(1.5)
    stated = 1.5 * 2.0 / 5 * 0.1
    error = stated / math.sqrt(2 * moves.numel())
    assert abs(float(moves.double().std()) - stated) < 5 * error
    assert abs(float(noises(0.75).double().std()) - stated) > 20 * error
    # Successive noises are not alike.
    assert abs(float((moves[1:] * moves[:-1]).double().mean())) < 6 * stated**2 / math.sqrt(moves.numel())


def test_weight_decay_and_schedule() -> None:
    plan = recipe(steps=2, weight_decay=0.5, schedule=Schedule.LINEAR, warmup_steps=0, method="plain", batch_size=4.0)
    training = trainer(ROWS, plan, Passes(4, 4, seed=0))
    training.run()
    gradient = ROWS.sum(0) / 4
    first = -0.1 * gradient
    assert torch.allclose(weight(training), first * (1 - 0.05 * 0.5) - 0.05 * gradient, rtol=1e-5)
    assert recipe(steps=10, schedule=Schedule.COSINE).learning_rate_at(5) == pytest.approx(0.05)
    assert [recipe(warmup_steps=4).learning_rate_at(i) for i in range(5)] == pytest.approx(
        [0.025, 0.05, 0.075, 0.1, 0.1]
    )


@pytest.mark.parametrize("optimizer", [o for o in Optimizer if o is not Optimizer.MOMENTUM])
def test_weight_decay_is_decoupled(optimizer: Optimizer) -> None:
    """Without a gradient all rules shrink the weights alike: ``ClippedTraining`` says so, and bounds rest on it."""
    training = trainer(
        torch.zeros_like(ROWS), recipe(steps=3, optimizer=optimizer, weight_decay=0.5), Passes(4, 4, seed=0)
    )
    nn.init.constant_(training.network.weight, 2.0)  # type: ignore[arg-type]
    training.run()
    assert torch.allclose(weight(training), torch.tensor(2.0 * (1 - 0.1 * 0.5) ** 3))


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path: Path, optimizer: Optimizer) -> None:
    momentum = 0.9 if optimizer is Optimizer.MOMENTUM else 0.0
    plan = recipe(steps=8, optimizer=optimizer, momentum=momentum, sample_rate=0.5)
    whole = trainer(ROWS, plan, Passes(4, 2, seed=3))
    whole.run()
    begun = RunFolder.begin(tmp_path / "run", {})
    first = trainer(ROWS, plan, Passes(4, 2, seed=3), folder=begun)

    def stop(_: int) -> None:
        stop.count += 1  # type: ignore[attr-defined]
        if stop.count == 5:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    stop.count = 0  # type: ignore[attr-defined]
    first.advance = stop
    with begun, pytest.raises(KeyboardInterrupt):
        first.run()
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun) == (4, 5)
    second = trainer(ROWS, plan, Passes(4, 2, seed=3), folder=folder)
    assert second.run(saved).updates == 8
    assert torch.allclose(weight(second), weight(whole), atol=1e-6)


def test_the_budget_counts_steps_that_were_begun(tmp_path: Path) -> None:
    """Killed in step 6 after a state at 4: two private steps are lost, and only four more may be taken of ten."""
    plan = recipe(method="dp-sgd", steps=10, noise_multiplier=1.0)
    folder = RunFolder.begin(tmp_path / "run", {})
    first = trainer(ROWS, plan, PoissonBatches(4, 0.25, NoiseSource()), folder=folder)

    def stop(_: int) -> None:
        stop.count += 1  # type: ignore[attr-defined]
        if stop.count == 6:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    stop.count = 0  # type: ignore[attr-defined]
    first.advance = stop
    with folder, pytest.raises(KeyboardInterrupt):
        first.run()
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert (saved.updates, saved.steps_begun) == (4, 6)
    done = trainer(ROWS, plan, PoissonBatches(4, 0.25, NoiseSource()), folder=folder).run(saved)
    assert (done.updates, done.steps_begun) == (8, 10)


def test_a_loss_that_is_no_number_is_one_sentence() -> None:
    rows = ROWS.clone()
    rows[2, 0] = math.nan
    for method in ("clipped", "plain"):
        with pytest.raises(InputError, match="not finite"):
            trainer(rows, recipe(method=method), Passes(4, 4, seed=0)).run()


def test_weights_that_run_away_are_one_sentence() -> None:
    plan = replace(recipe(method="plain", steps=4, batch_size=4.0), learning_rate=1e38)
    with pytest.raises(InputError, match="diverged|not finite"):
        trainer(1e30 * ROWS, plan, Passes(4, 4, seed=0)).run()


def test_nothing_to_train() -> None:
    training = trainer(ROWS, recipe(), Passes(4, 4, seed=0))
    training.network.requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train"):
        training.run()


@pytest.mark.parametrize(
    "changes",
    [{"steps": 0}, {"learning_rate": 0}, {"learning_rate": math.nan}, {"clip_norm": -1}, {"sample_rate": 2},
     {"beta1": 1}],
)  # fmt: skip
def test_recipes_that_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        recipe(**changes)


class OneOfTwo(Workers):
    """The first of two processes; the other's part arrives with the sum, in numbers on no grid."""

    def total(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor += 0.1234567

    sum_for_leader = total


def test_what_is_kept_of_a_noised_sum_lies_on_the_grid_whoever_added_to_it() -> None:
    plan = recipe(method="dp-sgd", steps=1, noise_multiplier=0.7)
    training = trainer(ROWS, plan, PoissonBatches(4, 0.5, NoiseSource(1)), workers=OneOfTwo())
    done = training.run()
    assert done.released == DIMENSION
    gradient = training.network.weight.grad  # type: ignore[union-attr]
    assert isinstance(gradient, Tensor)
    steps = gradient / spacing(0.7 * plan.clip_norm / plan.batch_size)
    assert torch.equal(steps, steps.round())
    assert steps.abs().max() > 0


@pytest.mark.parametrize(("examples", "batch", "epochs"), [(62, 20, 20), (391, 64, 20), (60, 12, 2), (7, 3, 9)])
def test_as_many_epochs_end_as_were_asked_for(examples: int, batch: int, epochs: int) -> None:
    rate = batch / examples
    steps = math.ceil(round(epochs / rate, 6))  # as --epochs gives them for Poisson batches
    settings: dict[str, Any] = {"steps": steps, "batch_size": float(batch), "sample_rate": rate, "learning_rate": 0.1}
    sampled = TrainingSettings(method="dp-sgd", noise_multiplier=1.0, **settings)
    ends = [step for step in range(1, steps + 1) if sampled.ends_epoch(step)]
    assert len(ends) == epochs
    assert ends[-1] == steps
    passes = TrainingSettings(method="clipped", **settings)
    assert [step for step in range(1, steps + 1) if passes.ends_epoch(step)] == list(
        range(passes.steps_per_epoch, steps + 1, passes.steps_per_epoch)
    )


class RarelyCentred(nn.Module):
    """Mixes its rows, but only if one of them is unusual."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(DIMENSION, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.inner(rows)
        return outputs - outputs.mean(0) if bool((rows.abs() > 8).any()) else outputs


@pytest.mark.parametrize("rare", [False, True])
def test_a_network_that_mixes_records_in_a_later_batch_ends_the_run(rare: bool) -> None:
    class Batches:
        def batch(self, step: int) -> Any:
            return np.array([1, 3] if not step or not rare else [0, 2])

    network = RarelyCentred()
    training = trainer(ROWS, recipe(method="dp-sgd", steps=2, noise_multiplier=1.0), Batches(), network=network)
    if not rare:
        assert training.run().updates == 2
        return
    with pytest.raises(InputError, match="mixed"):
        training.run()
