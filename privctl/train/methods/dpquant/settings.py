"""What ``privctl retrain dpquant`` is told beside the rest; imports nothing heavy, for its options are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privctl.train.choices import FormatName
from privctl.train.method import MethodSettings, option, required


class LayerMode(StrEnum):
    """How layers are chosen.

    ``DPQUANT`` draws them each epoch by how little quantizing them hurts, as privately measured; ``RANDOM`` draws them
    each epoch, all alike; ``STATIC`` has the same ones throughout; ``ALL`` and ``NONE`` leave no choice.
    """

    DPQUANT = "dpquant"
    RANDOM = "random"
    STATIC = "static"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DpquantSettings(MethodSettings):
    """Which layers are quantized, how, and how that is measured.

    ``levels`` are those of luq-fp4 beside zero, None its usual number. ``fraction`` of the layers, or the
    ``compute_target`` share of their multiply-adds, is quantized; with neither it is ``DEFAULT_FRACTION``. ``static``
    names layers of mode static, ``full_precision`` those that are never quantized, both by globs. ``beta`` is by how
    much scores, in clip norms of the measurements, decide; ``smoothing`` how much of the old ones stays. A measurement
    is made every ``every`` epochs, ``repetitions`` times, at sampling rate ``rate`` with noise multiplier ``noise``
    and clip norm ``clip`` (nats); None follows from the training's. ``public_seed`` None is drawn afresh.
    """

    format: FormatName = required("What quantized layers compute in.")
    levels: int | None = option(None, "luq-fp4: levels beside zero.  [default: 7]", flag="--luq-levels")
    layers: LayerMode = option(
        LayerMode.DPQUANT, "Chosen by private measurements; each epoch at random; once; or no choice."
    )
    fraction: float | None = option(
        None, "Part of the layers that is quantized.  [default: 0.75]", flag="--quantized-fraction"
    )
    compute_target: float | None = option(None, "Part of their multiply-adds, instead of --quantized-fraction.")
    static: tuple[str, ...] = option(
        (), "static: layers matching this glob (repeatable), and no draw.", flag="--static-layers"
    )
    full_precision: tuple[str, ...] = option((), "Never quantize layers matching this glob (repeatable).")
    beta: float = option(10.0, "How much scores decide.")
    smoothing: float = option(0.5, "Part of old scores that stays.")
    every: int = option(2, "Epochs from measurement to measurement.", flag="--measure-every")
    repetitions: int = option(2, "Releases a measurement; all count.", flag="--measure-repetitions")
    rate: float | None = option(
        None, "Their sampling rate.  [default: for 16 examples, or 1/16 of a batch]", flag="--measure-rate"
    )
    noise: float | None = option(
        None, "Their noise stddev / clip norm.  [default: the training's]", flag="--measure-noise"
    )
    clip: float = option(0.01, "Their clip norm, nats.", flag="--measure-clip")
    public_seed: bytes | None = option(
        None, "Hexadecimal seed of rounding and of layers' draws.  [default: a fresh one]"
    )
