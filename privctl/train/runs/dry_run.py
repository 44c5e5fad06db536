"""Dry runs: what a training would do, need and guarantee, from its settings, counts and steps on synthetic records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privctl.accounting.deltas import delta_warning
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.errors import CommandError
from privctl.domain.progress import Notify
from privctl.domain.shown import counted
from privctl.domain.training_plan import Budget, TrainingPlan
from privctl.models.choices import TaskName
from privctl.models.language import choose_device
from privctl.models.synthetic import synthetic
from privctl.models.tasks.corpus import CorpusTask
from privctl.parallel import Workers, own_device
from privctl.train.logs.held_out import shared_warning
from privctl.train.network.adapters import adapted
from privctl.train.network.half_precision import hold_base
from privctl.train.network.memory import peak_memory
from privctl.train.network.tensor_bytes import TensorBytes, bytes_of
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.ledgers import ledger_of, price_of_group, price_of_largest_batch
from privctl.train.preparation.prepare import most_trained
from privctl.train.preparation.signal_to_noise import SignalToNoise, noise_warnings, signal_to_noise
from privctl.train.preparation.user_bounds import bound_choice_notes, compared_bounds
from privctl.train.release.names import voiding
from privctl.train.release.users import unsure_names, what_is_sampled
from privctl.train.runs.setup import prepared
from privctl.train.settings.request import RetrainRequest
from privctl.train.steps.contribution import clipping_of, run_gradient_test
from privctl.train.steps.gradient_noise import noise_for
from privctl.train.steps.loop import Trainer
from privctl.train.steps.precision import FullPrecision, Precision
from privctl.train.steps.step_noise import correlated

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from privctl.models.tasks.base import Task

#: Tasks that can train on pieces of a long record.
_SPLIT = (TaskName.CAUSAL_LM, TaskName.MASKED_LM)
#: Values of epsilon that a dry run compares, in addition to the requested one.
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
NOISE_MULTIPLIER = "noise multiplier"
OWNER = (
    "this plan holds the number of records, and its time follows from their mean length: keep it to yourself as you "
    "keep the report"
)
#: The number of timed steps on records, and on empty batches, which give the fixed cost of a step.
_ON_RECORDS, _ON_NONE = 2, 2
#: Warm-up steps on the longest records: one that creates the optimizer's moments, one whose memory is measured.
_WARM = 2
#: Bytes per entry of a gradient, which is kept while the gradient of public records is computed.
_GRADIENT = 4

#: A note for plans with ``--bands`` or ``--buffers``.
_CORRELATED = (
    "a noise multiplier of correlated noise and one of independent noise say nothing beside each other; compare the "
    "signal to noise, or the errors that `privctl account --mechanism banded` (or blt) shows"
)
#: Builds a run's precision from its job and its network.
PrecisionOf = Callable[[TrainingJob, "nn.Module", torch.device], Precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRecords:
    """Synthetic records as a ``task``: first ``long`` of the largest length in the data, then ``usual`` of the mean."""

    task: Task
    long: int
    usual: int


@dataclass(frozen=True, slots=True)
class FixedBatches:
    """The batches of a timed training: long records for ``warm`` steps, then usual ones, then none.

    Implements ``BatchSource``.
    """

    records: SyntheticRecords
    warm: int = 1

    def batch(self, step: int) -> NDArray[np.int64]:
        """See ``BatchSource``."""
        long, usual = self.records.long, self.records.usual
        if step < self.warm:
            return np.arange(long)
        return np.arange(long, long + usual) if step < self.warm + _ON_RECORDS else np.arange(0)


@dataclass(slots=True)
class Stopwatch:
    """The seconds of each step on ``device``, which is synchronized before every reading."""

    device: torch.device
    seconds: list[float] = field(default_factory=list)
    _last: float = field(default_factory=time.perf_counter)

    def __call__(self, _: float = 1) -> None:
        """Record that a step has ended."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def plan_gradients(job: TrainingJob, precision_of: PrecisionOf | None = None) -> TrainingPlan:
    """The plan of a training by gradients. Nothing is written, and no private record passes through the network.

    Raises PrivctlError if the run itself would refuse to start, InputError if memory does not hold a single record.
    """
    request, recipe = job.request, job.recipe
    if request.fsdp:
        raise CommandError("--dry-run measures one process that holds the whole model; remove --fsdp")
    device = own_device(choose_device(request.device))
    network = adapted(job.model.network, request.model, request.seed, device).to(device)
    if recipe.bf16 and precision_of is None:
        hold_base(network)
    network = prepared(network, job)
    warnings = [*bound_choice_notes(request)]
    if request.method.clips:
        job = run_gradient_test(job, network, device, warnings.append)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    ratio = None
    if request.method.noised:
        ratio = signal_to_noise(recipe, trained, planned=job.plan is not None)
        warnings += noise_warnings(ratio)
    if recipe.coefficients is not None or recipe.matrix is not None:
        warnings.append(_CORRELATED)
    seconds, memory, on_gpu = _measured(job, network, device, precision_of or _full_precision_of, warnings.append)
    if (of_public := seconds_of_public(job, network, device)) is not None and recipe.public is not None:
        seconds += of_public
        on_gpu = None if on_gpu is None else on_gpu + trained * _GRADIENT
        warnings.append(
            f"{of_public / seconds:.0%} of the time is for the gradients of public records, of which a step takes "
            f"{recipe.public.batch_size}; they cost no privacy as long as they are public"
        )
    return replace(
        outline(job, seconds=seconds, memory=memory, device=device, trained=trained, warnings=warnings),
        gpu_memory=on_gpu,
        **({} if ratio is None else private_fields(job, ratio)),
    )


