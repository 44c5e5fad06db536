"""What an event says of itself is not believed by ``verify``, which states it again: a wrong word is refuted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.events import (
    SAMPLED_BATCHES,
    BandedGaussian,
    Batches,
    BestOfLaplaceRuns,
    BestOfRuns,
    BufferedGaussian,
    DiscreteGaussianNoise,
    DiscreteLaplaceNoise,
    EpsilonDeltaDp,
    Event,
    ExponentialChoice,
    GroupGaussian,
    LaplaceNoise,
    ManyWayResponse,
    MixtureOfGaussians,
    RandomizedResponse,
    RedrawnGaussian,
    ReplacedGaussian,
    SampledGaussian,
    SecretMixture,
    TreeGaussian,
    TruncatedGaussian,
    UnprotectedRelease,
    ZeroConcentratedDp,
)
from privctl.domain.guarantee import Adjacency, PrivacyUnit
from privctl.reports.codec import encode_value
from tests.few import few

_QUICK = [batches for batches in SAMPLED_BATCHES if batches is not Batches.BALLS_AND_BINS]
ZERO_CONCENTRATED = ZeroConcentratedDp(rho=0.01, steps=5)
BEST_OF_RUNS = BestOfRuns(noise_multiplier=3, mean_runs=5, sample_rate=0.1, run_steps=5)
IN_BINS = SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=20, batches=Batches.BALLS_AND_BINS)
KINDS: list[Event] = [
    *(SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=20, batches=batches) for batches in _QUICK),
    BandedGaussian(noise_multiplier=2, coefficients=(0.8, 0.6), sample_rate=0.1, steps=21),
    BufferedGaussian(noise_multiplier=2, first=0.5, weights=(0.1,), decays=(0.8,), sample_rate=0.1, steps=21),
    TreeGaussian(noise_multiplier=4, leaves=6, sample_rate=0.1, steps=21),
    LaplaceNoise(scale=3, sample_rate=0.1, steps=5),
    RandomizedResponse(epsilon=0.3, bits=2, sample_rate=0.1, steps=5),
    DiscreteLaplaceNoise(decay=0.3, sensitivity=2, sample_rate=0.1, steps=5),
    MixtureOfGaussians(noise_stddev=3, sensitivities=(0.0, 1.0, 2.0), probabilities=(0.7, 0.2, 0.1), sample_rate=0.5),
    DiscreteGaussianNoise(stddev=4, sensitivity=2, sample_rate=0.1, steps=5),
    ManyWayResponse(epsilon=0.3, answers=4, steps=5),
    ManyWayResponse(epsilon=0.3, answers=4, steps=5, neighbours=Adjacency.ZERO_OUT),
    ExponentialChoice(epsilon=0.3, steps=5),
    UnprotectedRelease(),
    BestOfLaplaceRuns(scale=20, mean_runs=2, run_steps=10),
    EpsilonDeltaDp(epsilon=0.5, delta=1e-8, sample_rate=0.1, steps=5),
    EpsilonDeltaDp(epsilon=0.5, delta=1e-8, steps=5, neighbours=Adjacency.REPLACE_ONE),
    SecretMixture(probabilities=(0.1, 0.2), noise_multiplier=5, steps=5),
]
OF_BATCHES = (
    GroupGaussian(noise_multiplier=2, group_size=3, sample_rate=0.1, steps=20),
    ReplacedGaussian(noise_multiplier=2, sample_rate=0.1, steps=20),
    TruncatedGaussian(noise_multiplier=2, largest_batch=15, examples=100, sample_rate=0.1, steps=20),
    RedrawnGaussian(noise_multiplier=4, examples=100, draws=5, steps=20),
    RedrawnGaussian(noise_multiplier=4, examples=100, draws=5, steps=20, neighbours=Adjacency.ZERO_OUT),
)
SLOW = [
    pytest.param(event, marks=pytest.mark.slow) for event in (IN_BINS, ZERO_CONCENTRATED, BEST_OF_RUNS, *OF_BATCHES)
]


def _named(event: Event) -> str:
    return f"{event.tag}, {event.adjacency}, {event.batches_needed}"


def _planned(folder: Path, event: Event) -> Path:
    ledger, report_path = folder / "ledger.json", folder / "plan.report.json"
    ledger.write_text(json.dumps([encode_value(event)]))
    assert run(["account", "--ledger", str(ledger), "--delta", "1e-5", "-o", str(report_path), "-q"]) == 0
    return report_path


@pytest.mark.parametrize("event", [*KINDS, *SLOW], ids=_named)
def test_what_an_event_says_of_itself_is_verified(event: Event, tmp_path: Path) -> None:
    assert run(["verify", str(_planned(tmp_path, event)), "-q"]) == 0


def _wrong_value(event: Event, name: str) -> object:
    """A wrong word in place of the right one."""
    right = getattr(event, name)
    wrong: dict[str, tuple[object, ...]] = {
        "adjacency": (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE),
        "unit": (PrivacyUnit.SECRET, PrivacyUnit.EXAMPLE),
        "batches_needed": (None,),
        "contribution": ("nothing is known of what one example changes",),
    }
    return next(value for value in wrong[name] if value != right)


@pytest.mark.forged("the event says what does not hold of it")
@pytest.mark.parametrize("name", ["adjacency", "unit", "batches_needed", "contribution"])
@pytest.mark.parametrize("event", few([*KINDS, *SLOW], *range(0, len(KINDS), 4)), ids=_named)
def test_a_wrong_word_of_an_event_is_refuted(
    event: Event, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "batches_needed" and event.batches_needed is None:
        return  # to ask for more than is needed is no fault
    wrong = _wrong_value(event, name)
    constant = name in ("unit", "contribution")
    monkeypatch.setattr(type(event), name, wrong if constant else property(lambda self: wrong))
    assert run(["verify", str(_planned(tmp_path, event)), "-q"]) == (3 if name == "contribution" else 1)
