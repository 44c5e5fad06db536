"""The clipped sum of a batch, beside clipped gradients that autograd takes one record at a time."""

from __future__ import annotations

from dataclasses import replace
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
from privctl.train.steps.contribution import gradient_stages, run_contribution_test
from tests.zoo.outcome import remedies_in
from tests.zoo.shrink import build, write_data

CPU = torch.device("cpu")
_RECORDS = 6


def difference(task: str, model_type: str, folder: Path) -> float:
    """The length of the two sums' difference, relative to theirs, for six records and half of them clipped.

    Raises Unbuildable, and PrivctlError for a model that is refused.
    """
    build(task, model_type, folder / "model")
    given: dict[str, Any] = {}
    while True:
        try:
            job = _tested(_job(task, folder, **given))
            break
        except PrivctlError as error:
            more = {name: value for name, value in remedies_in(error) if name not in given}
            if not more:
                raise
            given |= more
    network: nn.Module = job.model.network
    with without_dropout(network), fixed_seed(CPU), quiet_transformers():
        alone = [_gradient(job.task, network, row) for row in range(_RECORDS)]
        norms = torch.stack([each.norm() for each in alone])
        clip = float(norms.median())
        expected = sum(each * min(1.0, clip / float(norm)) for each, norm in zip(alone, norms, strict=True))
        with PerExample(network, Clipping(norm=clip)) as engine:
            engine.accumulate(lambda: _losses(job.task, network, tuple(range(_RECORDS))))
        found = _flat({name: p.grad for name, p in network.named_parameters()}, network)
    assert isinstance(expected, torch.Tensor)
    return float((found - expected).norm() / expected.norm())


def _job(task: str, folder: Path, *, norm: str | None = None, max_length: int | None = None) -> TrainingJob:
    labels = ("LABEL_0", "LABEL_1") if task in ("text-classification", "token-classification") else None
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        model=replace(ModelRequest(path=folder / "model"), norm=norm),
        data=DataRequest(train=write_data(task, folder / "data"), max_length=max_length, labels=labels),
        task=TaskName(task),
        budget=BudgetRequest(noise_multiplier=1.0),
        output=folder / "out",
        batch_size=_RECORDS,
        device="cpu",
    )
    with quiet_transformers():
        return prepare(request)


def _tested(job: TrainingJob) -> TrainingJob:
    network: nn.Module = job.model.network
    with quiet_transformers():
        return run_contribution_test(job, network, CPU, gradient_stages(job, network, CPU), lambda _: None)


def _losses(task: Task, network: nn.Module, rows: tuple[int, ...]) -> torch.Tensor:
    return task.losses(network, task.batch(rows, CPU, PLACE))


def _gradient(task: Task, network: nn.Module, row: int) -> torch.Tensor:
    network.zero_grad()
    with torch.enable_grad():
        _losses(task, network, (row,)).sum().backward()  # type: ignore[no-untyped-call]
    gradient = _flat({name: p.grad for name, p in network.named_parameters()}, network)
    network.zero_grad()
    return gradient


def _flat(gradients: dict[str, torch.Tensor | None], network: nn.Module) -> torch.Tensor:
    parts = []
    for name, parameter in network.named_parameters():
        gradient = gradients[name]
        parts.append(torch.zeros_like(parameter) if gradient is None else gradient.to_dense())
    return torch.cat([part.detach().double().flatten() for part in parts])
