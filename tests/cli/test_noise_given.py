"""``privctl noise --noise-stddev``: noise of a given size without facts, which guarantees nothing and says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from privctl.cli import run
from privctl.domain.mechanism import Calibration, WeightNoise
from tests.cli.noised import FACTS, WEIGHTS, report_at, snapshot


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "m.safetensors", WEIGHTS)


def test_noise_of_a_given_size_guarantees_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["noise", str(model), "-q", "--noise-stddev", "0.01"]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "NO USEFUL GUARANTEE: the standard deviation was given" in stdout
    assert "Do not call this model private" in stdout
    added = (load_file(model.with_name("m.noised.safetensors"))["embed"] - WEIGHTS["embed"]).ravel()
    assert abs(added.std() / 0.01 - 1) < 5 / np.sqrt(2 * added.size)
    report = report_at(model.with_name("m.noised.report.json"))
    assert report.guarantees == ()
    assert isinstance(report.mechanism, WeightNoise)
    assert report.mechanism.training is None
    assert report.mechanism.calibration is Calibration.GIVEN
    assert {"epsilon", "delta"}.isdisjoint(report.parameters)
    assert report.warnings[0].startswith("NO USEFUL GUARANTEE")
    assert not any("guarantees speak" in warning for warning in report.warnings)
    assert run(["inspect", str(model.with_name("m.noised.safetensors")), "-q"]) == 0
    assert run(["noise", str(model.with_name("m.noised.safetensors"))]) == 2  # no facts came of it


def test_several_sizes_are_nested_and_named(model: Path) -> None:
    assert run(["noise", str(model), "-q", "--noise-stddev", "0.01", "--noise-stddev", "0.02"]) == 0
    quiet, loud = (load_file(model.with_name(f"m.noised-stddev{s}.safetensors"))["embed"] for s in ("0.01", "0.02"))
    assert (loud - quiet).std() == pytest.approx(np.sqrt(0.02**2 - 0.01**2), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["--noise-stddev", "0.01", "--epsilon", "1"], "so --epsilon would change nothing"),
        (["--noise-stddev", "0.01", *FACTS], "so --epochs, --learning-rate, --clip-norm, --dataset-size, --batch-size"),
        (["--noise-stddev", "0.01", "--calibration", "gaussian"], "so --calibration would"),
        (["--noise-stddev", "0.01", "--noise-stddev", "0.01"], "are the same or too close"),
        (["--noise-stddev", "0"], "--noise-stddev is 0"),
    ],
)
def test_bad_calls_change_nothing(
    model: Path, arguments: list[str], because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(model.parent)
    assert run(["noise", str(model), *arguments]) == 2
    assert because in capsys.readouterr().err
    assert snapshot(model.parent) == before


def test_noise_too_small_to_be_stored_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["noise", str(model), "--noise-stddev", "1e-12"]) == 3
    assert "give a larger --noise-stddev" in capsys.readouterr().err


def _epsilon(report: dict[str, Any]) -> None:
    report["parameters"] |= {"epsilon": 1.0, "delta": 1e-6}


def _guarantee(report: dict[str, Any]) -> None:
    bound = {"name": "nonconvex", "epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one", "accountant": "exact"}
    report["guarantees"] = [bound | {"status": "conditional", "sensitivity": 0.01, "noise_multiplier": 1.0}]


def _calibration(report: dict[str, Any]) -> None:
    report["parameters"]["calibration"] = report["mechanism"]["calibration"] = "gaussian"


def _stddev(report: dict[str, Any]) -> None:
    report["mechanism"] |= {"noise_stddev": 0.02, "candidate_stddevs": [0.02]}


@pytest.mark.parametrize("change", [None, _epsilon, _guarantee, _calibration, _stddev])
def test_verify_passes_it_and_refuses_any_promise(
    model: Path, change: Callable[[dict[str, Any]], None] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["noise", str(model), "-q", "--noise-stddev", "0.01"]) == 0
    path = model.with_name("m.noised.report.json")
    forged = json.loads(path.read_text())
    if change is not None:
        change(forged)
    again = model.with_name("again.report.json")
    again.write_text(json.dumps(forged))
    assert run(["verify", str(again), "-q"]) == (0 if change is None else 1), capsys.readouterr().out
