"""A training that begins with weights which were trained on the same data before: nobody lets its guarantee count."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode, InputError
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.report import ParentReport, PrivacyReport
from privctl.gate.checks import RULES
from privctl.gate.judge import judge
from privctl.gate.policy import read_policy
from privctl.noise.own_report import require_bounded
from privctl.reports.files import FoundReport, relative, write_report
from privctl.storage.digest import file_digest
from privctl.storage.reader import open_checkpoint
from tests.verify import reports
from tests.verify.kinds import Kinds
from verify.run import read, verify


def retrained(kinds: Kinds, folder: Path, data: Path) -> Path:
    """The report of dp-sgd that began with a model to which noise was added after it was trained on train.jsonl."""
    start, output = kinds["noised"].model, folder / "model"
    arguments = ("--data", data, "--epsilon", 3, "--epochs", 1, "--batch-size", 12, "--micro-tokens", 160)
    asked = ("retrain", "dp-sgd", start, *arguments, "--device", "cpu", "-q", "-o", output)
    assert run([str(each) for each in asked]) == 0
    return output.with_name("model.report.json")


@pytest.fixture(scope="module")
def again(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = kinds["noised"].path.with_name("train.jsonl")
    return retrained(kinds, tmp_path_factory.mktemp("again"), data)


@pytest.fixture(scope="module")
def elsewhere(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    return retrained(kinds, folder, reports.texts(folder / "own.jsonl", seed=7))


def state(report: PrivacyReport) -> AssumptionState:
    (found,) = [
        assumption.state for assumption in report.guarantees[0].assumptions if assumption.name == "starting weights"
    ]
    return found


def edited(path: Path, *, parents: bool) -> Path:
    """The same report with the assumption merely asserted, and without its parents."""
    report: dict[str, Any] = json.loads(path.read_text())
    (guarantee,) = report["guarantees"]
    guarantee["status"] = "conditional"
    for assumption in guarantee["assumptions"]:
        if assumption["name"] == "starting weights":
            assumption["state"] = "asserted"
    report["parents"] = report["parents"] if parents else []
    changed = path.with_name("edited.report.json")
    changed.write_text(json.dumps(report))
    return changed


def gated(*places: Path) -> list[str]:
    """The messages of what fails."""
    policy = read_policy(None, {"max_epsilon": "3"}, {}, RULES)
    found = judge(list(places), policy, None, datetime.now(UTC))
    return [finding.message for finding in found.findings if finding.outcome is GateOutcome.FAIL]


def test_it_is_void_and_says_so(again: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = read(again)
    assert state(report) is AssumptionState.VIOLATED
    assert report.guarantees[0].status is Status.VOID
    assert [Path(parent.path).name for parent in report.parents] == ["noised.report.json"]
    assert verify(again, report).exit_code is ExitCode.OK
    assert any("starting weights" not in each and "is void" in each for each in gated(again))


def test_other_data_leave_the_guarantee_as_it_is(elsewhere: Path) -> None:
    report = read(elsewhere)
    assert state(report) is AssumptionState.ASSERTED
    assert len(report.parents) == 1
    assert verify(elsewhere, report).exit_code is ExitCode.OK
    assert gated(elsewhere) == []


def test_an_edit_is_refuted(again: Path) -> None:
    changed = edited(again, parents=True)
    found = verify(changed, read(changed))
    assert found.exit_code is ExitCode.REFUTED
    assert any("trained on the same data before" in verdict.reason for verdict in found.verdicts)
    assert any("on the same data" in each for each in gated(changed))


def test_the_gate_finds_it_through_noise_where_the_reports_are_given(kinds: Kinds, again: Path) -> None:
    changed = edited(again, parents=False)
    assert gated(changed) == []  # that nothing was trained on the same data is then asserted, as the policy accepts
    assert any("on the same data" in each for each in gated(changed, kinds["noised"].path, kinds["clipped"].path))


def test_a_copy_of_a_report_is_no_earlier_training(kinds: Kinds, tmp_path: Path) -> None:
    """With other white space, and so another digest."""
    copy = tmp_path / "copy.report.json"
    copy.write_text(json.dumps(json.loads(kinds["clipped"].path.read_text())))
    reports = [kinds["noised"].path, kinds["clipped"].path, copy]
    for places in (reports, reports[::-1]):
        assert not any("on the same data" in each for each in gated(*places))


def test_no_noise_on_weights_whose_clipped_training_was_the_second(kinds: Kinds, tmp_path: Path) -> None:
    clipped = kinds["clipped"]
    assert clipped.model is not None
    report = read(clipped.path)
    earlier = tmp_path / "earlier.report.json"
    write_report(earlier, report)
    parent = ParentReport(path=relative(earlier, clipped.path), digest=file_digest(earlier))
    with open_checkpoint(clipped.model) as checkpoint:
        require_bounded(FoundReport(clipped.path, report), checkpoint, facts=False)
        with pytest.raises(InputError, match="were trained on the same data before"):
            require_bounded(FoundReport(clipped.path, replace(report, parents=(parent,))), checkpoint, facts=False)