def outline(
    job: TrainingJob, *, seconds: float, memory: int, device: torch.device, trained: int, warnings: Sequence[str]
) -> TrainingPlan:
    """The part of a plan that all methods share; ``warnings`` come after those of ``known_beforehand``."""
    recipe = job.recipe
    return TrainingPlan(
        method=job.request.method_name,
        records=len(job.task),
        unit=what_is_sampled(job.request),
        trained=trained,
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        sampling_rate=recipe.sample_rate,
        delta=job.delta,
        seconds=seconds,
        memory=memory,
        device=str(device),
        warnings=(*known_beforehand(job), *warnings, OWNER),
    )


def known_beforehand(job: TrainingJob) -> Iterator[str]:
    """The warnings that depend only on a run's settings and data."""
    if sentence := _truncation(job.task):
        yield sentence
    yield from voiding(job)
    yield from shared_warning(job)
    yield from unsure_names(job)
    if job.recipe.search is not None:
        yield (
            f"this is one run of a search, which makes {job.recipe.search.mean:g} on average; epsilon is that of the "
            "whole search"
        )
    if job.delta is not None and (near := delta_warning(job.delta, len(job.task))):
        yield near
    if job.request.method.shared(job.request) is None and (price := price_of_group(job.recipe, job.delta)):
        yield price
    if (several := job.request.method.per_draw(job.request)) > 1:
        yield (
            f"time and memory are those of one record a user; with {several} each step takes up to {several} times as "
            "long, and the records of one user are in memory at once"
        )
    if price := price_of_largest_batch(job.recipe, job.delta):
        yield price


def _full_precision_of(job: TrainingJob, network: nn.Module, device: torch.device) -> Precision:
    return FullPrecision()


def _truncation(task: Task) -> str | None:
    """A warning that records of ``--data`` were truncated to the model's context; None if none were."""
    corpus = getattr(task, "corpus", None)
    if corpus is None or not corpus.shortened:
        return None
    split = "--long split trains on all of a long record, " if task.name in _SPLIT else ""
    return (
        f"{corpus.shortened} of the {counted(corpus.records, 'record')} of --data "
        f"({100 * corpus.shortened / corpus.records:.3g} %) have more than {corpus.lengths().max()} tokens and are "
        f"truncated to them; {split}--long refuse stops at it"
    )


def compared_budgets(requested: float | None, amount_for: Callable[[float], float | None]) -> tuple[Budget, ...]:
    """The noise that several values of epsilon need, including the ``requested`` one; None for one that cannot be met.

    ``amount_for`` computes it, and raises CommandError or ValueError if that is impossible.
    """

    def amount(epsilon: float) -> float | None:
        try:
            return amount_for(epsilon)
        except (CommandError, ValueError):
            return None

    budgets = sorted({*BUDGETS, *(() if requested is None else (requested,))})
    return tuple(Budget(epsilon=epsilon, amount=amount(epsilon)) for epsilon in budgets)


def with_epsilon(request: RetrainRequest, epsilon: float) -> RetrainRequest:
    """The request with ``epsilon`` as its budget."""
    return replace(request, budget=replace(request.budget, epsilon=epsilon, noise_multiplier=None))


def synthetic_records(job: TrainingJob) -> SyntheticRecords:
    """Synthetic records like those of ``job``: of the largest length for memory, and of the mean length for time."""
    return _synthetic_like(job.task, job, job.recipe.batch_size)


