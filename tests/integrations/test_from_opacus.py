"""Reports of what Opacus says it did."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privctl
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import AssumptionState, Status


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file({"weight": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def engine(history: Any, **more: Any) -> Any:
    return SimpleNamespace(accountant=SimpleNamespace(history=history), **more)


def test_a_training_by_opacus_is_reported_as_asserted(tmp_path: Path) -> None:
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,)))
    model = nn.Linear(5, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        privacy = opacus.PrivacyEngine()
        module, optimizer, loader = privacy.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=6),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(module(inputs), labels).backward()
            optimizer.step()
        theirs = privacy.get_epsilon(1e-5)
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    report = privctl.from_opacus(privacy, path, examples=60, delta=1e-5, clip_norm=1.0)
    (guarantee,) = report.guarantees
    assert report.mechanism == Ledger(events=(SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=10),))
    # Opacus adds an error of its own to the PRV accountant's answer.
    assert guarantee.epsilon == pytest.approx(theirs, rel=0.01)
    assert guarantee.status is Status.CONDITIONAL
    assert {a.state for a in guarantee.assumptions} == {AssumptionState.ASSERTED}
    assert privctl.verify(path).exit_code is ExitCode.OK
    refused = privctl.gate(path, max_epsilon=100)
    assert refused.outcome is GateOutcome.FAIL
    assert "reported ledger" in refused.of(GateOutcome.FAIL)[0].message
    names = [a.name for a in guarantee.assumptions]
    accepted = privctl.gate(path, max_epsilon=100, accepted_assumptions=names)
    assert [f.message for f in accepted.findings if f.outcome is not GateOutcome.PASS] == []


def test_several_entries_compose(weights: Path) -> None:
    report = privctl.from_opacus(engine([(1.0, 0.1, 5), (2.0, 0.2, 3)], secure_mode=True), weights, examples=50)
    assert report.parameters["steps_begun"] == 8
    assert report.parameters["noise_source"] == "Opacus, secure mode"
    assert privctl.verify(weights).exit_code is ExitCode.OK


@pytest.mark.parametrize("whole", [lambda history: history, lambda history: SimpleNamespace(history=history)])
def test_a_history_without_its_engine_gives_the_same_guarantee(whole: Any, weights: Path) -> None:
    history = [(1.0, 0.1, 5), (2.0, 0.1, 5)]
    of_engine = privctl.from_opacus(engine(history), weights, examples=50)
    alone = privctl.from_opacus(whole(history), weights, examples=50, force=True)
    assert alone.guarantees == of_engine.guarantees
    assert alone.mechanism == of_engine.mechanism
    assert privctl.verify(weights).exit_code == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (engine([]), "history is empty"),
        (engine(None), "no accountant.history"),
        (SimpleNamespace(), "a list of .noise multiplier, sampling rate, steps"),
        ([], "history is empty"),
        ([1.1, 0.01, 1000], "entry 1"),
        (engine([(0.0, 0.1, 5)]), "entry 1"),
        (engine([(1.0, 0.1, 5), (1.0, 1.5, 5)]), "entry 2"),
        (engine([(1.0, 0.1)]), "entry 1"),
    ],
)
def test_histories_from_which_nothing_follows_are_refused(given: Any, says: str, weights: Path) -> None:
    with pytest.raises(InputError, match=says):
        privctl.from_opacus(given, weights, examples=50)
    assert not list(weights.parent.glob("*.json"))


def test_settings_that_do_not_fit_are_refused(weights: Path) -> None:
    good = engine([(1.0, 0.1, 5)])
    with pytest.raises(CommandError, match="examples is 0"):
        privctl.from_opacus(good, weights, examples=0)
    with pytest.raises(CommandError, match="delta"):
        privctl.from_opacus(good, weights, examples=50, delta=2.0)
    with pytest.raises(InputError, match="absent"):
        privctl.from_opacus(good, weights.with_name("absent.safetensors"), examples=50)


@pytest.mark.parametrize("entry", [(1.0, 0.1, 10.9), ("1.0", "0.1", "10"), (True, True, True), (1.0, 0.1, 10**400)])
def test_numbers_that_would_be_rounded_or_guessed_are_refused(entry: Any, weights: Path) -> None:
    with pytest.raises(InputError, match="entry 1"):
        privctl.from_opacus(engine([entry]), weights, examples=60)


@pytest.mark.parametrize(
    ("more", "options", "says"),
    [
        ({}, {"clip_norm": float("nan")}, "clip_norm is nan"),
        ({}, {"clip_norm": -1.0}, "clip_norm is -1"),
        ({}, {"examples": True}, "examples is True"),
        ({"dataset": [0] * 600}, {}, "the engine's data set has 600"),
    ],
)
def test_facts_that_do_not_fit_the_engine_are_refused(
    more: dict[str, Any], options: dict[str, Any], says: str, weights: Path
) -> None:
    with pytest.raises(CommandError, match=says):
        privctl.from_opacus(engine([(1.0, 0.1, 10)], **more), weights, **{"examples": 60, **options})


def test_a_delta_that_lets_records_out_whole_is_warned_of(weights: Path) -> None:
    report = privctl.from_opacus(engine([(1.0, 0.1, 10)]), weights, examples=60, delta=0.5)
    assert any("so that publishing each" in warning for warning in report.warnings)


@pytest.mark.parametrize(("history", "warned"), [([(0.01, 0.8, 10)], True), ([(0.8, 0.01, 10)], False)])
def test_a_history_that_looks_swapped_is_warned_of(history: Any, warned: bool, weights: Path) -> None:
    report = privctl.from_opacus(history, weights, examples=600)
    assert any("see that the two were not swapped" in line for line in report.warnings) is warned


def test_a_sampling_rate_above_one_is_refused_by_its_name(weights: Path) -> None:
    with pytest.raises(InputError, match=r"a sampling rate is at most 1, and the second number is 1\.1"):
        privctl.from_opacus([(0.01, 1.1, 1000)], weights, examples=600)


def test_a_rate_that_draws_less_than_one_example_is_warned_of(weights: Path) -> None:
    report = privctl.from_opacus([(1.0, 0.001, 10)], weights, examples=60)
    assert any("draws 0.06 examples a step" in line for line in report.warnings)


def test_the_optimizer_is_held_against_the_history(weights: Path) -> None:
    optimizer = SimpleNamespace(noise_multiplier=0.8, expected_batch_size=6, max_grad_norm=1.5)
    report = privctl.from_opacus([(0.8, 0.01, 10)], weights, examples=600, optimizer=optimizer)
    assert report.parameters["clip_norm"] == 1.5
    for history, says in (([(0.01, 0.8, 10)], "noise multiplier is 0.8, and"), ([(0.8, 0.1, 10)], "batches of 6, and")):
        with pytest.raises(InputError, match=says):
            privctl.from_opacus(history, weights, examples=600, optimizer=optimizer, force=True)
    with pytest.raises(InputError, match="does not say its noise_multiplier"):
        privctl.from_opacus([(0.8, 0.01, 10)], weights, examples=600, optimizer=object(), force=True)
    with pytest.raises(CommandError, match=r"clip_norm is 1, and the optimizer's max_grad_norm 1\.5"):
        privctl.from_opacus([(0.8, 0.01, 10)], weights, examples=600, optimizer=optimizer, clip_norm=1.0, force=True)


def test_a_clip_norm_that_followed_the_examples_gets_no_report(weights: Path) -> None:
    """Its counts are sums of 0 and 1, and one record more moves both the count and what it is divided by."""
    optimizers = pytest.importorskip("opacus.optimizers")
    plain = torch.optim.SGD(nn.Linear(5, 3).parameters(), lr=0.1)
    usual = {"noise_multiplier": 0.8, "max_grad_norm": 1.0, "expected_batch_size": 6}
    adaptive = optimizers.AdaClipDPOptimizer(
        plain, **usual, target_unclipped_quantile=0.5, clipbound_learning_rate=0.2, max_clipbound=10, min_clipbound=0.1,
        unclipped_num_std=2.0,
    )  # fmt: skip
    fixed = optimizers.DPOptimizer(plain, **usual)
    named = type("PrivacyEngineAdaptiveClipping", (), {"accountant": engine([(0.8, 0.01, 10)]).accountant})()
    for history, optimizer in (([(0.8, 0.01, 10)], adaptive), (named, None)):
        with pytest.raises(InputError, match="followed counts of unclipped gradients"):
            privctl.from_opacus(history, weights, examples=600, optimizer=optimizer)
    assert privctl.from_opacus([(0.8, 0.01, 10)], weights, examples=600, optimizer=fixed)
