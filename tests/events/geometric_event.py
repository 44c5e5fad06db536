"""A throw-away kind of event, as ``privctl/domain/events.py`` would hold it: two-sided geometric noise on a count."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.checks import count, positive, probability
from privctl.domain.events import Event, EventOption


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricNoise(Event):
    """A count of a Poisson batch plus k with probability proportional to exp(-|k| epsilon), ``steps`` times."""

    tag = "geometric"
    mechanism = "geometric"
    options = (EventOption(name="count_epsilon", help="geometric: epsilon of one count.", field="epsilon"),)
    contribution = "one example changes a count by one at most"

    epsilon: float
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        probability("sample_rate", self.sample_rate)
        count("steps", self.steps)

    @property
    def rates(self) -> tuple[float, ...]:
        """See ``Event``."""
        return (self.sample_rate,)
