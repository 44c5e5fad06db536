"""Losses that simulations draw, where e^-loss is lost beside 1 in floats."""

from __future__ import annotations

import numpy as np
import pytest

from privctl.domain.events import DiscreteLaplaceNoise, EpsilonDeltaDp, Event, LaplaceNoise, RandomizedResponse
from verify.events import row_of

_LARGE = 60.0


@pytest.mark.parametrize(
    "event",
    [
        LaplaceNoise(steps=1, sample_rate=1.0, scale=1 / _LARGE),
        DiscreteLaplaceNoise(steps=1, sample_rate=1.0, decay=_LARGE, sensitivity=1),
        EpsilonDeltaDp(steps=1, sample_rate=1.0, epsilon=_LARGE, delta=0.0),
        RandomizedResponse(steps=1, sample_rate=1.0, bits=1, epsilon=_LARGE),
    ],
    ids=lambda event: event.tag,
)
def test_large_losses_are_drawn_as_they_are(event: Event) -> None:
    draw = row_of(event).draw(event)
    assert draw is not None
    absent, present = (draw(np.random.default_rng(1), 200, there) for there in (False, True))
    assert np.median(present) == pytest.approx(_LARGE, rel=1e-3)
    assert np.median(absent) == pytest.approx(-_LARGE, rel=1e-3)
    assert np.isfinite([absent, present]).all()
