"""The requests of ``privctl retrain``, and the description of a training method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from privctl.data.columns import USUAL, Columns
from privctl.data.several import DataPath
from privctl.domain.events import Batches
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import LongTextPolicy, TaskName
from privctl.train.settings.choices import ClippingPasses, ClippingStyle, LogName, PublicOverlap, Schedule
from privctl.train.settings.method_settings import MethodSettings, Settings
from privctl.train.settings.public_mixing import WEIGHT

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.domain.events import SampledGaussian
    from privctl.domain.shared_records import SharedRecords
    from privctl.train.settings.adaptive_clipping import AdaptiveClipping


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """Where the examples come from and how they are read; the tasks say what each setting means.

    ``long`` None truncates long texts.
    """

    train: DataPath
    held_out: DataPath | None = None
    unit: str | None = None
    labels: tuple[str, ...] = ()
    columns: Columns = USUAL
    long: LongTextPolicy | None = None
    max_length: int | None = None
    response_only: bool = False
    resize: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The initial model, and which of its parameters are trained.

    ``vocabulary`` is a public file of words, or the word ``private`` for one made from the training records. ``train``
    are globs of the names of trained parameters; if empty, all are trained. ``adapter`` is the folder of a low-rank
    adapter of the model at ``path``, which is then frozen. With ``save_adapter`` new adapters are released by
    themselves, not merged into the weights. With ``base_bits`` 4 the frozen base is held in 4 bits while an adapter is
    trained and measured.
    """

    path: Path
    from_scratch: bool = False
    vocabulary: str | None = None
    norm: str | None = None
    dropout: bool = False
    train: tuple[str, ...] = ()
    lora_rank: int | None = None
    checkpointing: bool = False
    convert: str | None = None
    adapter: Path | None = None
    save_adapter: bool = False
    base_bits: int | None = None

    @property
    def adapter_only(self) -> bool:
        """Whether only an adapter is released."""
        return self.adapter is not None or self.save_adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRequest:
    """The budget of a private run, either ``epsilon`` or ``noise_multiplier``.

    ``delta`` None is the smaller of 1e-5 and 1 / examples^1.1.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsRequest:
    """The ``plan`` that sets steps, batches and noise. ``batch_size`` is the value of ``--batch-size``, if given.

    The epochs or steps, epsilon and noise multiplier of the request itself must agree with the plan.
    """

    plan: Path
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRequest:
    """Public records to mix in (see ``PublicMixing``), read like those of ``--data``.

    ``batch_size`` None is the expected private batch size, or the number of public records if that is smaller.
    """

    data: DataPath
    weight: float = WEIGHT
    batch_size: int | None = None
    overlap: PublicOverlap = PublicOverlap.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The options of ``privctl retrain ferret --replay``. Everything else is in the stream."""

    model: Path
    stream: Path
    output: Path
    base: Path | None = None
    vocabulary: Path | None = None
    device: str | None = None
    force: bool = False


class SideReleases(Protocol):
    """Releases that a method makes in addition to its steps, in the same ledger."""

    @property
    def releases(self) -> int:
        """The number of releases in the whole run."""
        ...

    def event(self, noise_multiplier: float, releases: int | None = None) -> SampledGaussian | None:
        """The event of ``releases`` (all if None) in a run whose steps have this ``noise_multiplier``."""
        ...

    def check_alone(self, epsilon: float, delta: float) -> None:
        """Raise CommandError if the side releases alone exceed the budget."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: the options it takes and the properties of its runs.

    ``takes`` names the groups of shared options of its command; ``helps`` replaces the help text of some of them.
    ``without`` names the options of all methods that ``check`` always refuses, so that its help leaves them out.
    ``clips``: each example's gradient is clipped. ``noised``: each step adds noise to the sum of clipped gradients of a
    batch. ``sums_losses``: it also releases noisy sums of losses, whose rounding the clipping margin does not cover.
    ``needs_float32``: rounding to bfloat16 would swamp what such a request computes. ``private``: exact metrics of the
    examples are withheld. ``guaranteed``: the guarantee has a delta. ``shards``: it can train a model of which each
    process holds a shard (``--fsdp``). ``optimizer`` is the default update rule. ``numbers`` is how many numbers a step
    releases, None for one per trained weight. ``voided`` names, for messages, the guarantees that are void if names
    were collected from the examples; empty if none are. ``warning`` is the first warning of its report.

    ``sampled`` says whether a request's batches are secret samples, drawn as ``batches`` says; noise is correlated over
    ``bands`` steps, or over all steps by ``buffers``. ``group`` is the largest number of records of a user who is
    protected as a whole although each record is clipped by itself, else None; ``shared`` is how records that may have
    several users are chosen; ``largest_batch`` is the number of examples to which larger draws are cut; ``per_draw`` is
    the largest number of a user's records in a step. If not ``sampled``, batches are passes in a public order; then
    ``whole_passes``, if not empty, names what is accounted for in whole passes, so that no run may end within one.
    ``search`` is the distribution of the number of runs of which the best is released, None for a single run.
    ``adaptive`` returns how the clip norm adapts, given a noise multiplier and a batch size, or None if it is fixed.
    ``canaries`` is the number of gradients of known norm that are mixed into the steps, None for none. ``files`` are
    the suffixes of files beside the output.
    """

    name: str
    help: str
    settings: type[MethodSettings] = MethodSettings
    takes: tuple[str, ...] = ()
    helps: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    clips: bool = True
    noised: bool = False
    private: bool = False
    guaranteed: bool = False
    sums_losses: bool = False
    shards: bool = False
    optimizer: Optimizer = Optimizer.ADAMW
    numbers: Callable[[RetrainRequest], int | None] = lambda _: None
    needs_float32: Callable[[RetrainRequest], bool] = lambda _: False
    voided: str = "the guarantee"
    warning: str = ""
    whole_passes: str = ""
    sampled: Callable[[RetrainRequest], bool]
    batches: Callable[[RetrainRequest], Batches] = lambda _: Batches.POISSON
    bands: Callable[[RetrainRequest], int] = lambda _: 1
    buffers: Callable[[RetrainRequest], int | None] = lambda _: None
    group: Callable[[RetrainRequest], int | None] = lambda _: None
    shared: Callable[[RetrainRequest], SharedRecords | None] = lambda _: None
    largest_batch: Callable[[RetrainRequest], int | None] = lambda _: None
    per_draw: Callable[[RetrainRequest], int] = lambda _: 1
    search: Callable[[RetrainRequest], NumberOfRuns | None] = lambda _: None
    adaptive: Callable[[RetrainRequest, float, float], AdaptiveClipping | None] = lambda *_: None
    canaries: Callable[[RetrainRequest], int | None] = lambda _: None
    check: Callable[[RetrainRequest], None] = lambda _: None
    side_releases: Callable[[RetrainRequest, int, int, float], SideReleases | None] = lambda *_: None
    files: tuple[str, ...] = ()


