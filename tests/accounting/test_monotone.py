"""Epsilon falls as delta rises, for every kind of event, also where delta is below what plain floats resolve."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.domain.events import Event, GroupGaussian, Ledger, RedrawnGaussian, ReplacedGaussian, SampledGaussian
from tests.events.test_conventions import BEST_OF_RUNS, IN_BINS, KINDS, OF_BATCHES, ZERO_CONCENTRATED
from tests.few import few
from verify.recompute.ledger import epsilon_of

#: Losses so rare and large that no tilt makes them likely.
RARE: list[Event] = [
    ReplacedGaussian(noise_multiplier=1, sample_rate=1e-4, steps=1000),
    RedrawnGaussian(noise_multiplier=1.5, examples=50_000, draws=20, steps=2000),
    GroupGaussian(noise_multiplier=2, group_size=5, sample_rate=1e-4, steps=1000),
    SampledGaussian(noise_multiplier=0.7, sample_rate=1e-4, steps=5000),
]
DELTAS = (*np.geomspace(1e-15, 1e-1, 4).tolist(), 1.03e-7, 1.1e-7, 1.1e-15, 2e-15)


@pytest.mark.parametrize(
    "event",
    few([*RARE, *KINDS, *OF_BATCHES, IN_BINS, BEST_OF_RUNS, ZERO_CONCENTRATED], 0, 1),
    ids=lambda event: f"{event.tag}, {event.adjacency}, {event.batches_needed}",
)
def test_epsilon_falls_as_delta_rises(event: Event) -> None:
    ledger = Ledger(events=(event,))
    found = [epsilon_bound(ledger, delta) for delta in sorted(DELTAS)]
    for smaller, larger in pairwise(found):
        assert larger <= smaller * (1 + 1e-4) or math.isinf(smaller)


@pytest.mark.parametrize(("event", "most"), [(RARE[0], 1.015), (RARE[1], 1.004)], ids=["replaced", "redrawn"])
def test_rare_losses_at_a_tiny_delta(event: Event, most: float) -> None:
    """With transforms in plain floats the bounds are 5.4 % and 0.74 % above the floor, as rounding outweighs delta."""
    ledger = Ledger(events=(event,))
    bound, floor = epsilon_bound(ledger, 1e-15), epsilon_floor(ledger, 1e-15)
    assert floor < bound < floor * most
    assert bound < epsilon_bound(ledger, 1e-15 / 3)
    assert epsilon_of(ledger, 1e-15, (bound,)).at_most(bound) is True
