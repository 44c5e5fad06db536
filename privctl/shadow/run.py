"""Trains and scores shadow models, one model or one stack of models at a time.

Finished models are on disk with their settings. An interrupted run resumes when it is started again, and loses at most
the models that it was training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.shadows import (
    coins,
    difference,
    read_shadow,
    shadow_paths,
)
from privctl.domain.errors import CommandError
from privctl.domain.progress import Advance, Progress
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.models.language import choose_device
from privctl.models.loading import TrainingModel
from privctl.parallel import ALONE, Workers, own_device
from privctl.reports.files import write_report
from privctl.shadow.folder import ShadowFolder, audited_model, settings_of, weights_path
from privctl.shadow.halves import train_one
from privctl.shadow.pool import ShadowPool, ShadowRequest, read_pool
from privctl.shadow.stacked import train_together
from privctl.storage.atomic import require_absent, require_folder, writing
from privctl.storage.journal import recover
from privctl.storage.turns import Claim

if TYPE_CHECKING:
    import torch
    from torch import nn

    from audits.scores.subject import AuditedModel

#: The largest number of models trained at once, and the limits on bytes and parameters up to which that is faster.
_MOST = 16
_BYTES = {"cpu": 1 << 30}
_BYTES_ELSEWHERE = 8 << 30
_PARAMETERS = {"cpu": 30_000}
_PARAMETERS_ELSEWHERE = 30_000_000
#: Copies of its parameters that a model needs: the parameters, the gradient, two moments, and one for the step.
_COPIES = 5


def run_shadows(request: ShadowRequest, progress: Progress, workers: Workers = ALONE) -> PrivacyReport | None:
    """Train and score the missing models, commit each model's scores with the folder's report, and return the report.

    Several processes share the models and write in turn; only the main one returns the report.

    Raises CommandError if the folder cannot be made, if another command adds to it, or if it holds models with other
    settings, or weights without scores that ``keep_models`` would replace; InputError for data or models that do not
    fit.
    """
    folder = request.training.output
    require_folder(folder)
    device = own_device(choose_device(request.training.device))
    pool = read_pool(request)
    subject = audited_model(pool, pool.start(0), device)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    claim = workers.in_main(lambda: _claim_folder(folder))
    try:
        return _run(pool, subject, device, progress, workers)
    finally:
        if claim is not None:
            claim.remove()


def _claim_folder(folder: Path) -> Claim:
    """A claim on the folder, so that no other command stores the same models or writes its own report."""
    with writing(folder):
        return Claim(folder, "shadow models")


def _run(
    pool: ShadowPool, subject: AuditedModel, device: torch.device, progress: Progress, workers: Workers
) -> PrivacyReport | None:
    request, folder = pool.request, pool.request.training.output
    settings = settings_of(pool, subject)
    workers.in_main(lambda: recover(folder))
    done = _finished_models(folder, settings)
    missing = [index for index in range(request.count) if index not in done]
    if request.keep_models:
        for index in missing:
            require_absent(weights_path(folder, index), force=False)
    shadow_folder = ShadowFolder(pool, settings, done)
    label = f"training {counted(len(missing), 'shadow model')}"
    with progress(label, len(missing) * pool.recipe.steps / workers.size, "steps") as advance:
        # All processes have equally many models in each round, except that some may have fewer or none in the last.
        most = -(-len(missing) // workers.size)
        own_models, size = (
            missing[workers.rank :: workers.size],
            _models_at_once(pool, subject.model.network, device, most),
        )
        for begin in range(0, most, max(1, size)):
            trained = _train_group(pool, own_models[begin : begin + size], device, advance)
            _add_in_turn(shadow_folder, trained, device, workers)

    def conclude() -> PrivacyReport:
        if workers.size > 1:
            shadow_folder.refresh()
        # So that the report on disk is the returned one, also if another process added the last model.
        if workers.size > 1 or done.issuperset(range(request.count)):
            write_report(shadow_folder.place, shadow_folder.report)
        return shadow_folder.report

    return workers.in_main(conclude)


def _add_in_turn(
    shadow_folder: ShadowFolder,
    trained: Iterable[tuple[int, TrainingModel, nn.Module]],
    device: torch.device,
    workers: Workers,
) -> None:
    """Store each process's models, one process after the other, as they share one report."""
    # Before the turns, so that all processes train at the same time.
    own_models = trained if workers.size == 1 else workers.jointly(lambda: list(trained))

    def add() -> None:
        if workers.size > 1:
            shadow_folder.refresh()
        for index, model, network in own_models:
            shadow_folder.add(index, model, network, device)

    workers.in_turn(add)


def _finished_models(folder: Path, settings: dict[str, Any]) -> set[int]:
    """The indices of finished models. Raises CommandError if they were made with other settings."""
    indices = set()
    for path in shadow_paths(folder):
        scores = read_shadow(path)
        difference_found = difference(scores.settings, settings)
        if difference_found:
            raise CommandError(
                f"{path} was made with {difference_found}; go on with the same settings, or choose another --output"
            )
        indices.add(scores.index)
    return indices


def _models_at_once(pool: ShadowPool, network: nn.Module, device: torch.device, missing: int) -> int:
    """The number of models to train together. Raises CommandError if the requested number is not possible."""
    training, requested = pool.request.training, pool.request.vectorize
    obstacles = {
        "--lora-rank": training.model.lora_rank is not None,
        "an adapter as MODEL": training.model.adapter is not None,
        "--dropout": training.model.dropout,
        "--bf16": training.bf16,
    }
    obstacle = next((flag for flag, is_set in obstacles.items() if is_set), "")
    if requested is not None:
        if requested > 1 and obstacle:
            raise CommandError(f"--vectorize {requested} cannot be combined with {obstacle}; remove one")
        return min(requested, missing)
    size = sum(parameter.numel() for parameter in network.parameters())
    if obstacle or size > _PARAMETERS.get(device.type, _PARAMETERS_ELSEWHERE):
        return 1
    bytes_a_model = _COPIES * 4 * size
    return max(1, min(missing, _MOST, _BYTES.get(device.type, _BYTES_ELSEWHERE) // bytes_a_model))


def _train_group(
    pool: ShadowPool, group: Sequence[int], device: torch.device, advance: Advance
) -> Iterator[tuple[int, TrainingModel, nn.Module]]:
    """Train the models of ``group``, together if possible."""
    if not group:
        return
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