_LEARNING_RATE = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainRequest:
    """The options of ``privctl retrain METHOD``. Give ``epochs`` or ``steps``; ``batch_size`` is the expected size.

    ``learning_rate`` None stands for the default, ``rate_for`` of the batch size.
    ``settings`` are the method's own. With ``secrets`` the plan sets the batch size, and ``batch_size`` is not used.
    ``public`` records are mixed into a private run. ``show_unprotected`` requests a private file of the metrics that
    the report of a private run withholds. ``logs`` are written during training. ``bf16`` None computes in bfloat16 on a
    GPU that supports it. ``fsdp``: each process holds a shard of the model. Raises ValueError for settings of another
    method and for a seed out of range.
    """

    method: Method
    settings: MethodSettings = MethodSettings()
    model: ModelRequest
    data: DataRequest
    task: TaskName = TaskName.CAUSAL_LM
    budget: BudgetRequest = BudgetRequest()
    secrets: SecretsRequest | None = None
    public: PublicRequest | None = None
    output: Path
    show_unprotected: bool = False
    logs: tuple[LogName, ...] = ()
    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 64
    learning_rate: float | None = None
    optimizer: Optimizer = Optimizer.ADAMW
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    clip_norm: float = 1.0
    clipping_passes: ClippingPasses = ClippingPasses.ONE
    clipping: ClippingStyle = ClippingStyle.FLAT
    micro_examples: int = 64
    micro_tokens: int | None = None
    device: str | None = None
    bf16: bool | None = None
    fsdp: bool = False
    seed: int = 0
    resume: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        settings_class = self.method.settings
        if type(self.settings) is MethodSettings and all(
            field.default is not MISSING for field in fields(settings_class)
        ):
            object.__setattr__(self, "settings", settings_class())  # no settings were given
        if not isinstance(self.settings, settings_class):
            raise ValueError(
                f"{self.method_name} takes {self.method.settings.__name__}, not {type(self.settings).__name__}"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}; it must be at least 0 and below 2^63")

    def rate_for(self, batch_size: float) -> float:
        """The highest learning rate, by default for batches of ``batch_size``.

        Adam moves a weight by about the rate in each step, mostly at random where noise exceeds the gradient, so the
        noise of an epoch moves it by the rate times the root of its steps. Fewer steps allow a higher rate. Without a
        second moment, noise moves a weight by the rate times the noise multiplier, clip norm / batch size, and
        1 / (1 - momentum); the rate is the one at which that is as far, for a noise multiplier of 1.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        if not self.method.noised or self.method.numbers(self) is not None:
            return _LEARNING_RATE
        rate = _LEARNING_RATE * math.sqrt(min(max(1.0, batch_size / 64), 4.0))
        if self.optimizer in (Optimizer.ADAM, Optimizer.ADAMW):
            return rate
        return rate * batch_size / self.clip_norm * (1 - self.momentum)

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method.name

    def settings_as(self, kind: type[Settings]) -> Settings:
        """The method's own settings, as a ``kind``. Raises ValueError if they are of another class."""
        if not isinstance(self.settings, kind):
            raise ValueError(f"the settings of {self.method_name} are not {kind.__name__}")
        return self.settings
