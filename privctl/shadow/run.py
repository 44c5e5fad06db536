"""From a request to a folder of shadow scores, one model or one stack of models after the other.

What is finished is on disk, with its settings; an interrupted run goes on when it is called again, and loses at most
the models it was training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.shadows import (
    coins,
    difference,
    read_shadow,
)
from privctl.domain.errors import CommandError
from privctl.domain.progress import Advance, Progress
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.models.language import choose_device
from privctl.models.loading import TrainingModel
from privctl.reports.files import write_report
from privctl.shadow.folder import ShadowFolder, settings_of, subject_by, weights_path
from privctl.shadow.halves import train_one
from privctl.shadow.pool import ShadowPool, ShadowRequest, read_pool
from privctl.shadow.stacked import train_together
from privctl.storage.atomic import require_absent, require_folder, writing
from privctl.storage.journal import recover

if TYPE_CHECKING:
    import torch
    from torch import nn


#: Models trained at once at most, and the bytes and parameters up to which that pays.
_MOST = 16
_BYTES = {"cpu": 1 << 30}
_BYTES_ELSEWHERE = 8 << 30
_PARAMETERS = {"cpu": 30_000}
_PARAMETERS_ELSEWHERE = 30_000_000
#: Copies of its parameters that a model needs: themselves, the gradient, two moments, and one for the step.
_COPIES = 5


def run_shadows(request: ShadowRequest, progress: Progress) -> PrivacyReport:
    """Train and score what is not there yet, each model's scores appearing with the folder's report; returns that.

    Raises CommandError where the folder cannot be made or holds models of other settings, or weights without scores
    that ``keep_models`` would replace; InputError for data or models that do not fit.
    """
    folder = request.training.output
    require_folder(folder)
    device = choose_device(request.training.device)
    pool = read_pool(request)
    subject = subject_by(pool, pool.start(0), device)
    settings = settings_of(pool, subject)
    done = _finished(folder, settings)
    left = [index for index in range(request.count) if index not in done]
    with writing(folder):
        folder.mkdir(exist_ok=True)
    if request.keep_models:
        for index in left:
            require_absent(weights_path(folder, index), force=False)
    kept = ShadowFolder(pool, settings, done)
    label = f"training {counted(len(left), 'shadow model')}"
    with progress(label, len(left) * pool.recipe.steps, "steps") as advance:
        while left:
            group = left[: _at_once(pool, subject.model.network, device, len(left))]
            for index, model, network in _trained(pool, group, device, advance):
                kept.add(index, model, network, device)
            left = left[len(group) :]
    if done.issuperset(range(request.count)):
        write_report(kept.place, kept.report)
    return kept.report


def _finished(folder: Path, settings: dict[str, Any]) -> set[int]:
    """The models that are there already. Raises CommandError where they were made with other settings."""
    recover(folder)
    indices = set()
    for path in sorted(folder.glob("shadow-*.scores.safetensors")):
        scores = read_shadow(path)
        other = difference(scores.settings, settings)
        if other:
            raise CommandError(
                f"{path} was made with {other}; go on with the same settings, or choose another --output"
            )
        indices.add(scores.index)
    return indices


def _at_once(pool: ShadowPool, network: nn.Module, device: torch.device, left: int) -> int:
    """How many models to train together. Raises CommandError where that was asked for and cannot be."""
    training, asked = pool.request.training, pool.request.vectorize
    obstacles = {
        "--lora-rank": training.model.lora_rank is not None,
        "--dropout": training.model.dropout,
        "--bf16": training.bf16,
    }
    hindered = next((flag for flag, given in obstacles.items() if given), "")
    if asked is not None:
        if asked > 1 and hindered:
            raise CommandError(f"--vectorize {asked} cannot be combined with {hindered}; remove one")
        return min(asked, left)
    size = sum(parameter.numel() for parameter in network.parameters())
    if hindered or size > _PARAMETERS.get(device.type, _PARAMETERS_ELSEWHERE):
        return 1
    bytes_a_model = _COPIES * 4 * size
    return max(1, min(left, _MOST, _BYTES.get(device.type, _BYTES_ELSEWHERE) // bytes_a_model))


def _trained(
    pool: ShadowPool, group: Sequence[int], device: torch.device, advance: Advance
) -> Iterator[tuple[int, TrainingModel, nn.Module]]:
    """The models of ``group`` as they come, together where that can be done."""
    records = len(pool.records)
    halves = np.stack([coins(pool.request.training.seed, index, records) for index in group])
    models = [pool.start(index) for index in group]
    if len(group) > 1:
        reason = train_together(pool, [model.network for model in models], halves, device, advance)
        if not reason:
            yield from ((index, model, model.network) for index, model in zip(group, models, strict=True))
            return
        if pool.request.vectorize is not None:
            raise CommandError(f"--vectorize {len(group)} does not work for this model: {reason}; remove it")
    for index, model, half in zip(group, models, halves, strict=True):
        yield index, model, train_one(pool, model.network, half, device, advance)
