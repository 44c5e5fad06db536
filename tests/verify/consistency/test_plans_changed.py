"""Plans of kinds that few ask for, with one entry changed: what no longer says what was planned is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from verify.run import Verification, read, verify

_TREE = ["--mechanism", "tree", "--tree-steps", "4", "--steps", "8", "--sample-rate", "0.25", "--epsilon", "8"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.report.json"
    assert run(["account", *_TREE, "--delta", "1e-6", "-q", "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("factor", [2, 1.02])
def test_a_guarantee_is_for_the_noise_that_was_found(tree: Path, index: int, factor: float) -> None:
    assert _verified(tree).exit_code is ExitCode.OK
    data = json.loads(tree.read_text())
    data["guarantees"][index]["noise_multiplier"] *= factor
    tree.write_text(json.dumps(data))
    found = _verified(tree)
    assert found.exit_code is ExitCode.REFUTED
    assert any("noise multiplier of" in v.reason and "in the plan" in v.reason for v in found.verdicts)


def test_each_method_of_a_gaussian_plan_may_have_found_its_own_noise_but_the_one_to_rely_on(tmp_path: Path) -> None:
    path = tmp_path / "plan.report.json"
    asked = ["--epsilon", "2", "--sample-rate", "0.5", "--steps", "2", "--method", "rdp", "--no-peers"]
    assert run(["account", *asked, "--delta", "1e-5", "-q", "-o", str(path)]) == 0
    data = json.loads(path.read_text())
    assert len({guarantee["noise_multiplier"] for guarantee in data["guarantees"]}) > 1
    assert _verified(path).exit_code is ExitCode.OK
    main = data["parameters"]["methods"][data["parameters"]["rely_on"]]["title"]
    (relied,) = [guarantee for guarantee in data["guarantees"] if guarantee["name"] == main]
    relied["noise_multiplier"] *= 1.5
    path.write_text(json.dumps(data))
    assert _verified(path).exit_code is ExitCode.REFUTED


@pytest.mark.parametrize("lost", [0, 1])
def test_what_one_example_may_change_is_stated_for_each_kind_of_event(tmp_path: Path, lost: int) -> None:
    ledger, path = tmp_path / "events.json", tmp_path / "plan.report.json"
    events = [
        {"type": "tree-gaussian", "noise_multiplier": 3, "leaves": 4, "sample_rate": 0.25, "steps": 8},
        {"type": "exponential", "epsilon": 0.2, "steps": 3, "neighbours": "zero-out"},
    ]
    ledger.write_text(json.dumps(events))
    assert run(["account", "--ledger", str(ledger), "--delta", "1e-6", "-q", "-o", str(path)]) == 0
    assert _verified(path).exit_code is ExitCode.OK
    data = json.loads(path.read_text())
    for guarantee in data["guarantees"]:
        stated = [at for at, premise in enumerate(guarantee["assumptions"]) if premise["name"] == "contribution"]
        assert len(stated) == 2
        del guarantee["assumptions"][stated[lost]]
    path.write_text(json.dumps(data))
    found = _verified(path)
    assert found.exit_code is ExitCode.BAD_INPUT
    assert any(f"may change in {events[lost]['type']} events" in verdict.reason for verdict in found.verdicts)


def _verified(path: Path) -> Verification:
    return verify(path, read(path))
