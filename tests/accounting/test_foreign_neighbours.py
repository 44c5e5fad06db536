"""Foreign ledgers that state their neighbours or hold releases without noise; events of newer dp_accountings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.cli import run
from privctl.domain.errors import InputError
from privctl.domain.events import (
    Batches,
    DiscreteGaussianNoise,
    EpsilonDeltaDp,
    Event,
    ExponentialChoice,
    LaplaceNoise,
    Ledger,
    ManyWayResponse,
    RedrawnGaussian,
    SampledGaussian,
    TreeGaussian,
    TruncatedGaussian,
    UnprotectedRelease,
    ZeroConcentratedDp,
)
from privctl.domain.guarantee import Adjacency
from privctl.plan.foreign import foreign_events

NOISE = {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}


def _stating(tree: dict[str, object], neighbours: str) -> tuple[Event, ...]:
    return foreign_events(json.dumps(tree | {"neighbours": neighbours}), "x") or ()


@pytest.mark.parametrize(
    "text",
    [
        "NonPrivateDpEvent()",
        "GaussianDpEvent(noise_multiplier=0)",
        "DiscreteLaplaceDpEvent(noise_parameter=0, sensitivity=1)",
        "PoissonSampledDpEvent(sampling_probability=0.1, event=LaplaceDpEvent(noise_multiplier=0.0))",
        "RandomizedResponseDpEvent(noise_parameter=0.0, num_buckets=3)",
        "SampledWithoutReplacementDpEvent(source_dataset_size=9, sample_size=2, event=NonPrivateDpEvent())",
        "MixtureOfGaussiansDpEvent(standard_deviation=0, sensitivities=[1.0, 2.0], sampling_probs=[0.5, 0.5])",
        "SingleEpochTreeAggregationDpEvent(noise_multiplier=0.0, step_counts=3)",
        "EpsilonDeltaDpEvent(epsilon=inf, delta=0.0)",
    ],
)
def test_what_has_no_noise_has_no_epsilon(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger"
    path.write_text(f"ComposedDpEvent(events=[GaussianDpEvent(noise_multiplier=9.0), {text}])")
    found = foreign_events(path.read_text(), "x") or ()
    assert found[-1] == UnprotectedRelease()
    assert epsilon_bound(Ledger(events=found), 0.5) == math.inf
    assert run(["account", "--ledger", str(path), "--delta", "1e-5", "--json"]) == 0
    assert [g["epsilon"] for g in json.loads(capsys.readouterr().out)["guarantees"]] == [None, None]


@pytest.mark.parametrize(
    "text",
    [
        "GaussianDpEvent(noise_multiplier=inf)",
        "EpsilonDeltaDpEvent(epsilon=0, delta=0.0)",
        "PoissonSampledDpEvent(sampling_probability=0, event=GaussianDpEvent(noise_multiplier=0.0))",
        "MixtureOfGaussiansDpEvent(standard_deviation=0, sensitivities=[0.0], sampling_probs=[1.0])",
        "ExponentialMechanismDpEvent(epsilon=0)",
        "RandomizedResponseDpEvent(noise_parameter=0.0, num_buckets=1)",
    ],
)
def test_what_tells_nothing_costs_nothing(text: str) -> None:
    with pytest.raises(InputError, match="no event that spends privacy"):
        foreign_events(text, "x")


def test_events_of_newer_versions() -> None:
    events = (
        "EpsilonDeltaDpEvent(epsilon=0.5, delta=1e-7)",
        "ExponentialMechanismDpEvent(epsilon=0.2)",
        "PermuteAndFlipDpEvent(epsilon=0.25)",
        "DiscreteGaussianDpEvent(sigma=4.0, sensitivity=2.0, dimension=1)",
        "DiscreteGaussianDpEvent(sigma=4.0, sensitivity=2.0, dimension=None)",
    )
    text = f"ComposedDpEvent(events=[{', '.join(events)}])"
    assert foreign_events(text, "x") == (
        EpsilonDeltaDp(epsilon=0.5, delta=1e-7),
        ExponentialChoice(epsilon=0.2),
        LaplaceNoise(scale=4.0),
        DiscreteGaussianNoise(stddev=4.0, sensitivity=2),
        ZeroConcentratedDp(rho=0.125),
    )


def test_samples_with_replacement() -> None:
    drawn = {"class_name": "SampledWithReplacementDpEvent", "source_dataset_size": 1000, "sample_size": 10}
    for neighbours, expected in (
        ("add-or-remove", Adjacency.ADD_OR_REMOVE),
        ("replace-one", Adjacency.REPLACE_ONE),
        ("replace-special", Adjacency.ZERO_OUT),
    ):
        (event,) = _stating(drawn | {"event": NOISE}, neighbours)
        assert event == RedrawnGaussian(noise_multiplier=1.0, examples=1000, draws=10, neighbours=expected)


def test_replaced_by_a_special_record() -> None:
    """Trees and answers have bounds of their own; samples without replacement are read for any replacement."""
    tree = {"class_name": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 2.0, "step_counts": 8}
    answers = {"class_name": "RandomizedResponseDpEvent", "noise_parameter": 0.5, "num_buckets": 2}
    both = {"class_name": "ComposedDpEvent", "events": [tree, answers, NOISE]}
    found = _stating(both, "replace-special")
    assert found == (
        TreeGaussian(noise_multiplier=2.0, leaves=8, sample_rate=1 / 8, steps=8),
        ManyWayResponse(epsilon=math.log1p(2.0), answers=2, neighbours=Adjacency.ZERO_OUT),
        SampledGaussian(noise_multiplier=1.0),
    )
    assert Ledger(events=found).adjacency is Adjacency.ZERO_OUT
    sampled = {"class_name": "SampledWithoutReplacementDpEvent", "source_dataset_size": 100, "sample_size": 10}
    assert _stating(sampled | {"event": NOISE}, "replace-special") == (
        SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, batches=Batches.FIXED_SIZE),
    )


def test_a_record_that_is_zeroed_keeps_its_place_in_a_full_batch() -> None:
    cut = TruncatedGaussian(noise_multiplier=2, largest_batch=3, examples=9, sample_rate=0.1)
    with pytest.raises(ValueError, match="truncated-gaussian, whose bound is for a record removed"):
        _ = Ledger(events=(cut, TreeGaussian(noise_multiplier=2, leaves=4))).adjacency


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("ledger", "says"),
    [
        (f"GaussianDpEvent(noise_multiplier={HUGE})", "too large"),
        (f"PoissonSampledDpEvent(sampling_probability={HUGE}, event=GaussianDpEvent(noise_multiplier=1))", "too large"),
        (f"RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets={HUGE})", "too large"),
        ("DiscreteGaussianDpEvent(sigma=1, sensitivity=1e308, dimension=2)", "too large"),
        ("DiscreteGaussianDpEvent(sigma=-1, sensitivity=1.5, dimension=2)", "sigma is -1; it must be at least 0"),
        (f"[[{HUGE}, 0.1, 1]]", "noise_multiplier"),
        (f"[[1, {HUGE}, 1]]", "sample_rate"),
        (f"[[1, 0.1, {HUGE}]]", "steps"),
    ],
)
def test_numbers_that_no_mechanism_has(ledger: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        foreign_events(ledger, "ledger")
