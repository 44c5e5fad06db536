"""What holds of every kind of event that the steps of a training may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from audits.claims import CurveClaim, curve_subject, with_half_noise
from privctl.domain.events import (
    BandedGaussian,
    BestOfRuns,
    BufferedGaussian,
    Event,
    GroupGaussian,
    Ledger,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.train.preparation.ledgers import StepLaw
from verify.events import row_of

STEPS: tuple[Any, ...] = (
    SampledGaussian(noise_multiplier=1.5, sample_rate=0.1, steps=4),
    BandedGaussian(noise_multiplier=1.5, coefficients=(0.9, 0.3), sample_rate=0.1, steps=4),
    BufferedGaussian(noise_multiplier=1.5, first=0.9, weights=(0.2,), decays=(0.5,), sample_rate=0.1, steps=4),
    BestOfRuns(noise_multiplier=1.5, mean_runs=3, sample_rate=0.1, run_steps=4),
    GroupGaussian(noise_multiplier=1.5, group_size=2, sample_rate=0.1, steps=4),
    TruncatedGaussian(noise_multiplier=1.5, largest_batch=5, examples=30, sample_rate=0.1, steps=4),
)
each = pytest.mark.parametrize("event", STEPS, ids=lambda event: str(event.tag))


def of_trainings() -> Iterator[type[Event]]:
    """The kinds that ``StepLaw`` makes."""
    law: dict[str, Any] = {"examples": 30, "sample_rate": 0.1, "steps": 4}
    for more in ({}, {"group": 2}, {"largest_batch": 5}, {"coefficients": (0.9, 0.3)}):
        yield type(StepLaw(**law, **more).ledger(1.5).events[0])


def test_all_kinds_are_here() -> None:
    assert {*of_trainings(), BestOfRuns, BufferedGaussian} == {type(event) for event in STEPS}


@each
def test_noise_is_written_in_floats(event: Any) -> None:
    """So verify asks what that adds."""
    assert row_of(event).in_floats


@each
def test_half_of_the_noise_is_half(event: Any) -> None:
    half: Any = with_half_noise(Ledger(events=(event,))).events[0]
    changed = {f.name for f in fields(event) if getattr(half, f.name) != getattr(event, f.name)}
    assert changed == {"noise_multiplier"}
    assert half.noise_multiplier == event.noise_multiplier / 2


@each
def test_a_verdict_names_the_noise(event: Any) -> None:
    claim = CurveClaim(mechanism=Ledger(events=(event,)), points=(), source="m.report.json")
    assert "noise multiplier 1.5" in curve_subject(claim)
