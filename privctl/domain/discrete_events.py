"""Events with finitely many outcomes, or with whole numbers as outcomes."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.checks import at_least, count, positive, probability
from privctl.domain.event import Event, EventOption
from privctl.domain.guarantee import Adjacency
from privctl.domain.ranges import COUNT, LOG_ODDS

#: The most that one record may change a whole number.
MOST_SENSITIVITY = 100_000
#: Kinds of noise on whole numbers share the option.
SENSITIVITY = EventOption(
    name="sensitivity",
    help="discrete-laplace, discrete-gaussian: the most that one record changes the whole number, up to 100,000.  "
    "[default: 1]",
    field="sensitivity",
    kind=int,
    within=COUNT,
)


def check_sensitivity(sensitivity: int) -> None:
    """Raise ValueError for a sensitivity below 1 or above the most."""
    at_least("sensitivity", sensitivity, 1)
    if sensitivity > MOST_SENSITIVITY:
        raise ValueError(f"sensitivity is {sensitivity}; it must be at most {MOST_SENSITIVITY:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplaceNoise(Event):
    """A whole number plus k with probability proportional to exp(-``decay`` |k|), ``steps`` times.

    One record changes the number by ``sensitivity`` at most, so epsilon = ``decay`` * ``sensitivity``.
    """

    tag = "discrete-laplace"
    mechanism = "discrete-laplace"
    options = (
        EventOption(name="decay", help="discrete-laplace: a, where noise k has the odds exp(-a |k|).", field="decay"),
        SENSITIVITY,
    )
    contribution = "one example changes the whole number that noise is added to by its sensitivity at most"

    decay: float
    sensitivity: int = 1
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("decay", self.decay)
        check_sensitivity(self.sensitivity)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianNoise(Event):
    """A whole number plus k with probability proportional to exp(-k^2 / (2 ``stddev``^2)), ``steps`` times.

    One record changes the number by ``sensitivity`` at most (Canonne, Kamath and Steinke 2020).
    """

    tag = "discrete-gaussian"
    mechanism = "discrete-gaussian"
    options = (
        EventOption(
            name="stddev",
            help="discrete-gaussian: s, where noise k has the odds exp(-k^2 / (2 s^2)); 0.1 to 10,000.",
            field="stddev",
        ),
        SENSITIVITY,
    )
    contribution = "one example changes the whole number that noise is added to by its sensitivity at most"

    stddev: float
    sensitivity: int = 1
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("stddev", self.stddev)
        if not 0.1 <= self.stddev <= 10_000:
            raise ValueError(f"stddev is {self.stddev:g}; it must lie between 0.1 and 10,000")
        check_sensitivity(self.sensitivity)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyWayResponse(Event):
    """Each record's own answer, one of ``answers``: the true one exp(``epsilon``) times as likely as any other.

    k-ary randomized response, ``steps`` times. Neighbours differ in one record's answers.
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

    epsilon: float
    answers: int = 2
    steps: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        at_least("answers", self.answers, 2)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``: every record answers."""
        return (1.0,)

    @property
    def adjacency(self) -> Adjacency:
        """See ``Event``: another answer in place of the true one."""
        return Adjacency.REPLACE_ONE

    @property
    def composes_only(self) -> str:
        """See ``Event``."""
        return "answers of each record protect against replacing a record and compose only with events that do"
