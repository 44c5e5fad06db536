"""The choices of options with a fixed set of values. Imports nothing heavy, as the command line needs it."""

from __future__ import annotations

from enum import StrEnum


class Schedule(StrEnum):
    """The learning rate schedule after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class ClippingStyle(StrEnum):
    """How one example's gradient g is clipped to the clip norm C.

    FLAT: g * min(1, C / |g|) (Abadi et al. 2016). AUTOMATIC: g * C / (|g| + 0.01) (Bu et al. 2022). PER_LAYER: the
    gradient of each of the k modules that own parameters is clipped to C / sqrt(k), so that the norm of all is at most
    C.
    """

    FLAT = "flat"
    AUTOMATIC = "automatic"
    PER_LAYER = "per-layer"


class ClippingPasses(StrEnum):
    """The number of backward passes for clipping. AUTO takes two if memory does not hold a single example with one."""

    ONE = "1"
    TWO = "2"
    AUTO = "auto"


class PublicOverlap(StrEnum):
    """What to do if a public record is also among the private ones: REFUSE the run, or KEEP it in both."""

    REFUSE = "refuse"
    KEEP = "keep"


class RunsLaw(StrEnum):
    """The distribution of the number of runs of a private search. With POISSON there may be none."""

    GEOMETRIC = "geometric"
    LOGARITHMIC = "logarithmic"
    POISSON = "poisson"


class DerivativeMethod(StrEnum):
    """How directional derivatives are computed."""

    AUTO = "auto"
    BACKWARD = "backward"
    PARTIAL = "partial"
    FORWARD = "forward"
    PRODUCTS = "products"
    DIFFERENCE = "difference"


class LogName(StrEnum):
    """Where the metrics of a training run are logged."""

    CSV = "csv"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    MLFLOW = "mlflow"


class FormatName(StrEnum):
    """The number formats of quantized layers."""

    LUQ_FP4 = "luq-fp4"
    FP8 = "fp8"
    FP8_STOCHASTIC = "fp8-stochastic"
    INT4 = "int4"
    UNIFORM4 = "uniform4"
