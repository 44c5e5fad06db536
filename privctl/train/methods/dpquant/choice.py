"""Derives the quantized layers, their costs and the schedule from the settings and the network."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privctl.data.places import require_inputs
from privctl.data.several import DataPath, real_paths
from privctl.domain.errors import CommandError
from privctl.models.choices import TaskName
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.classification import ImageClassification
from privctl.models.tasks.sounds import SoundClassification
from privctl.train.methods.dpquant.cost import multiply_adds
from privctl.train.methods.dpquant.schedule import LayerSchedule, candidates, matching
from privctl.train.methods.dpquant.settings import DpquantSettings, LayerMode, Sensitivity
from privctl.train.quantized import FORMATS, NumberFormat, QuantizedLayers, luq_fp4
from privctl.train.settings.canaries import check_canaries
from privctl.train.settings.choices import FormatName

if TYPE_CHECKING:
    from torch import nn

    from privctl.train.preparation.job import TrainingJob
    from privctl.train.settings.request import RetrainRequest

#: The default fraction of layers that are quantized.
DEFAULT_FRACTION = 0.75
#: The length of the text for which multiply-adds are counted. The layers' relative costs hardly depend on it, and the
#: lengths of the private texts are not used.
_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedChoice:
    """A network's layers with their number format, and the schedule that chooses which of them are quantized."""

    layers: QuantizedLayers
    schedule: LayerSchedule


def quantized_choice(job: TrainingJob, network: nn.Module, device: torch.device, seed: bytes) -> QuantizedChoice:
    """The layers and the schedule of ``job``. Raises CommandError for globs and amounts that do not fit the network."""
    settings = requested_settings(job.request)
    layers = QuantizedLayers(network=network, format=format_of(settings), seed=seed)
    names = candidates(layers.names, settings.full_precision)
    static = frozenset(name for glob in settings.static for name in matching(names, glob, "--static-layers"))
    with quiet_transformers():
        costs = multiply_adds(network, names, lambda: network(**_blank(job, device)))
    schedule = LayerSchedule(
        names=names,
        costs=costs,
        mode=settings.layers,
        seed=seed,
        fraction=settings.fraction,
        compute_target=settings.compute_target,
        static=static,
        beta=settings.beta,
    )
    return QuantizedChoice(layers=layers, schedule=schedule)


def format_of(settings: DpquantSettings) -> NumberFormat:
    """The requested number format, with the requested number of levels."""
    return FORMATS[settings.format] if settings.levels is None else luq_fp4(settings.levels)


def requested_settings(request: RetrainRequest) -> DpquantSettings:
    """The method's settings, with the default fraction if no amount is given."""
    settings = request.settings_as(DpquantSettings)
    if settings.fraction is None and settings.compute_target is None:
        return replace(settings, fraction=DEFAULT_FRACTION)
    return settings


def check(request: RetrainRequest) -> None:
    """Raise CommandError for settings that contradict each other or have no effect."""
    settings = request.settings_as(DpquantSettings)
    if settings.levels is not None and settings.format is not FormatName.LUQ_FP4:
        raise CommandError(f"--luq-levels does not apply to --format {settings.format}; remove it")
    _check_measured(settings)
    _check_public(settings, request.data.train)
    if settings.measured is Sensitivity.PRIVATE and request.secrets is not None:
        raise CommandError(
            "--secrets cannot be combined with --sensitivity private, whose measurements are releases that the plan "
            "does not count; remove one of the two"
        )
    _check_amount(settings)
    check_canaries(request)


def _check_measured(settings: DpquantSettings) -> None:
    """Raise CommandError for settings of measurements that are not made, or of noise that they do not need."""
    for flag, is_given in {"--measure-on": settings.public_records, "--sensitivity": settings.sensitivity}.items():
        if settings.measured is None and is_given is not None:
            raise CommandError(
                f"{flag} does not apply to --layers {settings.layers}, which measures nothing; remove it"
            )
    public = settings.measured is Sensitivity.PUBLIC
    if settings.measured is not None and public != (settings.public_records is not None):
        raise CommandError(
            "--sensitivity public needs the records; give them with --measure-on"
            if public
            else f"--measure-on does not apply to --sensitivity {settings.measured}; remove one of the two"
        )
    for flag, given in {"--measure-rate": settings.rate, "--measure-noise": settings.noise}.items():
        if given is not None and settings.measured in (Sensitivity.PUBLIC, Sensitivity.SYNTHETIC):
            raise CommandError(
                f"{flag} does not apply to --sensitivity {settings.measured}, which needs no noise; remove it, or give "
                "--sensitivity private"
            )


def _check_public(settings: DpquantSettings, private: DataPath) -> None:
    """Raise CommandError if the public records are the training data, InputError if they do not exist."""
    if settings.public_records is None:
        return
    if os.path.realpath(settings.public_records) in real_paths(private):
        raise CommandError(f"--measure-on {settings.public_records} is the training data; give records that are public")
    require_inputs(settings.public_records)


def _check_amount(settings: DpquantSettings) -> None:
    """Raise CommandError for more than one amount of quantization, or one that does not apply to the mode."""
    amounts = {"--quantized-fraction": settings.fraction, "--compute-target": settings.compute_target}
    given = [flag for flag, value in amounts.items() if value is not None]
    if len(given) > 1:
        raise CommandError(f"{given[0]} and {given[1]} both say how much is quantized; give one")
    if settings.layers in (LayerMode.ALL, LayerMode.NONE) and given:
        raise CommandError(f"{given[0]} does not apply to --layers {settings.layers}; remove it")
    if settings.static and settings.layers is not LayerMode.STATIC:
        raise CommandError(f"--static-layers applies to --layers static only, not to {settings.layers}; remove it")
    if settings.static and given:
        raise CommandError(f"--static-layers and {given[0]} both say how much is quantized; give one")


def tokens_of(job: TrainingJob) -> int:
    """The length of a representative text that fits the network's context."""
    text = job.model.text
    return _TOKENS if text is None or text.context is None else min(_TOKENS, text.context)


def _blank(job: TrainingJob, device: torch.device) -> dict[str, Any]:
    """A blank input of a public size."""
    if isinstance(job.task, ImageClassification):
        images = job.task.images
        return {"pixel_values": torch.zeros(1, images.channels, *images.size, device=device)}
    if isinstance(job.task, SoundClassification):
        blank = np.zeros((job.task.length, *job.task.features[0].shape[1:]), np.float32)
        return {name: tensor.to(device) for name, tensor in job.task.facts.padded([blank]).items()}
    ids = torch.ones(1, tokens_of(job), dtype=torch.int64, device=device)
    decoded = {"decoder_input_ids": ids} if job.task.name is TaskName.SEQ2SEQ_LM else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoded}
