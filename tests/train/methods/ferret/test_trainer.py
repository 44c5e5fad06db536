"""The loop: silence is free, one bit a fired group is all there is, and what was cut short goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from privctl.domain.errors import InputError, RunInterruptedError
from privctl.domain.mechanism import Optimizer
from privctl.randomness import NoiseSource
from privctl.train.directional import direction
from privctl.train.methods.ferret.amounts import PrivateExamples, RecordedStream
from privctl.train.methods.ferret.publish import DitheredSigns, NoisySums, Publisher, Responses
from privctl.train.methods.ferret.settings import Publish, SilentMomentum, UpdateScale
from privctl.train.settings.choices import Schedule
from privctl.train.state.run_folder import RunFolder
from tests.few import few
from tests.train.methods.ferret.support import (
    BATCH,
    EXAMPLES,
    Points,
    network,
    replayed,
    rows,
    stopping,
    trainer,
    weights,
)


def noisy(publish: Publish = Publish.SIGN) -> Publisher:
    return NoisySums(noise_multiplier=0.7, clip_norm=0.5, batch_size=BATCH, shown=publish, source=NoiseSource(1))


PUBLISHERS = [
    None,
    noisy(),
    noisy(Publish.VALUE),
    Responses(bit_epsilon=1.0, source=NoiseSource(2)),
    DitheredSigns(noise_multiplier=1.0, bound=1.0, batch_size=BATCH, source=NoiseSource(3)),
]


def test_steps_in_which_nothing_fires_touch_neither_data_nor_model() -> None:
    task = Points(rows())
    training = trainer(200, chance=0.01, task=task)
    outcome = training.run()
    assert training.masks.active_steps == task.passes < 20
    assert (outcome.finished.updates, len(outcome.amounts)) == (200, training.masks.total)
    silent = Points(rows())
    unmoved = trainer(50, chance=0.0, task=silent)
    assert len(unmoved.run().amounts) == silent.passes == 0
    assert torch.equal(weights(unmoved), torch.cat([p.detach().flatten() for p in network().parameters()]))


def test_a_step_moves_each_group_by_the_sign_of_its_derivative() -> None:
    training = trainer(1, chance=1.0, rule={"optimizer": Optimizer.SGD}, groups="2")
    before = {name: p.detach().clone() for name, p in training.network.named_parameters()}
    source = training.source
    assert isinstance(source, PrivateExamples)
    losses = source.task.losses(training.network, {"rows": rows()[source.batches.batch(0)]})
    gradients = dict(zip(before, torch.autograd.grad(losses.sum(), list(training.network.parameters())), strict=True))
    outcome = training.run()
    for index, group in enumerate(training.groups):
        u = direction(b"seed", 0, index, {name: before[name].shape for name in group}, torch.device("cpu"))
        expected = math.copysign(1.0, sum(float((gradients[name] * u[name]).sum()) for name in group))
        assert outcome.amounts[index] == expected
        for name in group:
            moved = training.network.get_parameter(name).detach() - before[name]
            assert torch.allclose(moved, -0.01 * expected * u[name], atol=1e-7)


@pytest.mark.parametrize("publisher", few(PUBLISHERS, 0, 3))
@pytest.mark.parametrize(
    "rule",
    few(
        [
            {},
            {"silent": SilentMomentum.HOLD, "weight_decay": 0.1},
            {"optimizer": Optimizer.MOMENTUM, "momentum": 0.9, "schedule": Schedule.COSINE, "weight_decay": 0.2},
            {"update_scale": UpdateScale.ROOT_DIMENSION, "optimizer": Optimizer.SGD},
        ],
        2,
    ),
)
def test_what_was_published_makes_the_model_to_the_last_bit(publisher: Publisher | None, rule: dict[str, Any]) -> None:
    training = trainer(60, publisher=publisher, rule=rule)
    outcome = training.run()
    published_as = publisher.shown if isinstance(publisher, NoisySums) else Publish.SIGN
    assert (set(outcome.amounts.abs().tolist()) == {1.0}) is (published_as is Publish.SIGN)
    again = replayed(training, outcome)
    assert torch.equal(weights(again), weights(training))
    # Every bit counts: with one of them turned it is another model.
    outcome.amounts[len(outcome.amounts) // 2] *= -1
    assert not torch.equal(weights(replayed(training, outcome)), weights(training))


SGD = {"optimizer": Optimizer.SGD, "update_scale": UpdateScale.ROOT_DIMENSION}


def values(noise: float, clip_norm: float) -> Publisher:
    return NoisySums(
        noise_multiplier=noise, clip_norm=clip_norm, batch_size=BATCH, shown=Publish.VALUE, source=NoiseSource(4)
    )


def test_along_many_directions_a_step_is_that_of_gradient_descent() -> None:
    """With 512 directions in 16 dimensions at most, the moves add up to the gradient to a fifth."""
    training = trainer(1, chance=1.0, publisher=values(1e-10, 1e6), directions=512, rule=SGD)
    before = weights(training)
    source = training.source
    assert isinstance(source, PrivateExamples)
    losses = source.task.losses(training.network, {"rows": rows()[source.batches.batch(0)]})
    gradients = torch.autograd.grad(losses.sum() / BATCH, list(training.network.parameters()))
    expected = -0.01 * torch.cat([gradient.flatten() for gradient in gradients])
    training.run()
    moved = weights(training) - before
    assert (moved - expected).norm() < 0.35 * expected.norm()
    # Neither the sum of all directions' moves, nor that shared among them once more.
    assert 0.7 < moved.norm() / expected.norm() < 1.4


@pytest.mark.parametrize("directions", [1, 16])
def test_noise_moves_weights_as_far_along_many_directions_as_along_one(directions: int) -> None:
    """sigma c sqrt(d) / batch in every group of d numbers: 21 of them in all, over 40 steps."""
    training = trainer(40, chance=1.0, publisher=values(1e6, 1e-3), directions=directions, rule=SGD)
    before = weights(training)
    training.run()
    squares = float((weights(training) - before).square().sum()) / (0.01 * 1e6 * 1e-3 / BATCH) ** 2
    assert squares == pytest.approx(40 * len(before), rel=0.45)


@pytest.mark.parametrize("publish", list(Publish))
def test_several_directions_replay_to_the_last_bit(publish: Publish) -> None:
    training = trainer(30, chance=0.5, publisher=noisy(publish), directions=5, rule=SGD)
    outcome = training.run()
    assert torch.equal(weights(replayed(training, outcome)), weights(training))
    outcome.amounts[-1] *= -1
    assert not torch.equal(weights(replayed(training, outcome)), weights(training))


@pytest.mark.parametrize("publisher", few([None, noisy(), noisy(Publish.VALUE)], 0))
def test_training_lowers_the_loss(publisher: Publisher | None) -> None:
    training = trainer(400, chance=0.5, publisher=publisher, rule={"weight_decay": 0.0})

    def loss() -> float:
        return float(Points(rows()).losses(training.network, {"rows": rows()}).detach().mean())

    before = loss()
    training.run()
    assert loss() < 0.9 * before


def test_a_stream_that_is_too_short_is_refused() -> None:
    training = trainer(20)
    outcome = training.run()
    short = trainer(20, source=RecordedStream(published=outcome.amounts[:-1]))
    with pytest.raises(InputError, match="ends before"):
        short.run()


@pytest.mark.parametrize(
    "rule", [{}, {"silent": SilentMomentum.HOLD}, {"optimizer": Optimizer.MOMENTUM, "momentum": 0.9}]
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path: Path, rule: dict[str, Any]) -> None:
    whole = trainer(60, rule=rule)
    expected = whole.run()
    with (
        RunFolder.begin(tmp_path / "run", {}) as folder,
        pytest.raises(RunInterruptedError, match="after step .* of 60"),
    ):
        trainer(60, rule=rule, folder=folder).run(stop=stopping(9))
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert 0 < saved.updates == saved.steps_begun < 60
    rest = trainer(60, rule=rule, folder=folder)
    with folder:
        outcome = rest.run(saved)
    assert torch.equal(outcome.amounts, expected.amounts)
    assert torch.equal(weights(rest), weights(whole))
    assert [entry["step"] for entry in outcome.finished.history] == list(range(4, 61, 4))


@pytest.mark.parametrize("publisher", [None, noisy()])
def test_a_killed_run_makes_no_noisy_step_twice(tmp_path: Path, publisher: Publisher | None) -> None:
    """Public signs are published again as they were; noisy steps that may have got out are lost, and replayed so."""
    begun = RunFolder.begin(tmp_path / "run", {})
    first = trainer(60, publisher=publisher, folder=begun, chance=0.4)

    def stop(_: int) -> None:
        places.append(1)
        if len(places) == 30:
            raise KeyboardInterrupt

    places: list[int] = []
    first.advance = stop
    with begun, pytest.raises(KeyboardInterrupt):
        first.run()
    folder, saved = RunFolder.resume(tmp_path / "run", {})
    assert saved is not None
    assert saved.updates == 28 < saved.steps_begun <= 30  # saved after each epoch of four steps
    rest = trainer(60, publisher=publisher, folder=folder, chance=0.4)
    with folder:
        outcome = rest.run(saved)
    if publisher is None:
        assert outcome.lost == ()
        whole = trainer(60, chance=0.4)
        whole.run()
        assert torch.equal(weights(rest), weights(whole))
        return
    assert outcome.lost == ((28, saved.steps_begun),)
    missed = sum(len(rest.masks.fired(step)) for step in range(28, saved.steps_begun))
    assert len(outcome.amounts) == rest.masks.total - missed < rest.masks.total
    assert torch.equal(weights(replayed(rest, outcome)), weights(rest))


def test_examples_that_are_no_numbers_count_as_zero_and_stop_nothing() -> None:
    spoiled = rows()
    spoiled[3] = math.nan
    for publisher in PUBLISHERS:
        training = trainer(40, publisher=publisher, task=Points(spoiled), chance=0.3)
        outcome = training.run()
        assert torch.isfinite(weights(training)).all()
        assert max(entry.get("zeroed_fraction", 0.0) for entry in outcome.finished.history) >= 0.05
    # What the others say is heard all the same.
    honest, without = trainer(1, chance=1.0, task=Points(spoiled), groups="1"), trainer(1, chance=1.0, groups="1")
    for training in (honest, without):
        assert isinstance(training.source, PrivateExamples)
        object.__setattr__(training.source.batches, "batch_size", EXAMPLES)
    assert isinstance(without.source, PrivateExamples)
    without.source.task.rows[3, :] = 0  # type: ignore[attr-defined]
    assert honest.run().amounts.tolist() == without.run().amounts.tolist()


def test_weights_that_run_away_are_one_sentence() -> None:
    training = trainer(8, chance=1.0, rule={"optimizer": Optimizer.SGD})
    training.rule = type(training.rule)(steps=8, learning_rate=3e38, optimizer=Optimizer.SGD)
    with pytest.raises(InputError, match="diverged|holds NaN"):
        training.run()


def test_epochs_by_poisson_batches_are_as_many_as_were_asked_for() -> None:
    """10 epochs of 3 in 10 examples are 34 steps; passes of 4 steps would be 9 of them."""
    training = trainer(34, publisher=PUBLISHERS[1], epoch_rate=0.3)
    outcome = training.run()
    assert [entry["step"] for entry in outcome.finished.history] == [4, 7, 10, 14, 17, 20, 24, 27, 30, 34]
    assert torch.equal(weights(replayed(training, outcome)), weights(training))
