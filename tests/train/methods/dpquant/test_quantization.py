"""A training with layers in few bits: when it measures, what it saves, and that nothing is lost or used twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privctl.domain.errors import InputError, RunInterruptedError
from privctl.domain.events import Batches
from privctl.domain.mechanism import Optimizer
from privctl.parallel import Workers
from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import Clipping
from privctl.train.methods.dpquant.quantization import Measuring, Quantization
from privctl.train.methods.dpquant.schedule import LayerSchedule
from privctl.train.methods.dpquant.settings import LayerMode
from privctl.train.quantized import FORMATS, QuantizedLayers
from privctl.train.settings.choices import FormatName
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_noise import KeyedNoise
from privctl.train.steps.loop import Trainer
from privctl.train.steps.sampling import PoissonBatches
from tests.few import few
from tests.train.methods.dpquant.support import CPU, NAMES, Blobs, network, sensitivity
from tests.train.state.release_logs import begun

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCH, EPOCHS = 4, 6
STEPS = EPOCH * EPOCHS


def recipe(**changes: Any) -> TrainingSettings:
    settings: dict[str, Any] = {
        "method": "dpquant", "steps": STEPS, "batch_size": 5.0, "sample_rate": 0.25, "learning_rate": 0.1,
        "optimizer": Optimizer.ADAM, "noise_multiplier": 1.0,
    }  # fmt: skip
    return TrainingSettings(**{**settings, **changes})


def dpquant_trainer(
    mode: LayerMode | None = LayerMode.DPQUANT,
    folder: RunFolder | None = None,
    workers: Workers | None = None,
    **changes: Any,
) -> Trainer:
    """Coins and noise by seeds, so that runs can be compared; ``mode`` None is DP-SGD that knows of no layers."""
    net, task = network(), Blobs(20)
    more: dict[str, Any] = {}
    if mode is not None:
        layers = QuantizedLayers(network=net, format=FORMATS[FormatName.LUQ_FP4], seed=b"rounding")
        measured = sensitivity(
            net, task, layers=layers, batches=PoissonBatches(20, 0.5, NoiseSource(4)), noise=NoiseSource(5),
            noise_multiplier=1.0, size=10.0, workers=workers or Workers(),
        )  # fmt: skip
        plan = Measuring(sensitivity=measured, every=2, repetitions=2, most=6, smoothing=0.5)
        schedule = LayerSchedule(names=NAMES, costs=(1.0, 1.0, 1.0), mode=mode, seed=b"layers", fraction=0.6, beta=10.0)
        more["precision"] = Quantization(
            layers=layers,
            schedule=schedule,
            task=task,
            epoch_steps=EPOCH,
            measuring=plan if mode is LayerMode.DPQUANT else None,
        )
    return Trainer(
        **{
            "network": net, "task": task, "recipe": recipe(), "clipping": Clipping(norm=1.0),
            "batches": PoissonBatches(20, 0.25, NoiseSource(1)), "noise": KeyedNoise(NoiseSource(7)),
            "workers": workers or Workers(), "device": CPU, "folder": folder, **more, **changes,
        }
    )  # fmt: skip


def precision(trainer: Trainer) -> Quantization:
    found = trainer.precision
    assert isinstance(found, Quantization)
    return found


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.network.parameters()]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_measurements_come_every_other_epoch_and_are_all_counted() -> None:
    run = dpquant_trainer()
    done = run.run()
    quantization = precision(run)
    assert (done.updates, done.steps_begun, done.side_releases_begun, quantization.side_releases_begun) == (
        STEPS,
        STEPS,
        6,
        6,
    )
    epochs = quantization.epochs
    assert [epoch.number for epoch in epochs] == list(range(EPOCHS))
    assert {len(epoch.quantized) for epoch in epochs} == {2}
    assert all(epochs[i].scores == epochs[i + 1].scores for i in (0, 2, 4))
    assert len({epoch.scores for epoch in epochs}) == 3


def test_a_first_batch_of_one_record_is_not_the_last_that_is_verified() -> None:
    """It shows little, so the next one is compared too: again without what rounding draws."""
    batches = SimpleNamespace(kind=Batches.POISSON, batch=lambda step: np.arange(12 if step else 1))
    assert dpquant_trainer(LayerMode.ALL, batches=batches, recipe=recipe(steps=2)).run().updates == 2


def test_scores_are_smoothed_and_the_first_are_taken_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    run = dpquant_trainer()
    plan = precision(run).measuring
    assert plan is not None
    values = iter([[1.0] * 3, [3.0] * 3, [0.0] * 3, [0.0] * 3, [8.0] * 3, [8.0] * 3])
    monkeypatch.setattr(type(plan.sensitivity), "release", lambda self, number: next(values))
    run.run()
    assert [epoch.scores[0] for epoch in precision(run).epochs] == [2.0, 2.0, 1.0, 1.0, 4.5, 4.5]


def test_no_layer_quantized_is_dp_sgd_to_the_last_bit() -> None:
    plain, none, every = dpquant_trainer(None), dpquant_trainer(LayerMode.NONE), dpquant_trainer(LayerMode.ALL)
    histories = [run.run().history for run in (plain, none, every)]
    assert same(weights(plain), weights(none))
    assert histories[0] == histories[1]
    assert not same(weights(plain), weights(every))
    assert (none.precision.side_releases_begun, every.precision.side_releases_begun) == (0, 0)


def test_gradients_are_those_of_the_quantized_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a step the layers are on exactly while examples pass, and the rows are theirs."""
    run = dpquant_trainer(LayerMode.ALL, recipe=recipe(steps=3))
    shapes: list[tuple[int, ...]] = []
    honest = QuantizedLayers.active

    def watched(self: QuantizedLayers, keys: Sequence[int]) -> Any:
        shapes.append(tuple(keys))
        return honest(self, keys)

    monkeypatch.setattr(QuantizedLayers, "active", watched)
    run.run()
    task = run.task
    assert shapes == [
        tuple(task.keys(group))
        for step in range(3)
        for group in task.micro_batches(run.batches.batch(step).tolist(), step, 64)
    ]


