"""What the self-test makes of an architecture, and beside it how far one record moves the clipped sum.

The second is found without the first: the task's own micro-batches of 16 and 40 records go through the engine, with the
one long record and without it. Every gradient is clipped, so the sums may differ by one clip norm.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from privctl.domain.errors import InputError
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.base import Task
from privctl.train.clipping import Clipping, PerExample
from privctl.train.contribution.findings import DependentRecordsError
from privctl.train.methods import method_named
from privctl.train.preparation.job import TrainingJob
from privctl.train.preparation.prepare import prepare
from privctl.train.settings.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
from privctl.train.steps.contribution import run_gradient_test
from tests.models.tasks.small import words
from tests.train.contribution.architectures import Architecture

CPU = torch.device("cpu")
SIZES = (16, 40)
PASSES, CURED, REFUSED, UNSUPPORTED = "passes", "cured by padding", "refused", "not supported"
_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One architecture's outcome, the reason for it, and movements of the clipped sum in clip norms by size.

    ``before`` are those without the padding that cured it.
    """

    name: str
    task: TaskName
    outcome: str
    reason: str = ""
    difference: float = 0.0
    moved: Mapping[int, float] | None = None
    before: Mapping[int, float] | None = None
    seconds: float = 0.0


def survey(each: Architecture, folder: Path) -> Row:
    """Test ``each``, and move its clipped sum, in the empty ``folder``."""
    torch.manual_seed(0)
    try:
        with quiet_transformers():
            job = job_of(each, folder)
    except (InputError, NotImplementedError) as fault:
        return Row(name=each.name, task=each.task, outcome=UNSUPPORTED, reason=str(fault))
    network: nn.Module = job.model.network
    began = time.perf_counter()
    try:
        with quiet_transformers():
            done = run_gradient_test(job, network, CPU, lambda _: None)
    except DependentRecordsError as fault:
        moved = movements(job.task, network)
        reason = f"{fault.kind} ({fault.evidence})"
        return Row(name=each.name, task=each.task, outcome=REFUSED, reason=reason, before=moved)
    except (InputError, RuntimeError, ValueError, IndexError, TypeError, AssertionError) as fault:
        return Row(name=each.name, task=each.task, outcome=UNSUPPORTED, reason=f"{type(fault).__name__}: {fault}")
    seconds = time.perf_counter() - began
    assert done.contribution is not None
    padding = done.contribution.padding
    return Row(
        name=each.name,
        task=each.task,
        outcome=PASSES if padding is None else CURED,
        reason="" if padding is None else f"to {padding} tokens",
        difference=max(done.contribution.differences.values()),
        moved=movements(done.task, network),
        before=None if padding is None else movements(job.task, network),
        seconds=seconds,
    )


def job_of(each: Architecture, folder: Path, method: str = "dp-sgd", **changes: Any) -> TrainingJob:
    """A run on 40 records of which the first is the longest, or of images of which it is the brightest."""
    each.config().save_pretrained(folder / "model")
    words().tokenizer.save_pretrained(folder / "model")
    images = each.task is TaskName.IMAGE_CLASSIFICATION
    data = DataRequest(train=_images(folder) if images else _texts(folder, each.task))
    if not images:
        data = replace(data, long=LongTextPolicy.TRUNCATE, max_length=each.length)
    if "classification" in each.task:
        data = replace(data, labels=("a", "b"))
    budget = BudgetRequest(noise_multiplier=1.0) if method == "dp-sgd" else BudgetRequest()
    request = RetrainRequest(
        method=method_named(method),
        model=ModelRequest(path=folder / "model", from_scratch=True),
        data=data,
        task=each.task,
        budget=budget,
        output=folder / "out",
        batch_size=16,
        device="cpu",
    )
    return prepare(replace(request, **changes))


def movements(task: Task, network: nn.Module) -> dict[int, float] | None:
    """By how many clip norms the clipped sum of so many records moves where the first is left out.

    None where the engine cannot take the network at all.
    """
    try:
        return _movements(task, network)
    except (InputError, RuntimeError, AssertionError):
        return None


def _movements(task: Task, network: nn.Module) -> dict[int, float]:
    clip = 0.1 * _gradients(task, network, list(range(max(SIZES))), 1.0)[1]
    found = {}
    for size in SIZES:
        every, _ = _gradients(task, network, list(range(size)), clip)
        fewer, _ = _gradients(task, network, list(range(1, size)), clip)
        found[size] = float((every - fewer).norm()) / clip
    return found


def _gradients(task: Task, network: nn.Module, units: list[int], clip: float) -> tuple[torch.Tensor, float]:
    """The clipped sum over micro-batches, and the smallest norm before clipping."""
    network.zero_grad()
    norms = []
    with PerExample(network, Clipping(norm=clip)) as engine:
        for examples in task.micro_batches(units, 0, 64, 2048):
            inputs = task.batch(examples, CPU, 0)
            norms += engine.accumulate(lambda inputs=inputs: task.losses(network, inputs)).norms.tolist()
        found = torch.cat([p.grad.flatten().double() for p in engine.trainable.values() if p.grad is not None])
    network.zero_grad()
    return found, min(norms)


def _texts(folder: Path, task: TaskName) -> Path:
    drawn = random.Random(0)
    lengths = [60, *(drawn.randint(3, 9) for _ in range(max(SIZES) - 1))]
    lines = []
    for i, length in enumerate(lengths):
        line = {"text": " ".join(drawn.choices(_WORDS, k=length))}
        lines.append(json.dumps(line | ({"label": "ab"[i % 2]} if task is TaskName.TEXT_CLASSIFICATION else {})))
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def _images(folder: Path) -> Path:
    source = np.random.default_rng(0)
    pixels = source.integers(100, size=(max(SIZES), 32, 32, 3)).astype(np.uint8)
    pixels[0] = 255 * (pixels[0] > 50)
    path = folder / "train.npz"
    np.savez(path, images=pixels, labels=np.array(list("ab") * (max(SIZES) // 2)))
    return path
