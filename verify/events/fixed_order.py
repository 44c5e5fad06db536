"""Kinds of events in passes of fixed order whose steps together are equivalent to one Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from privctl.domain.events import Batches, SampledGaussian
from privctl.domain.guarantee import Adjacency
from verify.events import sampled_gaussian
from verify.events.row import Draw, EventVerification, PlannedAs

_GAUSSIAN = sampled_gaussian.ROW


def row_of_passes(
    planned: PlannedAs,
    whole: Callable[[Any], SampledGaussian],
    squared_shift: Callable[[Any], float],
    toy_training: Callable[[Any, int], Draw],
) -> EventVerification[Any]:
    """The row of such a kind: ``whole`` is the single Gaussian; ``toy_training`` draws losses of a number of steps."""
    return EventVerification(
        planned=planned,
        neighbours=lambda event: Adjacency.ZERO_OUT,
        chances=lambda event: (event.sample_rate,),
        drawn=lambda event: None if event.sample_rate == 1 else Batches.FIXED_ORDER,
        cells=lambda event, attained_only: _GAUSSIAN.cells(whole(event), attained_only),
        parts=lambda event: [(whole(event), 1)],
        squared_shift=squared_shift,
        once=lambda event: _GAUSSIAN.once(whole(event)) if event.steps == 1 else None,
        toy=lambda event: lambda steps: toy_training(event, steps),
        noise=lambda event: event.noise_multiplier,
        with_noise=lambda event, noise: replace(event, noise_multiplier=noise),
        in_floats=True,
    )
