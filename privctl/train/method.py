"""What a way to train says of itself: the row of a method, and the settings that are its alone.

Imports nothing heavy: the command line makes a method's options of its settings, before any engine is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from privctl.domain.events import SampledGaussian
    from privctl.domain.progress import Progress
    from privctl.domain.report import PrivacyReport
    from privctl.train.prepare import TrainingJob
    from privctl.train.request import ReplayRequest, RetrainRequest
    from privctl.train.session import Session

#: Key of a field's metadata that makes an option of it.
OPTION = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How the command line asks for a field: ``flag`` None is its name, ``choices`` None its whole enum."""

    help: str
    flag: str | None = None
    choices: tuple[str, ...] | None = None
    required: bool = False


def option(default: Any, said: str, *, flag: str | None = None, choices: tuple[str, ...] | None = None) -> Any:
    """A field of a method's settings that is an option of its command; ``said`` is its help."""
    return field(default=default, metadata={OPTION: Option(help=said, flag=flag, choices=choices)})


def required(said: str, *, flag: str | None = None) -> Any:
    """As ``option``, for a field without a default."""
    return field(metadata={OPTION: Option(help=said, flag=flag, required=True)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """What one method is told beside what all are; its subclasses are frozen dataclasses of plain values."""


Settings = TypeVar("Settings", bound=MethodSettings)


class SideReleases(Protocol):
    """Releases that a method makes beside its steps, and counts in the same ledger."""

    @property
    def releases(self) -> int:
        """How many there will be."""
        ...

    def event(self, training: float, releases: int | None = None) -> SampledGaussian | None:
        """What so many give away, all where None, in a training with the noise multiplier ``training``."""
        ...

    def check_alone(self, epsilon: float, delta: float) -> None:
        """Raises UsageFault where they exceed the budget by themselves."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train, as ``privctl retrain NAME``.

    ``takes`` are the groups of shared options that its command has, ``helps`` what it says of one of them instead.
    ``clips``: each example's gradient is clipped. ``noised``: each step adds noise to a sum of clipped gradients of a
    Poisson batch. ``sums_losses``: it also releases noisy sums of losses, for whose rounding clipping leaves no room.
    ``private``: what was measured on the examples without noise is withheld. ``guaranteed``: a delta is stated.
    ``voided`` says which guarantees names collected from the examples void; empty where there are none. ``warning``
    leads its report's warnings.

    ``sampled`` says whether a request's batches are Poisson samples; the others are whole passes, and where
    ``whole_passes`` says what is accounted for in such, no run may end within one. ``run`` trains and saves, ``replay``
    repeats a recorded run without data, ``files`` are suffixes of what lies beside the output.
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
    voided: str = "the guarantee"
    warning: str = ""
    whole_passes: str = ""
    sampled: Callable[[RetrainRequest], bool]
    check: Callable[[RetrainRequest], None] = lambda _: None
    side_releases: Callable[[RetrainRequest, int, int, float], SideReleases | None] = lambda *_: None
    run: Callable[[TrainingJob, Session], PrivacyReport | None]
    replay: Callable[[ReplayRequest, Progress], PrivacyReport] | None = None
    files: tuple[str, ...] = ()
