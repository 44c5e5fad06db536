"""The requests of ``privctl retrain``, and the description of the method that each is made of."""

from __future__ import annotations

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
    """Where the examples come from and how they are read; see the tasks for what each setting means.

    ``long`` None truncates, as ``truncate`` does.
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
    """The model to begin with, and what of it is trained.

    ``vocabulary`` is a public file of words, or the word ``private`` for one made from the training records. ``train``
    are globs of parameter names, all where empty. ``adapter`` is the folder of a low-rank adapter on the model at
    ``path``, which is then frozen; ``save_adapter`` releases new adapters alone, not merged into the weights.
    ``base_bits`` 4 holds the frozen base in 4 bits while an adapter is trained and measured.
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
        """Whether an adapter by itself is released."""
        return self.adapter is not None or self.save_adapter


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
class PublicRequest:
    """Public records to mix in, read as those of ``--data`` are; see ``PublicMixing``.

    ``batch_size`` None is the expected private one, or all records where there are fewer.
    """

    data: DataPath
    weight: float = WEIGHT
    batch_size: int | None = None
    overlap: PublicOverlap = PublicOverlap.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The options of ``privctl retrain ferret --replay``; everything else is in the stream."""

    model: Path
    stream: Path
    output: Path
    base: Path | None = None
    vocabulary: Path | None = None
    device: str | None = None
    force: bool = False


class SideReleases(Protocol):
    """Releases that a method makes in addition to its steps, counted in the same ledger."""

    @property
    def releases(self) -> int:
        """How many there will be."""
        ...

    def event(self, noise_multiplier: float, releases: int | None = None) -> SampledGaussian | None:
        """The event of ``releases`` (all if None), in a training with this ``noise_multiplier``."""
        ...

    def check_alone(self, epsilon: float, delta: float) -> None:
        """Raises CommandError where they exceed the budget by themselves."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What sets a training method apart: what may be asked of it, and what its runs are like.

    ``takes`` names the groups of shared options of its command; ``helps`` replaces the help text of some of them.
    ``clips``: each example's gradient is clipped. ``noised``: each step adds noise to the sum of clipped gradients of a
    Poisson batch. ``sums_losses``: it also releases noisy sums of losses, whose rounding the clipping margin does not
    cover. ``needs_float32``: what such a request computes would drown in rounding to bfloat16. ``private``: exact
    measures of the examples are withheld. ``guaranteed``: the guarantee has a delta.
    ``shards``: it can train a model of which each process holds a shard (``--fsdp``). ``optimizer`` is the update rule
    where none is asked for. ``numbers`` is how many numbers a step releases, None for one of each weight that is
    trained. ``voided`` says, for messages,
    which guarantees are void if names were collected from the examples; empty if none are. ``warning`` is the first
    warning of its report.

    ``sampled`` tells whether a request's batches are secret samples, drawn as ``batches`` says, and over how many steps
    noise is correlated (``bands``), or by how many ``buffers`` over all; ``group`` is how many records a user may have
    who is protected as a whole though each record is clipped by itself, None where there is no such, and ``shared`` how
    records are chosen that may have several users; ``largest_batch`` is how many examples of a larger draw are kept.
    ``per_draw`` is with how many records a user takes part in a step, at most. Otherwise they are passes in a public
    order; then ``whole_passes``, if not empty, says what is accounted in whole passes, and no run may end within one.
    ``search`` is how many runs there are of which the best is released, None for one run. ``adaptive`` gives how the
    clip norm follows the gradients, for a noise multiplier and a batch size, None where it stays. ``canaries`` is how
    many gradients of known norm are mixed into the steps, None for none. ``files`` are suffixes of files beside the
    output.
    """

    name: str
    help: str
    settings: type[MethodSettings] = MethodSettings
    takes: tuple[str, ...] = ()
    helps: Mapping[str, str] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainRequest:
    """The options of ``privctl retrain METHOD``. Give ``epochs`` or ``steps``; ``batch_size`` is the expected one.

    ``settings`` are the method's own. With ``secrets`` the plan sets the batch size, and ``batch_size`` is not used.
    ``public`` records are mixed into a private training. ``show_unprotected`` requests a private file of the measures
    that the report of a private run withholds. ``logs`` are written while it runs. ``bf16`` None computes in bfloat16
    on a GPU that has it. ``fsdp``: each process holds a shard of the model. Raises ValueError for settings of another
    method, and for a seed out of range.
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
    learning_rate: float = 5e-4
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
        own = self.method.settings
        if type(self.settings) is MethodSettings and all(each.default is not MISSING for each in fields(own)):
            object.__setattr__(self, "settings", own())  # nothing was asked for
        if not isinstance(self.settings, own):
            raise ValueError(
                f"{self.method_name} takes {self.method.settings.__name__}, not {type(self.settings).__name__}"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}; it must be at least 0 and below 2^63")

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method.name

    def settings_as(self, kind: type[Settings]) -> Settings:
        """The method's own settings, which are of that ``kind``."""
        if not isinstance(self.settings, kind):
            raise ValueError(f"the settings of {self.method_name} are not {kind.__name__}")
        return self.settings
