"""A throw-away kind of event, as ``privctl/domain/events.py`` would hold it: two-sided geometric noise on a count."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.domain.event import EventOption, SampledEvent
from privctl.domain.event_fields import Chance, Positive, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricNoise(SampledEvent):
    """A count of a Poisson batch plus k with probability proportional to exp(-|k| epsilon), ``steps`` times."""

    tag = "geometric"
    mechanism = "geometric"
    options = (EventOption(name="count_epsilon", help="geometric: epsilon of one count.", field="epsilon"),)
    contribution = "one example changes a count by one at most"

    epsilon: Positive
    sample_rate: Chance = 1.0
    steps: Steps = 1
