"""The whole story as a script: every step on a tiny model, and what each of them left."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.guarantee import Status
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from tests.audits import tiny
from tests.forked import Forked

BRANCHES = ("private", "noised")


@pytest.fixture(scope="module")
def story(root: Path, tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> tuple[Path, str]:
    """The folder that the script made, and what it printed."""
    here = tmp_path_factory.mktemp("story")
    model = tiny.save_model(here / "model")
    train = tiny.write_jsonl(here / "train.jsonl", tiny.sentences(120, seed=1))
    held_out = tiny.write_jsonl(here / "held-out.jsonl", tiny.sentences(120, seed=2))
    settings = {
        "PRIVCTL": forked.shell(),
        "CANARIES": "30",
        "AUDIT": "--attack loss --no-cache",
    }
    script = [str(root / "examples" / "whole-story.sh"), str(model), str(train), str(held_out), "out"]
    done = subprocess.run(
        [*script, "--epochs", "1", "--batch-size", "50", "--optimizer", "sgd", "--learning-rate", "0.01"],
        cwd=here, env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return here / "out", done.stdout


def test_every_step_ends_as_it_should(story: tuple[Path, str]) -> None:
    ended = {line.split()[0]: line.split(None, 1)[1] for line in story[1].splitlines() if "." in line.split()[0]}
    for name in BRANCHES:
        assert ended[f"{name}.verify"] == "pass"
        assert ended[f"{name}.gate"] == "pass", (story[0] / f"{name}.gate.txt").read_text()
        assert ended[f"{name}.strict-gate"].startswith("FAILED, see ")
        assert ended[f"{name}.audit"] == "pass"


@pytest.mark.parametrize("name", BRANCHES)
def test_verification_refutes_nothing_that_anybody_may_rely_on(story: tuple[Path, str], name: str) -> None:
    found = read_report(story[0] / f"{name}.verify.report.json").verdicts
    assert not [v for v in found if v.outcome is Outcome.REFUTED and v.decisive]
    assert {v.outcome for v in found if v.status is Status.CONDITIONAL} == {Outcome.PROVED}


@pytest.mark.parametrize("name", BRANCHES)
def test_gates_say_why(story: tuple[Path, str], name: str) -> None:
    verdict_text = (story[0] / f"{name}.gate.txt").read_text()
    assert all(f"required_steps: {step}: {step}" in verdict_text for step in ("retrain", "audit", "verify"))
    assert "\x1b" not in verdict_text
    assert max(len(line) for line in verdict_text.splitlines() if not line.startswith("    at ")) <= 80
    strict = (story[0] / f"{name}.strict-gate.txt").read_text()
    assert "no guarantee counts" in strict
    assert "INCONCLUSIVE by audit" in " ".join(strict.split())  # an audit of so few records proves nothing


def test_the_page_holds_each_step_of_both_models(story: tuple[Path, str]) -> None:
    page = (story[0] / "page.html").read_text()
    for name in ("private", "clipped", "noised", "private.audit", "noised.audit", "private.verify", "noised.verify"):
        assert f">{name}<" in page, name
    for step in ("retrain", "noise", "audit", "verify"):
        assert f"<strong>{step}</strong>" in page


@pytest.mark.parametrize("name", BRANCHES)
def test_model_cards_have_their_section(story: tuple[Path, str], name: str) -> None:
    card = (story[0] / name / "README.md").read_text()
    assert card.count("<!-- privctl:begin -->") == card.count("<!-- privctl:end -->") == 1
    assert "Verified: " in card


def test_policies_are_what_the_script_says(story: tuple[Path, str]) -> None:
    def judged(name: str) -> dict[str, Any]:
        import tomllib

        found: dict[str, Any] = tomllib.loads((story[0] / name).read_text())
        return found

    assert judged("privctl-policy.toml")["max_epsilon"] == 8
    assert judged("strict-policy.toml")["require"] == ["proved"]
    assert json.loads((story[0] / "noised.report.json").read_text())["step"] == "noise"