def interrupted(folder: Path, stop_after: int) -> None:
    """A run that is stopped and saved."""
    with RunFolder.begin(folder, {}) as kept:
        run, steps = dpquant_trainer(folder=kept), iter(range(1, STEPS))
        with pytest.raises(RunInterruptedError):
            run.run(None, lambda: next(steps) == stop_after)


def resumed(folder: Path) -> Trainer:
    kept, start = RunFolder.resume(folder, {})
    run = dpquant_trainer(folder=kept)
    with kept:
        run.run(start)
    return run


@pytest.mark.parametrize("stop_after", few([1, EPOCH, EPOCH + 2, 3 * EPOCH, STEPS - 1], 1))
def test_a_resumed_run_is_the_same_to_the_last_bit(stop_after: int, tmp_path: Path) -> None:
    whole = dpquant_trainer()
    whole.run()
    interrupted(tmp_path / "run", stop_after)
    again = resumed(tmp_path / "run")
    assert same(weights(whole), weights(again))
    assert precision(whole).epochs == precision(again).epochs
    assert (again.precision.side_releases_begun, precision(again).measuring is None) == (6, False)


@pytest.mark.slow
def test_forgetting_the_scores_would_show(tmp_path: Path) -> None:
    whole = dpquant_trainer()
    whole.run()
    interrupted(tmp_path / "run", EPOCH + 2)
    kept, start = RunFolder.resume(tmp_path / "run", {})
    assert start is not None
    forgetful = dpquant_trainer()
    with kept:
        tensors = {name: t for name, t in start.tensors.items() if not name.startswith("dpquant.")}
        forgetful.run(
            type(start)(updates=start.updates, steps_begun=start.steps_begun, tensors=tensors, history=start.history)
        )
    assert precision(whole).epochs != precision(forgetful).epochs


