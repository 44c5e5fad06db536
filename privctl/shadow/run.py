"""From a request to a folder of shadow scores, one model or one stack of models after the other.

What is finished is on disk, with its settings; an interrupted run goes on when it is called again, and loses at most
the models it was training.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from torch import nn

from audits.membership.shadows import (
    REPORT_NAME,
    ShadowScores,
    coins,
    difference,
    read_shadow,
    weights_digest,
    write_shadow,
)
from audits.scores.scorer import make_book, plan
from audits.scores.subject import AuditedModel, subject_of
from audits.scores.table import FIELDS
from privctl.domain.errors import InputFault, UsageFault
from privctl.domain.progress import Advance, Progress
from privctl.domain.report import Artifact, PrivacyReport, TensorDigest
from privctl.models.language import CONFIG_NAME, TOKENIZER_FILES, LanguageModel, choose_device
from privctl.models.loading import TrainingModel
from privctl.reports.files import file_artifact, now, versions, write_report
from privctl.shadow.halves import train_one
from privctl.shadow.pool import ShadowPool, ShadowRequest, read_pool
from privctl.shadow.stacked import train_together
from privctl.storage.atomic import writing
from privctl.storage.digest import file_digest
from privctl.storage.reader import open_checkpoint
from privctl.train.released_model import report_path, save_network
from privctl.train.reload_check import witness_of
from privctl.train.tensors import named_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray


_PRIVATE = (
    "shadow models are trained on the pool without any protection: keep this folder as safe as the records themselves"
)
_SAME = (
    "they tell what is usual for models made like the audited one: a model that was trained with other settings, or "
    "from another start, is compared with the wrong ones"
)
#: Models trained at once at most, and the bytes and parameters up to which that pays.
_MOST = 16
_BYTES = {"cpu": 1 << 30}
_BYTES_ELSEWHERE = 8 << 30
_PARAMETERS = {"cpu": 30_000}
_PARAMETERS_ELSEWHERE = 30_000_000
#: Copies of its parameters that a model needs: themselves, the gradient, two moments, and one for the step.
_COPIES = 5


def run_shadows(request: ShadowRequest, progress: Progress) -> PrivacyReport:
    """Train and score what is not there yet, write the folder's report, and return it.

    Raises UsageFault where the folder holds models of other settings, InputFault for data or models that do not fit.
    """
    folder = request.training.output
    device = choose_device(request.training.device)
    pool = read_pool(request)
    subject = _subject(pool, pool.start(0), device)
    settings = _settings(pool, subject)
    done = _finished(folder, settings)
    left = [index for index in range(request.count) if index not in done]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    label = f"training {len(left)} shadow models"
    with progress(label, len(left) * pool.recipe.steps, "steps") as advance:
        while left:
            group = left[: _at_once(pool, subject.model.network, device, len(left))]
            for index, model, network in _trained(pool, group, device, advance):
                _keep(pool, index, model, network, settings, device)
            left = left[len(group) :]
    report = _report(pool, settings)
    write_report(folder / REPORT_NAME, report)
    return report


def _finished(folder: Path, settings: dict[str, Any]) -> set[int]:
    """The models that are there already. Raises UsageFault where they were made with other settings."""
    found = set()
    for path in sorted(folder.glob("shadow-*.scores.safetensors")):
        scores = read_shadow(path)
        other = difference(scores.settings, settings)
        if other:
            raise UsageFault(f"{path} was made with {other}; go on with the same settings, or choose another --output")
        found.add(scores.index)
    return found


def _at_once(pool: ShadowPool, network: nn.Module, device: torch.device, left: int) -> int:
    """How many models to train together. Raises UsageFault where that was asked for and cannot be."""
    training, asked = pool.request.training, pool.request.vectorize
    obstacles = {
        "--lora-rank": training.model.lora_rank is not None,
        "--dropout": training.model.dropout,
        "--bf16": training.bf16,
    }
    hindered = next((flag for flag, given in obstacles.items() if given), "")
    if asked is not None:
        if asked > 1 and hindered:
            raise UsageFault(f"--vectorize {asked} does not go with {hindered}; leave one of them out")
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
            raise UsageFault(f"--vectorize {len(group)} does not go with this model: {reason}; leave it out")
    for index, model, half in zip(group, models, halves, strict=True):
        yield index, model, train_one(pool, model.network, half, device, advance)


def _keep(
    pool: ShadowPool,
    index: int,
    model: TrainingModel,
    network: nn.Module,
    settings: dict[str, Any],
    device: torch.device,
) -> None:
    """Score the pool by a trained model and write the scores; they come last, as their file says that all is done."""
    folder = pool.request.training.output
    lp = _scores(pool, _subject(pool, model, device, network), index)
    if pool.request.keep_models:
        _save(pool, index, model, network, settings)
    write_shadow(
        folder,
        ShadowScores(
            index=index,
            settings=settings,
            weights=_weights(network),
            lp=lp,
            included=coins(pool.request.training.seed, index, len(pool.records)),
            digests=pool.digests,
        ),
    )


def _scores(pool: ShadowPool, subject: AuditedModel, index: int) -> NDArray[np.float64]:
    """The mean log-probability of each record, NaN where there is nothing to predict."""
    rows = subject.rows(pool.records).rows
    counts = subject.scorer.counts(rows)
    kept = np.flatnonzero(counts > 0)
    chosen, counts = [rows[i] for i in kept], counts[kept]
    found = np.full(len(pool.records), math.nan)
    if len(chosen):
        values = make_book(plan(subject.scorer, chosen)).take(chosen, counts)[FIELDS.index("lp")].astype(np.float64)
        found[kept] = np.add.reduceat(values, np.cumsum(counts) - counts) / counts
    if not np.isfinite(found[kept]).all():
        raise InputFault(
            f"shadow model {index} gives NaN or infinite scores; the training diverged: lower --learning-rate"
        )
    return found


def _subject(
    pool: ShadowPool, model: TrainingModel, device: torch.device, network: nn.Module | None = None
) -> AuditedModel:
    """The model as an audit would see it."""
    training = pool.request.training
    path = training.model.path
    whole: Any = model.network if network is None else network
    seen = LanguageModel(
        path=path,
        folder=path if path.is_dir() else path.parent,
        network=whole.to(device).eval().requires_grad_(False),
        tokenizer=None if model.text is None else model.text.tokenizer,
        device=device,
    )
    return subject_of(str(training.task), seen, max_length=training.data.max_length, resize=training.data.resize)


def _settings(pool: ShadowPool, subject: AuditedModel) -> dict[str, Any]:
    """What all models of a folder share, as JSON keeps it."""
    training, recipe = pool.request.training, pool.recipe
    unsaid = {"method", "micro_tokens", "micro_examples", "clip_norm", "noise_multiplier"}
    of_recipe = {name: getattr(recipe, name) for name in recipe.__slots__ if name not in unsaid}
    return {
        **{name: str(value) if isinstance(value, str) else value for name, value in of_recipe.items()},
        "task": str(training.task),
        "records": len(pool.records),
        "pool": pool.fingerprint,
        "start": [artifact.digest for artifact in _start_files(pool)],
        "from_scratch": training.model.from_scratch,
        "vocabulary": None if training.model.vocabulary is None else file_digest(Path(training.model.vocabulary)),
        "norm": training.model.norm,
        "dropout": training.model.dropout,
        "trained": list(training.model.train),
        "lora_rank": training.model.lora_rank,
        "labels": list(pool.labels),
        "long": str(training.data.long),
        "response_only": training.data.response_only,
        "seed": training.seed,
        "scoring": subject.describe(),
    }


def _start_files(pool: ShadowPool) -> list[Artifact]:
    """The files that the models begin with."""
    training = pool.request.training
    path, place = training.model.path, training.output / REPORT_NAME
    folder = path if path.is_dir() else path.parent
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    found = [
        file_artifact("config", folder / CONFIG_NAME, place),
        *(file_artifact("tokenizer", folder / name, place) for name in names),
    ]
    if pool.start_is_checkpoint:
        with open_checkpoint(path) as checkpoint:
            found += [file_artifact("model", file.path, place) for file in checkpoint.files]
    return found


def _weights(network: nn.Module) -> str:
    return weights_digest(
        TensorDigest(
            name=name,
            dtype=str(tensor.dtype),
            shape=tuple(tensor.shape),
            digest=f"blake3:{blake3(_bytes(tensor)).hexdigest()}",
        )
        for name, tensor in named_tensors(network).items()
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    raw: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def _save(pool: ShadowPool, index: int, model: TrainingModel, network: nn.Module, settings: dict[str, Any]) -> None:
    """Keep the weights too."""
    output = pool.request.training.output / f"shadow-{index:04d}"
    # an interrupted run may have left them without their scores
    shutil.rmtree(output, ignore_errors=True)

    def describe(place: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
        return PrivacyReport(
            step="shadow",
            created=now(),
            versions=versions(("torch", "transformers", "numpy")),
            outputs=outputs,
            parameters={**settings, "index": index},
            warnings=(_PRIVATE,),
        )

    witness = witness_of(model, network)
    save_network(network, model.companion, output, describe, witness=witness, force=report_path(output).exists())


def _report(pool: ShadowPool, settings: dict[str, Any]) -> PrivacyReport:
    request = pool.request
    place = request.training.output / REPORT_NAME
    paths = sorted(request.training.output.glob("shadow-*.scores.safetensors"))
    repeated = f"left out: {pool.repeated} records that repeat an earlier one of the pool"
    return PrivacyReport(
        step="shadow",
        created=now(),
        versions=versions(("torch", "transformers", "numpy", "tokenizers")),
        inputs=(*_start_files(pool), *(file_artifact("data", path, place) for path in request.data if path.is_file())),
        outputs=tuple(file_artifact("scores", path, place) for path in paths),
        parameters={**settings, "count": len(paths)},
        warnings=(_PRIVATE, _SAME, *([repeated] if pool.repeated else [])),
    )
