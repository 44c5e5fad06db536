"""The base classes of events, and the ways in which batches are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from privctl.domain.event_fields import checks_of
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.domain.ranges import POSITIVE, Range


class Batches(StrEnum):
    """How a training step chooses its examples.

    ``POISSON`` includes every example with probability ``sample_rate``, independently. ``FIXED_SIZE`` draws a
    fresh set of fixed size each step, without replacement.

    ``SHUFFLED`` goes through the data in passes. The first step begins a pass; each pass has its own order, drawn
    without looking at the data, and no batch spans two passes. A pass has at least floor(1 / ``sample_rate``) steps: if
    the batch size does not divide the data, the remainder is dropped or forms one more, smaller batch. An example is in
    at most one batch of a pass, so in at most ceil(``steps`` / floor(1 / ``sample_rate``)) batches in all; it may be in
    the last batch of one pass and the first of the next.

    ``BALLS_AND_BINS`` goes through the data in passes of 1 / ``sample_rate`` steps, a whole number; the first step
    begins a pass. In each pass every example takes part in exactly one step, chosen uniformly and independently of the
    other examples, so batch sizes vary. The last pass may be cut short.

    ``CYCLIC_POISSON`` assigns every example to a part, at random and without looking at the data, and the steps take
    the parts in turn: step t includes every example of part t mod parts with the same probability, independently. Used
    by ``BandedGaussian`` only.

    ``FIXED_ORDER`` goes through the data in passes of 1 / ``sample_rate`` steps, a whole number; the first step begins
    a pass. Every example takes part in one step of each pass, always the same one, which was chosen without looking at
    the data and need not be secret. Used by ``BufferedGaussian`` and ``TreeGaussian`` only.

    ``TRUNCATED_POISSON`` is ``POISSON``, except that a batch above a stated size is cut down to that size, keeping a
    uniformly drawn subset. Used by ``TruncatedGaussian`` only.

    ``WITH_REPLACEMENT`` fills each place of a fixed-size batch independently and uniformly from all examples, so an
    example may occur several times. Used by ``RedrawnGaussian`` only.
    """

    POISSON = "poisson"
    SHUFFLED = "shuffled"
    FIXED_SIZE = "fixed-size"
    BALLS_AND_BINS = "balls-and-bins"
    CYCLIC_POISSON = "cyclic-poisson"
    TRUNCATED_POISSON = "truncated-poisson"
    WITH_REPLACEMENT = "with-replacement"
    FIXED_ORDER = "fixed-order"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOption:
    """An option of ``privctl account`` that belongs to one kind of event.

    It sets the event's ``field``; "" if it does not set a field directly. Numbers must lie ``within`` a range. A
    ``repeatable`` option is passed as a tuple named in the plural.
    """

    name: str
    help: str
    field: str = ""
    kind: type = float
    within: Range = POSITIVE
    repeatable: bool = False

    @property
    def flag(self) -> str:
        """The option as it is typed, such as ``--group-size``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> str:
        """The name of the argument that the command's function receives it as."""
        return f"{self.name}s" if self.repeatable else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(ABC):
    """A step that touches the data; the defaults are those of noise on Poisson batches.

    ``tag`` is its type in reports, ``mechanism`` its name for ``privctl account --mechanism``, and ``options`` are the
    options of that command for this kind only. A kind without its own planner there must have ``steps`` and an option
    that sets its noise; one without ``sample_rate`` uses the whole data set. ``composes`` says whether a ledger may
    hold it. ``contribution`` states the bound on one record's contribution that the noise is calibrated to. Field
    values must pass the checks of their types (``privctl.domain.event_fields``).
    """

    tag: ClassVar[str]
    mechanism: ClassVar[str]
    options: ClassVar[tuple[EventOption, ...]] = ()
    composes: ClassVar[bool] = True
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.EXAMPLE
    contribution: ClassVar[str] = "one example changes what noise is added to by the clip norm at most"

    if TYPE_CHECKING:  # every kind declares this field itself, in its own position

        @property
        def steps(self) -> int:
            """Number of steps."""

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)):
            check(name, getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:  # noqa: B027 - most kinds have nothing to add
        """Raise ValueError for field values that are valid on their own but not together."""

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """The probabilities with which the protected records take part in a step."""

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency for which its bounds hold."""
        return Adjacency.ADD_OR_REMOVE

    @property
    def composes_with(self) -> Hashable:
        """Events compose only if this value is equal: they then use the same neighbours."""
        return self.adjacency is Adjacency.REPLACE_ONE

    @property
    def holds_zeroed(self) -> bool:
        """Whether bounds for a removed record also hold for a zeroed one, as when no other record's draw changes."""
        return True

    @property
    def composes_only(self) -> str:
        """Why it does not compose with events that have other neighbours."""
        return "the events use different adjacencies, so they do not compose"

    @property
    def batches_needed(self) -> Batches | None:
        """How its batches must be drawn; None if every record is in every batch."""
        return Batches.POISSON if min(self.rates) < 1 else None

    @property
    def noise_to_sensitivity(self) -> float | None:
        """The noise multiplier stated in its guarantee; None if it has none."""
        return None

    @property
    def caption(self) -> str:
        """Title of its plots."""
        return type(self).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEvent(Event):
    """An event whose protected records all take part in a step with probability ``sample_rate``."""

    if TYPE_CHECKING:  # declared by every kind itself, as ``steps`` is

        @property
        def sample_rate(self) -> float:
            """The probability."""

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)
