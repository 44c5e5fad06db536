"""The clipped sum of a batch, beside clipped gradients that autograd takes one record at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import PrivctlError
from privctl.models.choices import TaskName
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.base import Task
from privctl.train.clipping import Clipping, PerExample
from privctl.train.contribution.examine import PLACE
from privctl.train.contribution.network_state import fixed_seed, without_dropout
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.prepare import prepare
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.steps.contribution import run_gradient_test
from tests.zoo.outcome import remedies_in
from tests.zoo.shrink import build, write_data

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How sums are computed: the ``records`` in the batch, in half precision or not, and the error that rounding has.

    In bfloat16 a record's gradient in a batch differs from that of the record alone by up to a few percent.
    """

    records: int = 6
    half: bool = False
    tolerance: float = 1e-3


FULL, HALF = Passes(), Passes(records=20, half=True, tolerance=0.1)
#: One record's gradient by parameter; those that it does not use are left out.
Gradient = dict[str, torch.Tensor]


def difference(task: str, model_type: str, folder: Path) -> float:
    """The length of the two sums' difference, relative to theirs, for six records and half of them clipped.

    Raises Unbuildable, and PrivctlError for a model that is refused.
    """
    build(task, model_type, folder / "model")
    job = prepared(task, folder)
    return of_clipped_sum(job, alone(job))


def prepared(task: str, folder: Path, *, tested: bool = True, passes: Passes = FULL) -> TrainingJob:
    """The job of a model built in ``folder``, which passes the contribution test if it is to be ``tested``.

    The advice of a refusal is followed. Raises PrivctlError for a model that is refused.
    """
    given: dict[str, Any] = {}
    while True:
        try:
            job = _job(task, folder, passes, **given)
            return _tested(job) if tested else job
        except PrivctlError as error:
            more = {name: value for name, value in remedies_in(error) if name not in given}
            if not more:
                raise
            given |= more


def alone(job: TrainingJob, passes: Passes = FULL) -> list[Gradient]:
    """The gradients of each of the records, by autograd on that record alone."""
    network: nn.Module = job.model.network
    with without_dropout(network), fixed_seed(CPU), quiet_transformers():
        return [_gradient(job.task, network, row, passes) for row in range(passes.records)]


def of_clipped_sum(job: TrainingJob, gradients: Sequence[Gradient], passes: Passes = FULL) -> float:
    """How far privctl's clipped sum is from that of ``gradients``, relative to its length."""
    network: nn.Module = job.model.network
    names = [name for name, _ in network.named_parameters()]
    norms = norms_of(gradients, names)
    clip = float(norms.median())
    with without_dropout(network), fixed_seed(CPU), quiet_transformers():
        network.zero_grad()
        with PerExample(network, Clipping(norm=clip)) as engine:
            engine.accumulate(lambda: losses(job.task, network, range(passes.records), passes))
    factors = (clip / norms).clamp(max=1.0)
    return relative_error(network, gradients, factors, names)


def norms_of(gradients: Sequence[Gradient], names: Sequence[str]) -> torch.Tensor:
    """The length (n,) of each record's gradient, float64, over the parameters ``names``."""
    lengths = [[float(gradient[name].double().norm()) for name in names if name in gradient] for gradient in gradients]
    return torch.tensor([math.hypot(*length) for length in lengths], dtype=torch.float64)


def relative_error(
    network: nn.Module, gradients: Sequence[Gradient], factors: torch.Tensor, names: Sequence[str]
) -> float:
    """How far the ``grad`` of the parameters ``names`` is from the sum of ``factors`` (n,) times ``gradients``."""
    parameters = dict(network.named_parameters())
    off = whole = 0.0
    for name in names:
        parameter = parameters[name]
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
        expected = torch.zeros_like(parameter, dtype=torch.float64)
        for each, factor in zip(gradients, factors.tolist(), strict=True):
            if name in each:
                expected += factor * each[name].double()
        off += float((found.detach().double() - expected).square().sum())
        whole += float(expected.square().sum())
    return math.sqrt(off / whole)


def losses(task: Task, network: nn.Module, rows: Sequence[int], passes: Passes = FULL) -> torch.Tensor:
    """The loss (n,) of each of the records ``rows`` in one batch, whose tensors are contiguous."""
    batch = task.batch(tuple(rows), CPU, PLACE)
    with torch.autocast(CPU.type, torch.bfloat16, enabled=passes.half):
        return task.losses(network, {name: tensor.contiguous() for name, tensor in batch.items()}).float()


def _job(
    task: str, folder: Path, passes: Passes, *, norm: str | None = None, max_length: int | None = None
) -> TrainingJob:
    labels = ("LABEL_0", "LABEL_1") if task in ("text-classification", "token-classification") else None
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        model=replace(ModelRequest(path=folder / "model"), norm=norm),
        data=DataRequest(train=write_data(task, folder / "data"), max_length=max_length, labels=labels),
        task=TaskName(task),
        budget=BudgetRequest(noise_multiplier=1.0),
        output=folder / "out",
        batch_size=passes.records,
        device="cpu",
        bf16=passes.half,
    )
    with quiet_transformers():
        return prepare(request)


def _tested(job: TrainingJob) -> TrainingJob:
    network: nn.Module = job.model.network
    with quiet_transformers():
        return run_gradient_test(job, network, CPU, lambda _: None)


def _gradient(task: Task, network: nn.Module, row: int, passes: Passes) -> Gradient:
    network.zero_grad()
    with torch.enable_grad():
        losses(task, network, (row,), passes).sum().backward()  # type: ignore[no-untyped-call]
    gradient = {name: p.grad.to_dense().clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return gradient
