"""A plan that protects all records of a user says so of what an attacker may find out."""

from __future__ import annotations

import pytest

from privctl.cli import run

STEPS = ["--noise-multiplier", "2", "--sample-rate", "0.05", "--steps", "20"]
GROUPS = ["--mechanism", "group-gaussian", "--group-size", "3"]


@pytest.mark.parametrize(
    ("more", "delta", "says"),
    [
        (GROUPS, "1e-5", "a guess whether a user's records were used is right"),
        (GROUPS, "0", "tell with certainty whether a user's records were used."),
        (["--no-peers", "--method", "tight"], "1e-5", "a guess whether a record was used is right"),
    ],
)
def test_whose_use_is_guessed(more: list[str], delta: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", *more, *STEPS, "--delta", delta]) == 0
    assert says in " ".join(capsys.readouterr().out.split())
