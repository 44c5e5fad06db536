"""What a user asks of ``privctl retrain``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privctl.domain.mechanism import Optimizer
from privctl.models.encoding import Long
from privctl.models.tasks.base import TaskName
from privctl.train.clipping.norms_and_weights import ClippingStyle
from privctl.train.directional import DerivativeMethod as Derivative
from privctl.train.methods.dpquant.schedule import LayerMode
from privctl.train.methods.ferret.publish import Publish, ReleaseKind
from privctl.train.methods.ferret.update import SilentMomentum, UpdateScale
from privctl.train.quantized import FormatName
from privctl.train.settings import Schedule, TrainingMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """Where the examples come from and how they are read; see the tasks for what each setting means."""

    train: Path
    held_out: Path | None = None
    unit: str | None = None
    labels: tuple[str, ...] = ()
    long: Long = Long.REFUSE
    max_length: int | None = None
    response_only: bool = False
    resize: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The model to begin with, and what of it is trained.

    ``vocabulary`` is a public file of words, or the word ``private`` for one made from the training records. ``train``
    are globs of parameter names, all where empty.
    """

    path: Path
    from_scratch: bool = False
    vocabulary: str | None = None
    norm: str | None = None
    dropout: bool = False
    train: tuple[str, ...] = ()
    lora_rank: int | None = None
    checkpointing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRequest:
    """Either ``epsilon`` or ``noise_multiplier`` for a private training; ``delta`` None is 1 / examples^1.1."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsRequest:
    """The ``plan`` of protection that steps, batches and noise come from; ``batch_size`` is what was asked for, if any.

    The epochs or steps, the epsilon and the noise multiplier that the run itself is asked for must agree with it.
    """

    plan: Path
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FerretRequest:
    """What ``privctl retrain ferret`` is told beside the rest.

    ``groups`` is ``max``, ``eighth`` or a number. ``fire_probability`` None follows from the budget where signs are
    published as they are, and is 1 / groups elsewhere. ``dither`` is noise standard deviation / clip norm,
    ``bit_epsilon`` the log-odds of keeping a sign. ``public_seed`` None is drawn afresh; the other, where given, must
    not have been chosen by looking at the data.
    """

    groups: str = "max"
    release: ReleaseKind = ReleaseKind.PUBLISHED
    fire_probability: float | None = None
    dither: float | None = None
    bit_epsilon: float | None = None
    publish: Publish = Publish.SIGN
    silent: SilentMomentum = SilentMomentum.COAST
    update_scale: UpdateScale = UpdateScale.UNIT
    derivatives: Derivative = Derivative.AUTO
    public_seed: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DpquantRequest:
    """What ``privctl retrain dpquant`` is told beside the rest.

    ``levels`` are those of luq-fp4 beside zero, None its usual number. ``fraction`` of the layers, or the
    ``compute_target`` share of their multiply-adds, is quantized; with neither it is ``DEFAULT_FRACTION``. ``static``
    names layers of mode static, ``full_precision`` those that are never quantized, both by globs. ``beta`` is by how
    much scores, in clip norms of the measurements, decide; ``smoothing`` how much of the old ones stays. A measurement
    is made every ``every`` epochs, ``repetitions`` times, at sampling rate ``rate`` with noise multiplier ``noise``
    and clip norm ``clip`` (nats); None follows from the training's. ``public_seed`` None is drawn afresh.
    """

    format: FormatName
    levels: int | None = None
    layers: LayerMode = LayerMode.DPQUANT
    fraction: float | None = None
    compute_target: float | None = None
    static: tuple[str, ...] = ()
    full_precision: tuple[str, ...] = ()
    beta: float = 10.0
    smoothing: float = 0.5
    every: int = 2
    repetitions: int = 2
    rate: float | None = None
    noise: float | None = None
    clip: float = 0.01
    public_seed: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What ``privctl retrain ferret --replay`` is told; all else is in the stream."""

    model: Path
    stream: Path
    output: Path
    vocabulary: Path | None = None
    device: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainRequest:
    """Everything ``privctl retrain METHOD`` was told. ``epochs`` or ``steps``; ``batch_size`` is the expected one.

    ``dpquant`` says how layers are quantized, where they are. With ``secrets`` the plan has the batch size, and
    ``batch_size`` is not used. ``show_unprotected`` asks for a private file of the measures that the report of a
    private run withholds. Raises ValueError for a seed that a generator of random numbers does not take.
    """

    method: TrainingMethod
    model: ModelRequest
    data: DataRequest
    task: TaskName = TaskName.CAUSAL_LM
    budget: BudgetRequest = BudgetRequest()
    secrets: SecretsRequest | None = None
    ferret: FerretRequest = FerretRequest()
    dpquant: DpquantRequest | None = None
    output: Path
    show_unprotected: bool = False
    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 5e-4
    optimizer: Optimizer = Optimizer.ADAMW
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    clip_norm: float = 1.0
    clipping: ClippingStyle = ClippingStyle.FLAT
    micro_examples: int = 64
    micro_tokens: int | None = None
    device: str | None = None
    bf16: bool = False
    compiled: bool = False
    seed: int = 0
    resume: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}; it must be at least 0 and below 2^63")
