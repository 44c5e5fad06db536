"""The settings of ``privctl retrain dpquant``. Imports nothing heavy, as the command builds its options from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from privctl.domain.ranges import AMOUNT, AMOUNT_OR_ZERO, BELOW_ONE, CHANCE, COUNT, Range
from privctl.train.settings.canaries import canaries_option
from privctl.train.settings.choices import FormatName
from privctl.train.settings.method_settings import MethodSettings, option, required


class LayerMode(StrEnum):
    """How layers are chosen.

    ``DPQUANT`` draws them each epoch, with larger probability for layers whose quantization hurts less; ``RANDOM``
    draws them each epoch with equal probability; ``STATIC`` keeps the same layers; ``ALL`` and ``NONE`` have no choice.
    """

    DPQUANT = "dpquant"
    RANDOM = "random"
    STATIC = "static"
    ALL = "all"
    NONE = "none"


class Sensitivity(StrEnum):
    """The data on which the harm of quantizing a layer is measured.

    ``SYNTHETIC``: generated inputs; ``PRIVATE``: private examples, with a noisy release; ``PUBLIC``: public records.
    """

    SYNTHETIC = "synthetic"
    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class DpquantSettings(MethodSettings):
    """Which layers are quantized, how, and how the harm of that is measured.

    ``levels`` is the number of levels of luq-fp4 beside zero, None its default. The fraction ``fraction`` of the
    layers, or ``compute_target`` of their multiply-adds, is quantized; with neither it is ``DEFAULT_FRACTION``.
    ``static`` are globs of the layers for mode static, ``full_precision`` of layers that are never quantized. ``beta``
    is the weight of the scores, in clip norms of the measurements; ``smoothing`` is the weight of old scores in new
    ones. Layers are measured every ``every`` epochs on the data that ``sensitivity`` says; None is ``public_records``
    if given, else synthetic inputs. Measurements on private examples are made ``repetitions`` times, at sampling rate
    ``rate`` with noise multiplier ``noise`` and clip norm ``clip`` (nats); None takes the value from the training.
    Other measurements, on the first public records or on synthetic inputs, are not releases: nothing is sampled,
    clipped or noised. ``public_seed`` None draws a fresh seed. ``gradient_canaries`` is the number of
    gradients of the clip norm that are mixed into the steps by coins, to audit them.
    """

    format: FormatName = required("What quantized layers compute in.")
    levels: int | None = option(
        None, "luq-fp4: levels beside zero.  [default: 7]", flag="--luq-levels", within=Range(low=1, high=64)
    )
    layers: LayerMode = option(
        LayerMode.DPQUANT, "How layers are chosen: by how much each hurts; at random each epoch; once; all; none."
    )
    fraction: float | None = option(
        None,
        "Fraction of the layers to quantize.  [default: 0.75]",
        flag="--quantized-fraction",
        within=CHANCE,
        usual=True,
    )
    compute_target: float | None = option(
        None, "Fraction of multiply-adds to quantize, instead of --quantized-fraction.", within=CHANCE
    )
    static: tuple[str, ...] = option(
        (), "static: layers matching this glob (repeatable), and no draw.", flag="--static-layers"
    )
    full_precision: tuple[str, ...] = option((), "Never quantize layers matching this glob (repeatable).")
    beta: float = option(10.0, "Weight of the scores in the draw; 0 ignores them.", within=AMOUNT_OR_ZERO)
    smoothing: float = option(0.5, "Weight of old scores when new ones are measured.", within=BELOW_ONE)
    sensitivity: Sensitivity | None = option(
        None,
        "What layers are measured on: synthetic inputs, which cost no epsilon; private examples; or --measure-on.  "
        "[default: synthetic, or public with --measure-on]",
    )
    every: int = option(2, "Epochs between measurements.", flag="--measure-every", within=COUNT)
    repetitions: int = option(
        2, "private: releases per measurement; all are counted.", flag="--measure-repetitions", within=COUNT
    )
    rate: float | None = option(
        None,
        "private: sampling rate of measurements.  [default: for 16 examples, or 1/16 of a batch]",
        flag="--measure-rate",
        within=CHANCE,
    )
    noise: float | None = option(
        None,
        "private: noise multiplier of measurements.  [default: the training's]",
        flag="--measure-noise",
        within=AMOUNT,
    )
    clip: float = option(0.01, "Clip norm of measurements, in nats.", flag="--measure-clip", within=AMOUNT)
    public_records: Path | None = option(
        None,
        "public: records to measure layers on, in the form of --data: exactly, and at no cost in epsilon.",
        flag="--measure-on",
    )
    public_seed: bytes | None = option(
        None, "Hexadecimal seed of rounding and of the draws of layers.  [default: a fresh one]"
    )
    gradient_canaries: int | None = canaries_option()

    @property
    def measured(self) -> Sensitivity | None:
        """The data on which layers are measured; None if they are not."""
        if self.layers is not LayerMode.DPQUANT:
            return None
        usual = Sensitivity.SYNTHETIC if self.public_records is None else Sensitivity.PUBLIC
        return self.sensitivity or usual
