"""The settings of ``privctl retrain dpquant``; imports nothing heavy, because the command builds its options of it."""

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

    ``DPQUANT`` draws them each epoch by how little quantizing them hurts, as measured; ``RANDOM`` draws them each
    epoch, all alike; ``STATIC`` has the same ones throughout; ``ALL`` and ``NONE`` leave no choice.
    """

    DPQUANT = "dpquant"
    RANDOM = "random"
    STATIC = "static"
    ALL = "all"
    NONE = "none"


class Sensitivity(StrEnum):
    """On what it is measured how much quantizing a layer hurts.

    ``SYNTHETIC`` is on made-up inputs, ``PRIVATE`` on private examples, and a release, ``PUBLIC`` on public records.
    """

    SYNTHETIC = "synthetic"
    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class DpquantSettings(MethodSettings):
    """Which layers are quantized, how, and how that is measured.

    ``levels`` are those of luq-fp4 beside zero, None its usual number. ``fraction`` of the layers, or the
    ``compute_target`` share of their multiply-adds, is quantized; with neither it is ``DEFAULT_FRACTION``. ``static``
    names layers of mode static, ``full_precision`` those that are never quantized, both by globs. ``beta`` is by how
    much scores, in clip norms of the measurements, decide; ``smoothing`` how much of the old ones stays. A measurement
    is made every ``every`` epochs, on what ``sensitivity`` says; None is on ``public_records`` where there are any,
    else on made-up inputs. On private examples it is made ``repetitions`` times, at sampling rate ``rate`` with noise
    multiplier ``noise`` and clip norm ``clip`` (nats); None follows from the training's. On others, of public records
    the first, it is no release: nothing is sampled, clipped or noised. ``public_seed`` None is drawn afresh.
    ``gradient_canaries``: so many gradients of the clip norm are mixed into the steps by coins, to audit them.
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
        "What layers are measured on: made-up inputs, which takes no epsilon; private examples; --measure-on.  "
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
        "public: records to measure layers on, as --data is read: exactly, and at no cost in epsilon.",
        flag="--measure-on",
    )
    public_seed: bytes | None = option(
        None, "Hexadecimal seed of rounding and of the draws of layers.  [default: a fresh one]"
    )
    gradient_canaries: int | None = canaries_option()

    @property
    def measured(self) -> Sensitivity | None:
        """On what layers are measured; None where nothing is."""
        if self.layers is not LayerMode.DPQUANT:
            return None
        usual = Sensitivity.SYNTHETIC if self.public_records is None else Sensitivity.PUBLIC
        return self.sensitivity or usual
