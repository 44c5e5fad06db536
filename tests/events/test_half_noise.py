"""Every kind of event with half of its noise: what ``verify`` computes by itself exceeds the epsilon of all of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import (
    BufferedGaussian,
    Event,
    Ledger,
    RandomizedResponse,
    RedrawnGaussian,
    SecretMixture,
    TreeGaussian,
    UnprotectedRelease,
)
from privctl.domain.guarantee import Adjacency
from tests.events.test_conventions import BEST_OF_RUNS, IN_BINS, KINDS, OF_BATCHES, ZERO_CONCENTRATED
from tests.few import few
from verify.events import ROWS
from verify.recompute.ledger import epsilon_of

DELTA = 1e-5
#: Without noise, and a secret's, which has no epsilon.
OTHERS = (UnprotectedRelease, SecretMixture)
#: What a field is multiplied by where there is half of the noise.
HALF = {"noise_multiplier": 0.5, "scale": 0.5, "stddev": 0.5, "noise_stddev": 0.5, "decay": 2, "epsilon": 2, "rho": 4}
QUICK = (BufferedGaussian, TreeGaussian, RandomizedResponse, RedrawnGaussian)
EVENTS = [
    event for event in (*KINDS, *OF_BATCHES, IN_BINS, BEST_OF_RUNS, ZERO_CONCENTRATED) if not isinstance(event, OTHERS)
]


def halved(event: Event) -> Event:
    (name,) = (each.name for each in fields(event) if each.name in HALF)
    changed: Any = {name: HALF[name] * getattr(event, name)}
    return replace(event, **changed)


def test_every_kind_is_here() -> None:
    assert {*map(type, EVENTS), *OTHERS} == set(ROWS)


@pytest.mark.parametrize(
    "event",
    few(EVENTS, *(i for i, e in enumerate(EVENTS) if type(e) in QUICK and e.adjacency is not Adjacency.ZERO_OUT)),
    ids=lambda event: f"{event.tag}, {event.adjacency}, {event.batches_needed}",
)
def test_half_of_the_noise_is_noticed(event: Event) -> None:
    whole, half = Ledger(events=(event,)), Ledger(events=(halved(event),))
    bound = epsilon_bound(whole, DELTA)
    assert epsilon_of(whole, DELTA, (bound,)).at_most(bound) is True
    assert epsilon_of(half, DELTA, (bound,)).at_most(bound) is False
