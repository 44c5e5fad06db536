"""What every kind of event says of itself, and how the batches of its steps are drawn."""

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

    ``POISSON`` takes every example with probability ``sample_rate``, independently. ``FIXED_SIZE`` draws a
    fresh set of fixed size each step, without replacement.

    ``SHUFFLED`` goes through the data in passes. The first step begins a pass; each pass takes an order of its own,
    drawn without looking at the data, and no batch reaches into the next pass. A pass has at least
    floor(1 / ``sample_rate``) steps: where the batches do not divide the data, what is left over may be dropped or
    make one more, smaller batch. An example is in at most one batch of a pass, so in at most
    ceil(``steps`` / floor(1 / ``sample_rate``)) in all; it may be in the last batch of one pass and the first of the
    next.

    ``BALLS_AND_BINS`` goes through the data in passes of 1 / ``sample_rate`` steps, a whole number; the first step
    begins a pass. In each pass every example takes part in exactly one step, chosen uniformly for it alone, so the
    sizes of batches vary. The last pass may be cut short.

    ``CYCLIC_POISSON`` divides the examples into parts, each example by a draw of its own that does not look at the
    data, and steps take the parts in turn: step t takes every example of part t mod parts with one probability,
    independently. ``BandedGaussian`` alone has such batches.

    ``FIXED_ORDER`` goes through the data in passes of 1 / ``sample_rate`` steps, a whole number; the first step begins
    a pass. Every example takes part in one step of a pass, the same in each, which was chosen without looking at the
    data and need not be secret. ``BufferedGaussian`` and ``TreeGaussian`` alone have such batches.

    ``TRUNCATED_POISSON`` is ``POISSON``, except that of a batch above a stated size so many examples are kept, drawn
    uniformly. ``TruncatedGaussian`` alone has such batches.

    ``WITH_REPLACEMENT`` draws each place of a batch of fixed size afresh, uniformly among all examples, so that one may
    come several times. ``RedrawnGaussian`` alone has such batches.
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

    It sets the event's ``field``; "" if it sets none on its own. Numbers lie ``within`` a range. A ``repeatable``
    option is passed as a tuple named in the plural.
    """

    name: str
    help: str
    field: str = ""
    kind: type = float
    within: Range = POSITIVE
    repeatable: bool = False

    @property
    def flag(self) -> str:
        """The flag."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> str:
        """The command function's argument name."""
        return f"{self.name}s" if self.repeatable else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(ABC):
    """What every kind of event says of itself; the defaults are those of noise on Poisson batches.

    ``tag`` is its type in reports, ``mechanism`` its name for ``privctl account --mechanism``, ``options`` are the
    options of that command for this kind only. A kind without its own planner there must have ``steps`` and an option
    that sets its noise; one without ``sample_rate`` takes the whole data. ``composes``: whether a ledger may hold it.
    ``contribution`` is the bound on one record that the noise is calibrated to. Values of fields are held to the checks
    of their types (``privctl.domain.event_fields``).
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
            """How many times it happens."""

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)):
            check(name, getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:  # noqa: B027 - most kinds have nothing to add
        """Raise ValueError for values that pass the checks of their types and yet may not stand together."""

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """The chances with which the protected records take part in a step."""

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency for which its bounds hold."""
        return Adjacency.ADD_OR_REMOVE

    @property
    def composes_with(self) -> Hashable:
        """Events compose where this is equal: they then use the same kind of neighbours."""
        return self.adjacency is Adjacency.REPLACE_ONE

    @property
    def holds_zeroed(self) -> bool:
        """Whether bounds for a record removed hold for one zeroed, too, as where it does not change other draws."""
        return True

    @property
    def composes_only(self) -> str:
        """Why it does not compose with events of other neighbours."""
        return "the events use different adjacencies, so they do not compose"

    @property
    def batches_needed(self) -> Batches | None:
        """How its batches must be drawn; None where every record is in every batch."""
        return Batches.POISSON if min(self.rates) < 1 else None

    @property
    def noise_to_sensitivity(self) -> float | None:
        """The noise multiplier that a guarantee on it states; None where it has none."""
        return None

    @property
    def caption(self) -> str:
        """Title of its plots."""
        return type(self).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEvent(Event):
    """An event whose protected records take part in a step with the chance ``sample_rate``, all alike."""

    if TYPE_CHECKING:  # declared by every kind itself, as ``steps`` is

        @property
        def sample_rate(self) -> float:
            """The chance."""

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)
