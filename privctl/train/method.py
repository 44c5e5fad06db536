"""The description of a training method, and the base of its own settings.

Imports nothing heavy: the command line builds a method's options from its settings before any engine is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from privctl.domain.events import Batches
from privctl.domain.ranges import Range

if TYPE_CHECKING:
    from privctl.accounting.runs_law import NumberOfRuns
    from privctl.domain.events import SampledGaussian
    from privctl.domain.progress import Progress
    from privctl.domain.report import PrivacyReport
    from privctl.domain.shared_records import SharedRecords
    from privctl.domain.training_plan import TrainingPlan
    from privctl.train.adaptive_clipping import AdaptiveClipping
    from privctl.train.prepare import TrainingJob
    from privctl.train.request import ReplayRequest, RetrainRequest
    from privctl.train.session import Session

#: Key of a field's metadata that marks it as an option.
OPTION = "option"
#: Group of options that several methods share -> their names.
GROUPS = {
    "clipping": ("clip_norm", "clipping"),
    "clip-norm": ("clip_norm",),
    "passes": ("clipping_passes",),
    "schedule": ("schedule", "warmup_steps"),
    "budget": ("epsilon", "noise_multiplier", "delta"),
    "secrets": ("secrets",),
    "convert": ("convert",),
    "adapters": ("base", "save_adapter", "base_bits"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How the command line presents a field: ``flag`` defaults to the field's name, ``choices`` to all enum members.

    ``within`` is where a number must lie. ``may_change``: a run may be resumed with another value.
    """

    help: str
    flag: str | None = None
    choices: tuple[str, ...] | None = None
    required: bool = False
    may_change: bool = False
    within: Range | None = None


def flag_of(setting: Field[Any]) -> str:
    """The flag of a field that is an option."""
    stated: Option = setting.metadata[OPTION]
    return stated.flag or "--" + setting.name.replace("_", "-")


def option(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    choices: tuple[str, ...] | None = None,
    may_change: bool = False,
    within: Range | None = None,
) -> Any:
    """A field of a method's settings that is an option of its command."""
    asked = Option(help=help_text, flag=flag, choices=choices, may_change=may_change, within=within)
    return field(default=default, metadata={OPTION: asked})


def required(help_text: str, *, flag: str | None = None) -> Any:
    """As ``option``, for a field without a default."""
    return field(metadata={OPTION: Option(help=help_text, flag=flag, required=True)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """The settings of one method in addition to the shared ones; subclasses are frozen dataclasses of plain values.

    Raises ValueError naming the flag of a number out of its range.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            stated: Option | None = setting.metadata.get(OPTION)
            if stated is not None and stated.within is not None and value is not None:
                stated.within.require(flag_of(setting), value)


Settings = TypeVar("Settings", bound=MethodSettings)


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


def plan_gradients(job: TrainingJob) -> TrainingPlan:
    """The plan of a training by gradients in full precision."""
    from privctl.train import dry_run

    return dry_run.plan_gradients(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method, run by ``privctl retrain NAME``.

    ``takes`` names the groups of shared options of its command; ``helps`` replaces the help text of some of them.
    ``clips``: each example's gradient is clipped. ``noised``: each step adds noise to the sum of clipped gradients of a
    Poisson batch. ``sums_losses``: it also releases noisy sums of losses, whose rounding the clipping margin does not
    cover. ``needs_float32``: what such a request computes would drown in rounding to bfloat16. ``private``: exact
    measures of the examples are withheld. ``guaranteed``: the guarantee has a delta.
    ``shards``: it can train a model of which each process holds a shard (``--fsdp``). ``voided`` says, for messages,
    which guarantees are void if names were collected from the examples; empty if none are. ``warning`` is the first
    warning of its report.

    ``sampled`` tells whether a request's batches are secret samples, drawn as ``batches`` says, and over how many steps
    noise is correlated (``bands``), or by how many ``buffers`` over all; ``group`` is how many records a user may have
    who is protected as a whole though each record is clipped by itself, None where there is no such, and ``shared`` how
    records are chosen that may have several users. Otherwise they are passes in a public order; then ``whole_passes``,
    if not empty, says what is accounted in whole passes, and no run may end within one. ``search`` is how many runs
    there are of which the best is released, None for one run. ``adaptive`` gives how the clip norm follows the
    gradients, for a noise multiplier and a batch size, None where it stays. ``run`` trains and saves,
    ``plan`` says what a run would do without training, ``replay`` repeats a recorded run without data, ``files`` are
    suffixes of files beside the output.
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
    search: Callable[[RetrainRequest], NumberOfRuns | None] = lambda _: None
    adaptive: Callable[[RetrainRequest, float, float], AdaptiveClipping | None] = lambda *_: None
    check: Callable[[RetrainRequest], None] = lambda _: None
    side_releases: Callable[[RetrainRequest, int, int, float], SideReleases | None] = lambda *_: None
    run: Callable[[TrainingJob, Session], PrivacyReport | None]
    plan: Callable[[TrainingJob], TrainingPlan] = plan_gradients
    replay: Callable[[ReplayRequest, Progress], PrivacyReport] | None = None
    files: tuple[str, ...] = ()
