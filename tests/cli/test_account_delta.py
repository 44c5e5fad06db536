"""The delta of a plan that states none, and what a plan of correlated noise says of its matrix."""

from __future__ import annotations

import json

import pytest

from privctl.cli import run


def test_delta_follows_from_the_number_of_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """As ``retrain`` chooses it: 1e-5, or 200000^-1.1 = 1.4753e-6."""
    for size, delta in ((1000, 1e-5), (200_000, 1.4753e-6)):
        facts = ["--noise-multiplier", "1", "--dataset-size", str(size), "--batch-size", "100", "--epochs", "0.01"]
        assert run(["account", *facts, "--method", "rdp", "--json"]) == 0
        deltas = {guarantee["delta"] for guarantee in json.loads(capsys.readouterr().out)["guarantees"]}
        assert list(deltas) == [pytest.approx(delta, rel=1e-4)]


def test_the_coefficients_of_correlated_noise_are_counted_and_summed(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["account", "--mechanism", "banded", "--bands", "2", "--noise-multiplier", "1", "--delta", "1e-6"]
    assert run([*call, "--sample-rate", "0.1", "--steps", "20", "-q"]) == 0
    assert "coefficients (2 values, sum 1." in " ".join(capsys.readouterr().out.split())
