"""``retrain dp-sgd --bands``: trained, verified, forged, interrupted and resumed, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.accounting.banded import banded_coefficients
from privctl.cli import run
from privctl.domain.events import BandedGaussian, Ledger
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.steps.correlated_noise import CorrelatedNoise
from privctl.train.steps.sampling import CyclicPoisson
from tests.cli.short_runs import (
    before_each_step,
    dp_sgd,
    drawn_batches,
    half_the_noise,
    interrupted_dp_sgd,
    of_steps_own,
    outcomes_of_weights,
    prepared,
    some_quick,
    verified_after,
)

RECORDS, STEPS, BANDS = 30, 7, 3
OPTIONS = ["--noise-multiplier", "1", "--batch-size", "6", "--steps", str(STEPS), "--device", "cpu"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("banded"), RECORDS)


def call(start: Path, output: Path, *more: str) -> list[str]:
    return dp_sgd(start, output, "-q", *OPTIONS, *more)


@pytest.fixture(scope="module")
def trained(start: Path) -> Path:
    assert run(call(start, start / "out", "--bands", str(BANDS))) == 0
    return start / "out.report.json"


def test_a_run_states_its_noise_and_is_verified(trained: Path) -> None:
    report = read_report(trained)
    coefficients = banded_coefficients(BANDS, STEPS)
    event = BandedGaussian(noise_multiplier=1, coefficients=coefficients, sample_rate=0.2, steps=STEPS)
    assert report.mechanism == Ledger(events=(event,))
    assert tuple(report.parameters["coefficients"]) == coefficients
    assert report.parameters["batches"] == "cyclic-poisson"
    assert run(["verify", str(trained), "-q"]) == 0
    assert not trained.with_name("out.run").exists()


def _longer(values: list[float]) -> list[float]:
    return [1.1 * value for value in values]


def _with_coefficients(change: Callable[[list[float]], list[float]], *places: str) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        for place in places:
            holder = report["parameters"] if place == "parameters" else report["mechanism"]["events"][0]
            holder["coefficients"] = change(holder["coefficients"])

    return edit


def _fewer_steps(report: Any) -> None:
    report["mechanism"]["events"][0]["steps"] = STEPS - 1


FORGERIES: dict[str, Callable[[Any], None]] = {
    "columns of norm 1.1": _with_coefficients(_longer, "parameters", "ledger"),
    "columns of norm 1.1 in the ledger alone": _with_coefficients(_longer, "ledger"),
    "half of the noise": half_the_noise,
    "taking part a step too early": _with_coefficients(lambda values: values[:-1], "ledger"),
    "a step less": _fewer_steps,
    "noise of each step's own": of_steps_own(0.2, STEPS),
    "no coefficients": lambda report: report["parameters"].pop("coefficients"),
    "other batches": lambda report: report["parameters"].update(batches="poisson"),
}


#: Those that are tried in the quick suite.
_QUICK = ("columns of norm 1.1", "half of the noise", "taking part a step too early")


@pytest.mark.forged("each is a lie about the noise or about who takes part when")
@pytest.mark.parametrize("name", some_quick(list(FORGERIES), _QUICK))
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, FORGERIES[name]) == 1
    assert "REFUTED" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_its_parts_and_its_noise(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_batches(monkeypatch, CyclicPoisson)
    remembered = before_each_step(
        monkeypatch, CorrelatedNoise, lambda noise: sum(entry is not None for entry in noise._history)
    )
    interrupted_dp_sgd(start, tmp_path / "out", DpSgdSettings(bands=BANDS), batch_size=6, steps=STEPS)
    assert set(drawn) == {0}
    assert run(call(start, tmp_path / "out", "--resume")) == 2  # begun with correlated noise
    assert run(call(start, tmp_path / "out", "--resume", "--bands", str(BANDS))) == 0
    assert sorted(drawn) == list(range(STEPS))
    assert remembered == {step: min(step, BANDS - 1) for step in range(STEPS)}
    parts = [set().union(*(drawn[step] for step in range(turn, STEPS, BANDS))) for turn in range(BANDS)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert not (tmp_path / "out.run").exists()
    assert run(["verify", str(tmp_path / "out.report.json"), "-q"]) == 0


@pytest.mark.slow
@pytest.mark.forged("another law of the noise than the run's")
def test_how_the_weights_moved_shows_how_noise_was_correlated(start: Path, tmp_path: Path) -> None:
    more = ["--optimizer", "sgd", "--noise-multiplier", "20", "--steps", "20", "--bands", "5"]
    assert run(call(start, tmp_path / "out", *more)) == 0
    lies = [{"coefficients": [1.0]}, {"noise_multiplier": 40.0}, {"noise_multiplier": 10.0}]
    as_it_was, *found = outcomes_of_weights(tmp_path / "out.report.json", {}, *lies)
    assert as_it_was is Outcome.CONSISTENT
    assert found == [Outcome.REFUTED] * 3


@pytest.mark.slow
@pytest.mark.forged("a lost step that there was not, which leaves epsilon as it is")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_said_to_be_lost_does_not_keep_verify_from_the_weights(
    start: Path, tmp_path: Path, optimizer: str
) -> None:
    more = ["--optimizer", optimizer, "--noise-multiplier", "20", "--steps", "20", "--bands", "3"]
    assert run(call(start, tmp_path / "out", *more)) == 0
    lost = {"updates": 19}
    lie = {"noise_multiplier": 40.0} if optimizer == "sgd" else {"learning_rate": 1e-7}
    found = outcomes_of_weights(tmp_path / "out.report.json", lost, lost | lie)
    assert found == [Outcome.CONSISTENT, Outcome.REFUTED]


@pytest.mark.slow
def test_one_band_is_dp_sgd(start: Path, tmp_path: Path) -> None:
    assert run(call(start, tmp_path / "one", "--bands", "1")) == 0
    assert run(call(start, tmp_path / "none")) == 0
    one, none = (read_report(tmp_path / f"{name}.report.json") for name in ("one", "none"))
    assert one.mechanism == none.mechanism
    assert one.guarantees == none.guarantees
    assert one.parameters.keys() == none.parameters.keys()


def test_what_does_not_go_with_it_is_refused(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(call(start, tmp_path / "out", "--bands", "3", "--batches", "balls-and-bins")) == 2
    assert "--batches balls-and-bins takes no parts in turn" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_too_many_bands_are_refused(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(call(start, tmp_path / "out", "--bands", "6")) == 2
    assert "--bands is 6; at a sampling rate of 0.2 and 7 steps it must be at most 5" in capsys.readouterr().err