def _synthetic_like(task: Task, job: TrainingJob, batch_size: float) -> SyntheticRecords:
    """Synthetic records like those of ``task``: as many as pass through the network at once, at most a batch."""
    recipe = job.recipe
    longest = usual = 1
    if isinstance(task, CorpusTask):
        padded = np.maximum(task.corpus.lengths(), task.padding or 0)
        longest, usual = int(padded.max()), round(int(padded.sum()) / len(padded))
    most = max(1, round(batch_size))

    def at_once(length: int) -> int:
        fits = max(1, recipe.micro_tokens // length) if isinstance(task, CorpusTask) else recipe.micro_examples
        return min(most, recipe.micro_examples, fits)

    lengths = [longest] * at_once(longest) + [max(2, usual)] * at_once(usual)
    records = synthetic(task, lengths, classes=len(job.model.labels or ()))
    return SyntheticRecords(task=records, long=at_once(longest), usual=at_once(usual))


def private_fields(job: TrainingJob, ratio: SignalToNoise) -> dict[str, Any]:
    """The fields of a plan, by name, that only a training with noise has."""
    request, recipe = job.request, job.recipe
    protection = None if job.plan is None else job.plan.protection
    trained = most_trained(job.model.network, request.model)

    def amount_for(epsilon: float) -> float:
        return recipe_for(with_epsilon(request, epsilon), len(job.task), protection, trained)[0].noise_multiplier

    side = request.method.side_releases(request, len(job.task), recipe.steps, recipe.sample_rate)
    ledger = ledger_of(recipe, recipe.steps, protection, None if side is None else side.event(recipe.noise_multiplier))
    assert job.delta is not None
    return {
        "amount_name": NOISE_MULTIPLIER,
        "amount": recipe.noise_multiplier,
        "epsilon": request.budget.epsilon or epsilon_bound(ledger, job.delta),
        "signal": ratio.along,
        "per_number": ratio.in_length,
        "budgets": compared_budgets(request.budget.epsilon, amount_for),
        "user_bounds": compared_bounds(request, trained),
    }


def seconds_of_public(job: TrainingJob, network: nn.Module, device: torch.device) -> float | None:
    """The seconds that all steps take for public records, timed on synthetic ones; None if none are mixed in."""
    mixing = job.recipe.public
    if job.public is None or mixing is None or not mixing.weight:
        return None
    records = _synthetic_like(job.public, job, mixing.batch_size)
    trained = [p for p in network.parameters() if p.requires_grad]
    usual = records.task.batch(range(records.long, records.long + records.usual), device, 0)
    watch = Stopwatch(device)
    for _ in range(1 + _ON_RECORDS):
        with torch.autocast(device.type, torch.bfloat16, enabled=job.recipe.bf16):
            loss = records.task.losses(network, usual).mean()
        torch.autograd.grad(loss, trained, allow_unused=True)
        watch()
    return job.recipe.steps * mixing.batch_size * min(watch.seconds[1:]) / records.usual


def _measured(
    job: TrainingJob, network: nn.Module, device: torch.device, precision_of: PrecisionOf, notify: Notify
) -> tuple[float, int, int | None]:
    """The seconds of all steps, the peak memory and, on a CPU, the memory on a GPU, from steps on synthetic records."""
    records = synthetic_records(job)
    rehearsed = replace(job, task=records.task)
    watch, tensors = Stopwatch(device), TensorBytes()

    def ended(_: float) -> None:
        watch()
        if len(watch.seconds) == 1:
            tensors.reset_peak()
        elif len(watch.seconds) == _WARM:
            tensors.stop()

    trainer = Trainer(
        network=network,
        task=records.task,
        # The learning rate is so small that the weights stay finite whatever the noise.
        recipe=replace(job.recipe, steps=_WARM + _ON_RECORDS + _ON_NONE, learning_rate=1e-30, warmup_steps=0),
        clipping=clipping_of(job) if job.request.method.clips else None,
        batches=FixedBatches(records, _WARM),
        noise=correlated(noise_for(device), job.recipe.coefficients, job.recipe.matrix)
        if job.request.method.noised
        else None,
        workers=Workers(),
        device=device,
        precision=precision_of(rehearsed, network, device),
        promoted=None if job.contribution is None else job.contribution.promoted,
        advance=ended,
        notify=notify,
        may_pass_twice=job.may_pass_twice,
    )
    if device.type == "cpu":
        tensors.start()
    try:
        trainer.run()
    finally:
        tensors.stop()
    timed = watch.seconds[_WARM:]
    on_records, on_none = timed[:_ON_RECORDS], timed[_ON_RECORDS:]
    empty = min(on_none)
    per_record = max(0.0, min(on_records) - empty) / records.usual
    seconds = job.recipe.steps * (empty + per_record * job.recipe.batch_size)
    return seconds, peak_memory(device), bytes_of(network) + tensors.most if device.type == "cpu" else None
