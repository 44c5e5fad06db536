"""What a user chooses among, by the names of the options; imports nothing heavy, for the command line reads it."""

from __future__ import annotations

from enum import StrEnum


class Schedule(StrEnum):
    """How the learning rate goes on after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class ClippingStyle(StrEnum):
    """What happens to one example's gradient g, with C the clip norm.

    FLAT: g * min(1, C / |g|) (Abadi et al. 2016). AUTOMATIC: g * C / (|g| + 0.01) (Bu et al. 2022). PER_LAYER: each of
    the k modules that own parameters is clipped by itself to C / sqrt(k), so that the whole stays within C.
    """

    FLAT = "flat"
    AUTOMATIC = "automatic"
    PER_LAYER = "per-layer"


class ClippingPasses(StrEnum):
    """In how many backward passes gradients are clipped; AUTO takes two where memory does not hold a record in one."""

    ONE = "1"
    TWO = "2"
    AUTO = "auto"


class PublicOverlap(StrEnum):
    """What happens where a public record stands among the private ones: REFUSE the run, or KEEP it in both."""

    REFUSE = "refuse"
    KEEP = "keep"


class RunsLaw(StrEnum):
    """The law of the number of runs of a private search; under POISSON there may be none."""

    GEOMETRIC = "geometric"
    LOGARITHMIC = "logarithmic"
    POISSON = "poisson"


class DerivativeMethod(StrEnum):
    """How a directional derivative is found, by the names users give."""

    AUTO = "auto"
    BACKWARD = "backward"
    PARTIAL = "partial"
    FORWARD = "forward"
    PRODUCTS = "products"
    DIFFERENCE = "difference"


class LogName(StrEnum):
    """Where the measures of a training are logged."""

    CSV = "csv"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    MLFLOW = "mlflow"


class FormatName(StrEnum):
    """The formats there are."""

    LUQ_FP4 = "luq-fp4"
    FP8 = "fp8"
    FP8_STOCHASTIC = "fp8-stochastic"
    INT4 = "int4"
    UNIFORM4 = "uniform4"
