"""Trainings of a small language model, whole in one process and in shards; run in each of several processes."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from privctl.domain.errors import CommandError, FileSystemError, InputError, PrivctlError, RunInterruptedError
from privctl.domain.mechanism import Optimizer
from privctl.models.tasks.language import CausalLanguage
from privctl.parallel import Workers
from privctl.storage.atomic import PendingFile
from privctl.train.clipping import engine, sinks, sums
from privctl.train.clipping.factors import Clipping
from privctl.train.clipping.shards import own_part, whole
from privctl.train.methods.dpquant.quantization import Quantization
from privctl.train.network.memory import checkpointed
from privctl.train.network.sharding import shard
from privctl.train.preparation.places import run_folder
from privctl.train.runs import setup
from privctl.train.settings.adaptive_clipping import AdaptiveClipping
from privctl.train.settings.public_mixing import PublicMixing
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.state import resuming
from privctl.train.state.release_log import ReleaseLog
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.gradient_canaries import GradientCanaries
from privctl.train.steps.gradient_noise import GradientNoise, noise_for
from privctl.train.steps.loop import FinishedRun, Trainer
from privctl.train.steps.precision import FullPrecision, Precision
from privctl.train.steps.public_gradients import PublicRecords
from privctl.train.steps.sampling import PublicBatches
from tests.train.runs.sharded_parts import (
    CPU,
    STEPS,
    Broken,
    Given,
    KnownNoise,
    own_rows,
    quantization,
    require_close,
    run_checks,
    start,
)  # fmt: skip


def trained(
    model: Path,
    workers: Workers,
    method: str,
    *,
    optimizer: Optimizer = Optimizer.ADAMW,
    folder: RunFolder | None = None,
    saved: Any = None,
    stop: int = 0,
    broken: bool = False,
    plant: Callable[[nn.Module], object] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
    keep: Callable[[Quantization], object] = lambda _: None,
    passes: int = 1,
    recomputed: bool = False,
    adaptive: AdaptiveClipping | None = None,
    correlate: Callable[[GradientNoise], GradientNoise] = lambda noise: noise,
    per_draw: int = 1,
    canaries: Callable[[nn.Module, TrainingSettings], GradientCanaries | None] = lambda _network, _recipe: None,
    mixed: float = 0.0,
) -> tuple[dict[str, Tensor], FinishedRun | None]:
    """The weights after ``STEPS``, whole, and how the run ended; ``plant`` may change the network before it, and with
    ``mixed`` as their weight the same records take part as public ones, one a step."""
    private = method in ("dp-sgd", "dpquant")
    network, task = start(model, Broken if broken or private else CausalLanguage, workers, per_draw)
    plant(network)
    if workers.lockstep:
        shard(network, workers, CPU)
    if recomputed:
        checkpointed(network)
    sound = CausalLanguage(corpus=task.corpus, facts=task.facts)
    recipe = TrainingSettings(
        method=method, steps=len(STEPS), batch_size=4.0, sample_rate=0.5,
        learning_rate=0.05 if optimizer is Optimizer.ADAMW else 0.5,
        optimizer=optimizer, momentum=0.5 if optimizer is Optimizer.MOMENTUM else 0.0,
        noise_multiplier=0.5 if private else 0.0, clip_norm=0.5, micro_examples=3, clipping_passes=passes,
        adaptive=adaptive, public=PublicMixing(weight=mixed, batch_size=1, records=len(task)) if mixed else None,
    )  # fmt: skip
    bits: Precision = FullPrecision()
    if method == "dpquant":
        bits = quantization(network, task, workers)
        keep(bits)
    training = Trainer(
        network=network, task=task, recipe=recipe, clipping=None if method == "plain" else Clipping(norm=0.5),
        batches=Given(), noise=correlate(KnownNoise(network)) if private else None, workers=workers, device=CPU,
        folder=folder, precision=bits, canaries=canaries(network, recipe),
        evaluate=lambda trained: sound.evaluate(trained, CPU, workers),
        first_look=lambda trained: sound.evaluate(trained, CPU, workers), notify=notify,
        public=PublicRecords(task=sound, batches=PublicBatches(len(sound), 1, 5), weight=mixed) if mixed else None,
    )  # fmt: skip
    steps: list[int] = []
    training.advance = lambda _: steps.append(1)
    finished = None
    with folder or nullcontext():
        try:
            finished = training.run(saved, lambda: len(steps) + 1 == stop)
        except RunInterruptedError:
            assert stop
    return {name: whole(p.detach()).clone() for name, p in network.named_parameters()}, finished


def same_quantized_weights(model: Path, together: Workers, _: Path) -> None:
    """DPQuant in shards measures the same, quantizes the same layers alike, and ends with the same weights."""
    quantizers: list[Quantization] = []
    many, shared = trained(model, together, "dpquant", optimizer=Optimizer.MOMENTUM, keep=quantizers.append)
    if not together.is_main:
        return
    one, alone = trained(model, Workers(), "dpquant", optimizer=Optimizer.MOMENTUM, keep=quantizers.append)
    require_close(one, many)
    assert alone is not None
    assert shared is not None
    assert alone.side_releases_begun == shared.side_releases_begun == 2
    assert alone.released == shared.released
    for mine, theirs in zip(quantizers[1].epochs, quantizers[0].epochs, strict=True):
        assert mine.quantized == theirs.quantized
        assert mine.quantized
        assert np.allclose(mine.scores, theirs.scores, atol=1e-6)
    assert any(any(epoch.scores) for epoch in quantizers[0].epochs)
    full, _ended = trained(model, Workers(), "dp-sgd", optimizer=Optimizer.MOMENTUM)
    assert max(float((one[name] - full[name]).abs().max()) for name in one) > 1e-3


def same_weights(model: Path, together: Workers, _: Path) -> None:
    """In shards a training ends with the weights and measures of one process."""
    for method in ("plain", "dp-sgd"):
        many, shared = trained(model, together, method, optimizer=Optimizer.MOMENTUM)
        if not together.is_main:
            continue
        one, alone = trained(model, Workers(), method, optimizer=Optimizer.MOMENTUM)
        require_close(one, many)
        assert alone is not None
        assert shared is not None
        assert alone.released == shared.released
        begun = {name: p.detach() for name, p in start(model)[0].named_parameters()}
        assert max(float((one[name] - begun[name]).abs().max()) for name in one) > 0.01
        for mine, theirs in zip([alone.before, *alone.history], [shared.before, *shared.history], strict=True):
            assert "loss" in mine
            assert mine.keys() == theirs.keys()
            assert all(abs(mine[key] - theirs[key]) <= 1e-4 * abs(mine[key]) for key in mine)
        assert any("zeroed_fraction" in entry for entry in shared.history) is (method == "dp-sgd")


def same_clip_norms(model: Path, together: Workers, _: Path) -> None:
    """Shards, and processes that each hold all, count together what one process counts."""
    settings = AdaptiveClipping(quantile=0.3, learning_rate=0.5, count_stddev=1.0)
    for passes, workers in ((1, together), (2, together), (1, replace(together, lockstep=False))):
        many, shared = trained(model, workers, "dp-sgd", optimizer=Optimizer.SGD, passes=passes, adaptive=settings)
        assert shared is not None
        one, alone = trained(model, Workers(), "dp-sgd", optimizer=Optimizer.SGD, adaptive=settings)
        assert alone is not None
        assert len(alone.clip_norms) == len(STEPS) + 1
        assert max(abs(a / b - 1) for a, b in zip(alone.clip_norms, shared.clip_norms, strict=True)) < 1e-5
        assert alone.released == shared.released
        require_close(one, many)


def same_with_public_records(model: Path, together: Workers, _: Path) -> None:
    """Shards, and processes that each hold all, add the public gradient that one process adds; some have no record."""
    for workers in (together, replace(together, lockstep=False)):
        many, shared = trained(model, workers, "dp-sgd", optimizer=Optimizer.SGD, mixed=0.5)
        if not together.is_main:
            continue
        one, alone = trained(model, Workers(), "dp-sgd", optimizer=Optimizer.SGD, mixed=0.5)
        require_close(one, many)
        without, _ended = trained(model, Workers(), "dp-sgd", optimizer=Optimizer.SGD)
        assert max(float((one[name] - without[name]).abs().max()) for name in one) > 0.01
        assert alone is not None
        assert shared is not None
        for mine, theirs in zip(alone.history, shared.history, strict=True):
            assert abs(mine["public_loss"] - theirs["public_loss"]) <= 1e-4 * mine["public_loss"]


def same_weights_in_two_passes(model: Path, together: Workers, _: Path) -> None:
    """Blocks' sums are formed while the second pass is under way, and end where one process's do."""
    for recomputed in (False, True):
        many, shared = trained(model, together, "dp-sgd", optimizer=Optimizer.MOMENTUM, passes=2, recomputed=recomputed)
        if together.is_main:
            one, _ = trained(model, Workers(), "dp-sgd", optimizer=Optimizer.MOMENTUM)
            require_close(one, many)
            assert shared is not None
            assert any("zeroed_fraction" in entry for entry in shared.history)


def another_number_of_processes(model: Path, together: Workers, folder: Path) -> None:
    """A run that several processes began in shards goes on in one, and the other way round."""
    expected, _ = trained(model, Workers(), "dp-sgd")
    for name, first, second in (("a", together, Workers()), ("b", Workers(), together)):
        path, writes = folder / name, together.is_main
        trained(model, first, "dp-sgd", folder=RunFolder.begin(path, {}) if writes else None, stop=3)
        together.barrier()
        opened, saved = RunFolder.resume(path, {})
        together.barrier()
        assert saved is not None
        assert saved.steps_begun == 3
        ended, _ = trained(model, second, "dp-sgd", folder=opened if writes else None, saved=saved)
        require_close(ended, expected)


def own_shares(model: Path, together: Workers, _: Path) -> None:
    """Each process holds its share of everything, and its noise is its own."""
    network, _task = start(model, workers=together)
    assert together.is_main or all(p.is_meta for p in network.parameters())
    before = {name: p.detach().clone() for name, p in start(model)[0].state_dict().items()}
    total = sum(p.numel() for p in network.parameters())
    shard(network, together, CPU)
    held = sum(own_part(p).numel() for p in network.parameters())
    assert sum(p.numel() for p in network.parameters()) == total
    assert abs(held * together.size - total) < 0.05 * total
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(whole(each), before[name]) for name, each in network.state_dict().items())
    noise = torch.zeros(64)
    noise_for(CPU).release([noise], 1.0, 0)
    drawn = together.gather(noise).view(together.size, -1)
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def all_end_together(model: Path, together: Workers, _: Path) -> None:
    """A text without a finite loss, which one process alone has, ends a run without noise in all of them."""
    for method in ("plain", "clipped"):
        try:
            trained(model, together, method, broken=True)
        except InputError as error:
            assert "the loss is not finite" in str(error)
        else:
            raise AssertionError(f"{method} went on")


def all_refuse_together(model: Path, together: Workers, folder: Path) -> None:
    """What only the main process tries is refused in all of them, in the same words and with the same exit code."""

    class Refused(InputError):
        """A kind of its own, as refusals may be."""

    def refuse(*_: Any) -> None:
        assert together.is_main
        raise Refused("the rehearsed model cannot be read again")

    options = SimpleNamespace(adapter_only=True, seed=1)
    method = SimpleNamespace(settings=None)
    request = SimpleNamespace(model=options, method=method, seed=1, resume=False, output=folder / "out")
    job: Any = SimpleNamespace(request=request, model=SimpleNamespace(network=nn.Identity(), companion=None, files=()))
    begun = run_folder(request.output)
    if together.is_main:
        begun.mkdir()
    together.barrier()
    refusals = {"adapted": _nothing, "reference_answers": _nothing, "released_adapter": refuse}
    cases: list[tuple[str, type[PrivctlError], Callable[[], object]]] = [
        ("the rehearsed model cannot be read again", InputError, lambda: setup.rehearsed_network(job, together)),
        ("holds the state of an unfinished run", CommandError, lambda: resuming.open_folder(job, together)),
    ]
    with mock.patch.multiple(setup, **refusals), mock.patch.object(resuming, "fingerprint_of", return_value={}):
        for sentence, kind, attempt in cases:
            try:
                attempt()
            except kind as error:
                assert sentence in str(error), error
            else:
                raise AssertionError(f"nobody said that {sentence}")


def full_backward(layer: nn.Module) -> None:
    """``layer`` has no memory for the gradients of more than one example."""

    def hold(_module: nn.Module, _arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.requires_grad and len(hidden) > 1:
            hidden.register_hook(run_out)

    layer.register_forward_hook(hold)


def full_forward(layer: nn.Module) -> None:
    """``layer`` has no memory for more than one example in training."""
    layer.register_forward_hook(
        lambda _module, arguments, _output: run_out() if len(arguments[0]) > 1 and torch.is_grad_enabled() else None
    )


def run_out(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


def memory_of_one_runs_out(model: Path, together: Workers, _: Path) -> None:
    """Where the memory of one process runs out in a pass, all repeat the step with less, and end as if it had not."""
    for method in ("plain", "dp-sgd"):
        expected, one = trained(model, together, method, optimizer=Optimizer.MOMENTUM)
        assert one is not None
        for plant in (full_forward, full_backward):

            def plant_in_one(network: nn.Module, plant: Callable[[nn.Module], None] = plant) -> None:
                if together.rank == together.size - 1:
                    plant(network.get_submodule("model.layers.1"))

            messages: list[str] = []
            found, ended = trained(
                model, together, method, optimizer=Optimizer.MOMENTUM, plant=plant_in_one, notify=messages.append
            )
            require_close(found, expected)
            assert ended is not None
            assert (ended.updates, ended.steps_begun) == (one.updates, one.steps_begun)
            assert messages, "the memory never ran out"
            assert all("ran out; from now on at most" in message for message in messages)


def memory_runs_out_while_adding(model: Path, together: Workers, _: Path) -> None:
    """The same where a process has the gradient and no room for its sum."""
    expected, _one = trained(model, together, "dp-sgd", optimizer=Optimizer.MOMENTUM)
    add, failed = sums.add, []

    def full(parameter: Any, terms: Any, factors: Tensor) -> None:
        if together.rank == 0 and len(factors) > 1 and parameter.dim() == 1:  # not the first
            failed.append(1)
            run_out()
        add(parameter, terms, factors)

    with mock.patch.object(engine, "add", full), mock.patch.object(sinks, "add", full):
        found, _ended = trained(model, together, "dp-sgd", optimizer=Optimizer.MOMENTUM)
    require_close(found, expected)
    assert bool(failed) is together.is_main


def one_record_is_too_much_for_one(model: Path, together: Workers, _: Path) -> None:
    """A process that has no memory for one record ends the run in all, which say the same."""

    def plant(network: nn.Module) -> None:
        if together.rank == 1:
            network.get_submodule("model.layers.0").register_forward_hook(
                lambda *_: run_out() if torch.is_grad_enabled() else None
            )

    try:
        trained(model, together, "dp-sgd", plant=plant)
    except InputError as error:
        assert "does not hold one record" in str(error)
    else:
        raise AssertionError("nobody said that memory ran out")


def no_room_ends_all(model: Path, together: Workers, place: Path) -> None:
    """Where the main process cannot write a run's state, or its log, all end in the same sentence."""
    for lockstep in (False, True):
        for part, name in ((RunFolder, "save"), (RunFolder, "mark"), (ReleaseLog, "mark"), (PendingFile, "write_at")):
            folder = RunFolder.begin(place / f"{name}-{part.__name__}-{lockstep}", {}) if together.is_main else None
            with mock.patch.object(part, name, side_effect=OSError(errno.ENOSPC, "No space left on device")):
                try:
                    trained(model, replace(together, lockstep=lockstep), "plain", folder=folder)
                except (OSError, FileSystemError) as error:
                    assert "No space left on device" in str(error)
                    assert together.is_main or isinstance(error, FileSystemError)
                else:
                    raise AssertionError("nobody said that there is no room")


def _nothing(*_: Any) -> None:
    """In place of what would need a real model."""


CHECKS = {
    check.__name__: check
    for check in (
        all_end_together,
        same_weights,
        same_quantized_weights,
        same_weights_in_two_passes,
        same_clip_norms,
        same_with_public_records,
        another_number_of_processes,
        own_shares,
        own_rows,
        all_refuse_together,
        no_room_ends_all,
        memory_of_one_runs_out,
        memory_runs_out_while_adding,
        one_record_is_too_much_for_one,
    )
}


if __name__ == "__main__":
    run_checks(CHECKS, sys.argv[1:])
