"""``privctl account`` where nothing is protected, or where noise is too small to compute with: one plain sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run

_BEYOND = "so small or so large that floats cannot hold them; no bound is computed"


@pytest.mark.parametrize(
    "beside", [[], [{"type": "sampled-gaussian", "noise_multiplier": 4, "sample_rate": 1, "steps": 2}]]
)
def test_a_release_without_noise_is_no_protection(
    beside: list[dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, report = tmp_path / "events.json", tmp_path / "plan.report.json"
    file.write_text(json.dumps([{"type": "non-private"}, *beside]))
    assert run(["account", "--ledger", str(file), "--delta", "1e-5", "-o", str(report)]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert stdout.startswith(
        "No protection: no finite epsilon follows at delta 1e-05, so an attacker may be able to tell"
    )
    assert "Nothing to rely on:" in stdout
    assert "a release without noise may show one example as it is" in stdout
    assert "To rely on" not in stdout
    assert "holds if" not in stdout
    assert " yes " not in stdout
    assert run(["verify", str(report), "-q"]) == 0


def test_a_search_with_tiny_noise_has_the_smaller_bound_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Its losses are beyond the grid, so theorem 2 bounds both."""
    asked = ["--mechanism", "search", "--expected-runs", "3", "--noise-multiplier", "0.03", "--delta", "1e-5"]
    assert run(["account", *asked]) == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "No protection" not in stdout
    assert "raises it to 722.2" in stdout
    assert "To rely on: privacy loss distribution, epsilon 722.195" in stdout


@pytest.mark.parametrize(
    ("noise", "more", "says"),
    [
        ("5e-324", [], _BEYOND),
        ("5e-324", ["--batches", "shuffled", "--sample-rate", "0.1", "--steps", "20"], _BEYOND),
        ("5e-324", ["--mechanism", "tree", "--tree-steps", "4", "--steps", "8"], _BEYOND),
        ("5e-324", ["--batches", "balls-and-bins", "--sample-rate", "0.1", "--steps", "10"], _BEYOND),
        ("0.03", ["--batches", "balls-and-bins", "--sample-rate", "0.1", "--steps", "10"], _BEYOND),
        ("1e-5", ["--mechanism", "blt", "--buffers", "1", "--steps", "8"], "--noise-multiplier is 1e-05; a plan that"),
        ("1e-5", ["--mechanism", "banded", "--bands", "2", "--sample-rate", "0.1", "--steps", "8"], "at least 0.001"),
    ],
)
def test_noise_too_small_for_floats_is_one_sentence(
    noise: str, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", "--noise-multiplier", noise, "--delta", "1e-5", *more]) == 2
    stderr = capsys.readouterr().err
    assert says in " ".join(stderr.split())
    assert stderr.count("privctl:") == 1


def test_a_formula_that_claims_an_infinite_epsilon_holds_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--noise-multiplier", "1e-308", "--batches", "shuffled", "--sample-rate", "0.1", "--steps", "20"]
    assert run(["account", *asked, "--delta", "1e-5", "--no-peers"]) == 0
    assert capsys.readouterr().out.startswith("No protection: no finite epsilon follows")
