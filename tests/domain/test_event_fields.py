"""Every kind of event refuses what its fields may not hold, in one sentence that names the field."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from privctl.domain.events import EVENTS, DiscreteGaussianNoise, Event, SignBits
from privctl.domain.guarantee import Adjacency
from tests.events.test_conventions import BEST_OF_RUNS, KINDS, OF_BATCHES, ZERO_CONCENTRATED

_ONE_EACH = {type(event): event for event in (*KINDS, *OF_BATCHES, ZERO_CONCENTRATED, BEST_OF_RUNS)} | {
    SignBits: SignBits(groups=2, fire_probability=0.5, sample_rate=0.1, steps=3)
}
_BAD = {
    "sample_rate": [(-0.1, "must lie between 0 and 1"), (1.5, "must lie between 0 and 1")],
    "steps": [(0, "must lie between 1 and 1e12"), (10**13, "must lie between 1 and 1e12")],
    "run_steps": [(0, "must lie between 1 and 1e12")],
    "noise_multiplier": [(0.0, "must be a finite number above 0"), (float("inf"), "must be a finite number above 0")],
    "epsilon": [(-1.0, "must be a finite number (above|of at least) 0")],
    "rho": [(0.0, "must be a finite number above 0")],
    "xi": [(-1.0, "must be a finite number of at least 0")],
    "delta": [(1.0, "must be 0 or more and below 1")],
    "bits": [(0, "must be a finite number of at least 1")],
    "answers": [(1, "must be a finite number of at least 2")],
    "group_size": [(0, "must be a finite number of at least 1"), (100_001, "must be at least 1 and at most 100000")],
    "largest_batch": [(0, "must lie between 1 and 1e12"), (10**13, "must lie between 1 and 1e12")],
    "leaves": [(0, "must be a finite number of at least 1")],
    "draws": [(0, "must be a finite number of at least 1"), (100_001, "must be at least 1 and at most 100000")],
    "neighbours": [(Adjacency.UNSTATED, "must be add-or-remove, replace-one or zero-out")],
    "examples": [(0, "must lie between 1 and 1e12"), (10**13, "must lie between 1 and 1e12")],
    "groups": [(0, "must be a finite number of at least 1")],
    "fire_probability": [(2.0, "must lie between 0 and 1")],
    "sensitivity": [(0, "must be a finite number of at least 1"), (100_001, "must be at most 100,000")],
    "scale": [(0.0, "must be a finite number above 0")],
    "decay": [(0.0, "must be a finite number above 0")],
    "stddev": [(0.0, "must be a finite number above 0")],
    "noise_stddev": [(0.0, "must be a finite number above 0")],
    "mean_runs": [(0.5, "must be a finite number of at least 1")],
    "shape": [(-0.5, "must be a finite number of at least 0")],
    "probabilities": [((0.5, 1.5), "must lie between 0 and 1")],
    "first": [(0.0, "must be a finite number above 0")],
    "weights": [((-1.0,), "must be a finite number of at least 0")],
    "decays": [((-1.0,), "must be a finite number of at least 0")],
    "sensitivities": [((1.0, -1.0), "must be a finite number of at least 0")],
}
#: Fields whose values are words or are checked together.
_OTHER = {"batches", "coefficients"}


@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
def test_every_field_is_held_to_its_check(kind: type[Event]) -> None:
    event = _ONE_EACH[kind]
    for name in {field.name for field in fields(kind)} - _OTHER:
        for bad, expected in _BAD[name]:
            with pytest.raises(ValueError, match=expected) as refused:
                replace(event, **{name: bad})
            assert str(refused.value).startswith(f"{name} is ")


@pytest.mark.parametrize("stddev", [0.01, 20_000.0])
def test_a_field_may_have_two_checks(stddev: float) -> None:
    with pytest.raises(ValueError, match=r"stddev is .*; it must lie between 0\.1 and 10,000"):
        DiscreteGaussianNoise(stddev=stddev)


@pytest.mark.parametrize(
    ("tag", "names"),
    [
        ("sampled-gaussian", ["noise_multiplier", "sample_rate", "steps", "batches"]),
        ("best-of-runs", ["noise_multiplier", "mean_runs", "shape", "sample_rate", "run_steps", "steps"]),
    ],
)
def test_fields_keep_their_order_in_reports(tag: str, names: list[Any]) -> None:
    assert [field.name for field in fields(EVENTS[tag])] == names
