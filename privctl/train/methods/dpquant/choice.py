"""Derives the quantized layers, their costs and the schedule from the settings and the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privctl.data.places import require_inputs
from privctl.data.several import DataPath, paths_of
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

#: Of the layers, where nothing else is asked for.
DEFAULT_FRACTION = 0.75
#: Multiply-adds are counted for a text of so many tokens: what layers cost beside each other hardly depends on it, and
#: how long the private texts are is not looked at.
_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedChoice:
    """A network's layers with the format they are rounded to, and the schedule that chooses among them."""

    layers: QuantizedLayers
    schedule: LayerSchedule


def bits_of(job: TrainingJob, network: nn.Module, device: torch.device, seed: bytes) -> QuantizedChoice:
    """Raises CommandError for globs and budgets that do not fit the network."""
    asked = asked_of(job.request)
    layers = QuantizedLayers(network=network, format=format_of(asked), seed=seed)
    names = candidates(layers.names, asked.full_precision)
    static = frozenset(name for glob in asked.static for name in matching(names, glob, "--static-layers"))
    with quiet_transformers():
        costs = multiply_adds(network, names, lambda: network(**_blank(job, device)))
    schedule = LayerSchedule(
        names=names,
        costs=costs,
        mode=asked.layers,
        seed=seed,
        fraction=asked.fraction,
        compute_target=asked.compute_target,
        static=static,
        beta=asked.beta,
    )
    return QuantizedChoice(layers=layers, schedule=schedule)


def format_of(asked: DpquantSettings) -> NumberFormat:
    """The format by its name, with as many levels as were asked for."""
    return FORMATS[asked.format] if asked.levels is None else luq_fp4(asked.levels)


def asked_of(request: RetrainRequest) -> DpquantSettings:
    """What is asked of the layers, with the usual fraction where no amount is given."""
    asked = request.settings_as(DpquantSettings)
    if asked.fraction is None and asked.compute_target is None:
        return replace(asked, fraction=DEFAULT_FRACTION)
    return asked


def check(request: RetrainRequest) -> None:
    """Raises CommandError for settings that contradict each other or have no effect."""
    asked = request.settings_as(DpquantSettings)
    if asked.levels is not None and asked.format is not FormatName.LUQ_FP4:
        raise CommandError(f"--luq-levels does not apply to --format {asked.format}; remove it")
    _check_measured(asked)
    _check_public(asked, request.data.train)
    if asked.measured is Sensitivity.PRIVATE and request.secrets is not None:
        raise CommandError(
            "--secrets cannot be combined with --sensitivity private, whose measurements are releases that the plan "
            "does not count; remove one of the two"
        )
    _check_amount(asked)
    check_canaries(request)


def _check_measured(asked: DpquantSettings) -> None:
    """What layers are measured on is asked for where they are measured, and noise where they need it."""
    for flag, there in {"--measure-on": asked.public_records, "--sensitivity": asked.sensitivity}.items():
        if asked.measured is None and there is not None:
            raise CommandError(f"{flag} does not apply to --layers {asked.layers}, which measures nothing; remove it")
    public = asked.measured is Sensitivity.PUBLIC
    if asked.measured is not None and public != (asked.public_records is not None):
        raise CommandError(
            "--sensitivity public needs the records; give them with --measure-on"
            if public
            else f"--measure-on does not apply to --sensitivity {asked.measured}; remove one of the two"
        )
    for flag, given in {"--measure-rate": asked.rate, "--measure-noise": asked.noise}.items():
        if given is not None and asked.measured in (Sensitivity.PUBLIC, Sensitivity.SYNTHETIC):
            raise CommandError(
                f"{flag} does not apply to --sensitivity {asked.measured}, which needs no noise; remove it, or give "
                "--sensitivity private"
            )


def _check_public(asked: DpquantSettings, private: DataPath) -> None:
    """Public records are others than the private ones, and there."""
    if asked.public_records is None:
        return
    if asked.public_records.resolve() in {path.resolve() for path in paths_of(private)}:
        raise CommandError(f"--measure-on {asked.public_records} is the training data; give records that are public")
    require_inputs(asked.public_records)


def _check_amount(asked: DpquantSettings) -> None:
    """One of fraction, target and names says how much, where the mode leaves that open."""
    amounts = {"--quantized-fraction": asked.fraction, "--compute-target": asked.compute_target}
    given = [flag for flag, value in amounts.items() if value is not None]
    if len(given) > 1:
        raise CommandError(f"{given[0]} and {given[1]} both say how much is quantized; give one")
    if asked.layers in (LayerMode.ALL, LayerMode.NONE) and given:
        raise CommandError(f"{given[0]} does not apply to --layers {asked.layers}; remove it")
    if asked.static and asked.layers is not LayerMode.STATIC:
        raise CommandError(f"--static-layers applies to --layers static only, not to {asked.layers}; remove it")
    if asked.static and given:
        raise CommandError(f"--static-layers and {given[0]} both say how much is quantized; give one")


def tokens_of(job: TrainingJob) -> int:
    """Tokens of a text that stands for any, which the network takes."""
    text = job.model.text
    return _TOKENS if text is None or text.context is None else min(_TOKENS, text.context)


def _blank(job: TrainingJob, device: torch.device) -> dict[str, Any]:
    """One input without content, of a size that is public."""
    if isinstance(job.task, ImageClassification):
        images = job.task.images
        return {"pixel_values": torch.zeros(1, images.channels, *images.size, device=device)}
    if isinstance(job.task, SoundClassification):
        blank = np.zeros((job.task.length, *job.task.features[0].shape[1:]), np.float32)
        return {name: each.to(device) for name, each in job.task.facts.padded([blank]).items()}
    ids = torch.ones(1, tokens_of(job), dtype=torch.int64, device=device)
    decoded = {"decoder_input_ids": ids} if job.task.name is TaskName.SEQ2SEQ_LM else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **decoded}