class Killed(BaseException):
    """The end of a process."""


def killed(folder: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A run that ends without a word in its release number ``at``; the numbers that were asked for."""
    numbers: list[int] = []
    with monkeypatch.context() as patch, RunFolder.begin(folder, {}) as kept:
        run = dpquant_trainer(folder=kept)
        plan = precision(run).measuring
        assert plan is not None
        honest = type(plan.sensitivity).release

        def dying(self: Any, number: int) -> Any:
            numbers.append(number)
            found = honest(self, number)
            if number == at:
                raise Killed
            return found

        patch.setattr(type(plan.sensitivity), "release", dying)
        with pytest.raises(Killed):
            run.run()
    return numbers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of all releases that are made."""
    from privctl.train.methods.dpquant.sensitivity import LayerSensitivity

    numbers: list[int] = []
    honest = LayerSensitivity.release

    def noted(self: LayerSensitivity, number: int) -> Any:
        numbers.append(number)
        return honest(self, number)

    monkeypatch.setattr(LayerSensitivity, "release", noted)
    return numbers


@pytest.mark.parametrize("at", few([0, 1, 3], 1))
def test_what_may_have_escaped_stays_counted_and_is_not_made_up_for(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    """A kill between a release and the next state: its number is spent, in the ledger and for the noise."""
    before = killed(tmp_path / "run", at, monkeypatch)
    assert before == list(range(at + 1))
    asked.clear()
    again = resumed(tmp_path / "run")
    assert again.precision.side_releases_begun == 6  # as planned, of which what was lost is part
    assert asked == list(range(at + 1, 6))  # no number, and so no noise and no coins, comes again
    assert len(precision(again).epochs) == EPOCHS


def test_a_count_that_is_kept_in_memory_only_would_use_noise_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    monkeypatch.setattr(RunFolder, "mark_side_releases", lambda self, begun: None)
    killed(tmp_path / "run", 0, monkeypatch)
    (tmp_path / "run" / "begun").write_text("0" * 20)
    asked.clear()
    resumed(tmp_path / "run")
    assert 0 in asked


def test_a_release_is_counted_on_disk_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.begin(tmp_path / "run", {}) as folder:
        run = dpquant_trainer(folder=folder)
        plan = precision(run).measuring
        assert plan is not None
        honest = type(plan.sensitivity).release

        def looking(self: Any, number: int) -> Any:
            assert begun(tmp_path / "run" / "measured") == number + 1
            return honest(self, number)

        monkeypatch.setattr(type(plan.sensitivity), "release", looking)
        assert run.run().side_releases_begun == 6


def test_a_state_of_other_layers_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 2)
    _, start = RunFolder.resume(tmp_path / "run", {})
    assert start is not None
    wrong = {name: t[:, :2] if name in ("dpquant.chosen", "dpquant.scores") else t for name, t in start.tensors.items()}
    with pytest.raises(InputError, match="among 3 layers"):
        dpquant_trainer().precision.restore(wrong, 0)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAM, Optimizer.ADAMW])
def test_every_update_rule(optimizer: Optimizer) -> None:
    run = dpquant_trainer(recipe=recipe(optimizer=optimizer, steps=5))
    before = weights(run)
    run.run()
    assert not same(before, weights(run))


def test_plain_training_can_be_quantized_too() -> None:
    plan = recipe(method="plain", noise_multiplier=0.0, steps=5)
    runs = [
        dpquant_trainer(mode, recipe=plan, clipping=None, noise=None) for mode in (None, LayerMode.NONE, LayerMode.ALL)
    ]
    for run in runs:
        run.run()
    assert same(weights(runs[0]), weights(runs[1]))
    assert not same(weights(runs[0]), weights(runs[2]))


def test_the_network_measures_as_it_will_be_used() -> None:
    """Dropout is off while a measurement is made, and on again after it."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()
    first = sensitivity(net, Blobs(6), names=("0", "2"))
    assert first.release(0) == pytest.approx(first.release(0), abs=1e-9)
    assert net.training
