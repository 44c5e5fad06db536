"""``retrain dp-sgd --buffers``: trained, verified, forged, resumed, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from privctl.accounting.buffered_search import buffered_matrix
from privctl.cli import run
from privctl.domain.events import BufferedGaussian, Ledger
from privctl.domain.guarantee import Adjacency
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.steps.buffered_noise import BufferedNoise
from privctl.train.steps.sampling import FixedOrder
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

RECORDS, BINS, STEPS, BUFFERS = 23, 4, 10, 2
OPTIONS = ["--noise-multiplier", "1", "--batch-size", "6", "--steps", str(STEPS), "--device", "cpu"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("buffered"), RECORDS)


def call(start: Path, output: Path, *more: str) -> list[str]:
    return dp_sgd(start, output, "-q", *OPTIONS, *more)


@pytest.fixture(scope="module")
def trained(start: Path) -> Path:
    assert run(call(start, start / "out", "--buffers", str(BUFFERS))) == 0
    return start / "out.report.json"


def test_a_run_states_its_noise_and_is_verified(trained: Path) -> None:
    report = read_report(trained)
    matrix = buffered_matrix(BUFFERS, BINS, STEPS)
    event = BufferedGaussian(
        noise_multiplier=1, first=matrix.first, weights=matrix.weights, decays=matrix.decays, sample_rate=1 / BINS,
        steps=STEPS,
    )  # fmt: skip
    assert report.mechanism == Ledger(events=(event,))
    assert report.parameters["matrix"]["decays"] == list(matrix.decays)
    assert report.parameters["batches"] == "fixed-order"
    assert {guarantee.adjacency for guarantee in report.guarantees} == {Adjacency.ZERO_OUT}
    assert run(["verify", str(trained), "-q"]) == 0
    assert not trained.with_name("out.run").exists()


def _scaled(factor: float, *places: str) -> Callable[[Any], None]:
    def edit(report: Any) -> None:
        for place in places:
            holder = report["parameters"]["matrix"] if place == "parameters" else report["mechanism"]["events"][0]
            holder["first"] *= factor
            holder["weights"] = [factor * weight for weight in holder["weights"]]

    return edit


def _fewer_steps(report: Any) -> None:
    report["mechanism"]["events"][0]["steps"] = STEPS - 2


def _longer_passes(report: Any) -> None:
    for holder in (report["parameters"], report["mechanism"]["events"][0]):
        holder["sample_rate"] = 1 / (2 * BINS)


FORGERIES: dict[str, Callable[[Any], None]] = {
    "rows that move by 1.1": _scaled(1.1, "parameters", "ledger"),
    "rows that move by 1.1 in the ledger alone": _scaled(1.1, "ledger"),
    "half of the noise": half_the_noise,
    "passes twice as long": _longer_passes,
    "fewer steps": _fewer_steps,
    "noise of each step's own": of_steps_own(0.25, STEPS),
    "no matrix": lambda report: report["parameters"].pop("matrix"),
    "other batches": lambda report: report["parameters"].update(batches="poisson"),
}


#: Those that are tried in the quick suite.
_QUICK = ("half of the noise",)


@pytest.mark.forged("each is a lie about the noise or about who takes part when")
@pytest.mark.parametrize("name", some_quick(list(FORGERIES), _QUICK))
def test_what_is_not_so_is_refuted(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified_after(trained, FORGERIES[name]) == 1
    assert "REFUTED" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_its_order_and_its_buffers(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_batches(monkeypatch, FixedOrder)
    remembered = before_each_step(monkeypatch, BufferedNoise, lambda noise: all(noise._buffers))
    interrupted_dp_sgd(start, tmp_path / "out", DpSgdSettings(buffers=BUFFERS), batch_size=6, steps=STEPS)
    assert set(drawn) == {0}
    assert run(call(start, tmp_path / "out", "--resume")) == 2  # begun with correlated noise
    assert run(call(start, tmp_path / "out", "--resume", "--buffers", "3")) == 2
    assert run(call(start, tmp_path / "out", "--resume", "--buffers", str(BUFFERS))) == 0
    assert sorted(drawn) == list(range(STEPS))
    assert remembered == {step: step > 0 for step in range(STEPS)}
    assert sorted(chain(*(drawn[step] for step in range(BINS)))) == list(range(RECORDS))
    assert all(drawn[step] == drawn[step % BINS] for step in range(STEPS))
    assert not (tmp_path / "out.run").exists()
    assert run(["verify", str(tmp_path / "out.report.json"), "-q"]) == 0


@pytest.mark.slow
@pytest.mark.forged("another law of the noise than the run's")
def test_how_the_weights_moved_shows_how_noise_was_correlated(start: Path, tmp_path: Path) -> None:
    more = ["--optimizer", "sgd", "--noise-multiplier", "20", "--steps", "20", "--buffers", "2"]
    assert run(call(start, tmp_path / "out", *more)) == 0
    lies = [
        {"matrix": {"first": 1.0, "weights": [0.0], "decays": [0.0]}},
        {"noise_multiplier": 40.0},
        {"noise_multiplier": 10.0},
    ]
    as_it_was, *found = outcomes_of_weights(tmp_path / "out.report.json", {}, *lies)
    assert as_it_was is Outcome.CONSISTENT
    assert found == [Outcome.REFUTED] * 3


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--batches", "balls-and-bins"], "--batches balls-and-bins uses no record in a fixed place"),
        (["--bands", "3"], "--bands does so in another way"),
        (["--target-unclipped-quantile", "0.5"], "--buffers correlates the noise of steps, which needs one clip norm"),
        (["--search", "learning-rate=1e-4,1e-3"], "remove --buffers"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], what: str
) -> None:
    assert run(call(start, tmp_path / "out", "--buffers", "3", *more)) == 2
    assert what in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
