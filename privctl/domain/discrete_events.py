"""Events whose outcomes are whole numbers or one of finitely many answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from privctl.domain.checks import at_least
from privctl.domain.event import Event, EventOption, SampledEvent
from privctl.domain.event_fields import Chance, Positive, Several, StatedNeighbours, Steps
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import COUNT, LOG_ODDS

#: The largest sensitivity that is supported for noise on whole numbers.
MOST_SENSITIVITY = 100_000
#: Shared by both kinds of noise on whole numbers.
SENSITIVITY = EventOption(
    name="sensitivity",
    help="discrete-laplace, discrete-gaussian: the most that one record changes the whole number, up to 100,000.  "
    "[default: 1]",
    field="sensitivity",
    kind=int,
    within=COUNT,
)


def _not_too_sensitive(name: str, value: int) -> None:
    if value > MOST_SENSITIVITY:
        raise ValueError(f"{name} is {value}; it must be at most {MOST_SENSITIVITY:,}")


def _representable(name: str, value: float) -> None:
    if not 0.1 <= value <= 10_000:
        raise ValueError(f"{name} is {value:g}; it must lie between 0.1 and 10,000")


Sensitivity = Annotated[Several, _not_too_sensitive]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplaceNoise(SampledEvent):
    """A whole number plus k with probability proportional to exp(-``decay`` |k|), ``steps`` times.

    One record changes the number by at most ``sensitivity``, so epsilon = ``decay`` * ``sensitivity``.
    """

    tag = "discrete-laplace"
    mechanism = "discrete-laplace"
    options = (
        EventOption(
            name="decay",
            help="discrete-laplace: a, where the probability of noise k is proportional to exp(-a |k|).",
            field="decay",
        ),
        SENSITIVITY,
    )
    contribution = "one example changes the whole number that noise is added to by its sensitivity at most"

    decay: Positive
    sensitivity: Sensitivity = 1
    sample_rate: Chance = 1.0
    steps: Steps = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianNoise(SampledEvent):
    """A whole number plus k with probability proportional to exp(-k^2 / (2 ``stddev``^2)), ``steps`` times.

    One record changes the number by at most ``sensitivity`` (Canonne, Kamath and Steinke 2020).
    """

    tag = "discrete-gaussian"
    mechanism = "discrete-gaussian"
    options = (
        EventOption(
            name="stddev",
            help="discrete-gaussian: s, where the probability of noise k is proportional to exp(-k^2 / (2 s^2)); "
            "0.1 to 10,000.",
            field="stddev",
        ),
        SENSITIVITY,
    )
    contribution = "one example changes the whole number that noise is added to by its sensitivity at most"

    stddev: Annotated[Positive, _representable]
    sensitivity: Sensitivity = 1
    sample_rate: Chance = 1.0
    steps: Steps = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyWayResponse(Event):
    """Each record's own answer, one of ``answers``: the true one exp(``epsilon``) times as likely as any other.

    k-ary randomized response, ``steps`` times. Neighbours differ in one record's answers; if ``neighbours`` is
    zero-out, that record's answer is uniformly random.
    """

    tag = "k-ary-response"
    mechanism = "k-ary-response"
    options = (
        EventOption(
            name="answer_epsilon",
            help="k-ary-response: log of how many times as likely the true answer is as any other.",
            field="epsilon",
            within=LOG_ODDS,
        ),
        EventOption(
            name="answers",
            help="k-ary-response: number of possible answers, at least 2.  [default: 2]",
            field="answers",
            kind=int,
            within=COUNT,
        ),
    )
    contribution = "each example answers once a step, for itself alone"

    epsilon: Positive
    answers: Annotated[int, partial(at_least, least=2)] = 2
    steps: Steps = 1
    neighbours: StatedNeighbours = Adjacency.REPLACE_ONE

    def _check_together(self) -> None:
        if self.neighbours is Adjacency.ADD_OR_REMOVE:
            raise ValueError("neighbours is add-or-remove, but a missing answer shows; state replace-one or zero-out")

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: every record answers."""
        return (1.0,)

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: another answer in place of the true one, or one at random."""
        return self.neighbours

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "answers of each record protect against replacing a record and compose only with events that do"
