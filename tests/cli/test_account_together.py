"""``privctl account`` on several ledgers, and on the reports of trainings: what all of them cost together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from privctl import account, from_opacus
from privctl.api.verifying import verify
from privctl.cli import run
from privctl.domain.report import PrivacyReport

_STEPS: list[dict[str, Any]] = [
    {"type": "sampled-gaussian", "noise_multiplier": noise, "sample_rate": 0.1, "steps": 20} for noise in (2, 2.5)
]


@pytest.fixture
def reports(tmp_path: Path) -> list[Path]:
    """Reports of two private trainings, each of patients."""
    paths = []
    for (name, delta), steps in zip({"risk": 1e-5, "churn": 1e-6}.items(), _STEPS, strict=True):
        weights = tmp_path / f"{name}.safetensors"
        save_file({"w": torch.full((2,), delta)}, weights)
        from_opacus([(steps["noise_multiplier"], steps["sample_rate"], 20)], weights, examples=600, delta=delta)
        paths.append(tmp_path / f"{name}.report.json")
        _edit(paths[-1], lambda data: data["parameters"].update(unit="patient"))
    return paths


def _epsilon(report: PrivacyReport) -> float:
    epsilon = report.guarantees[0].epsilon
    assert epsilon is not None
    return epsilon


def test_every_ledger_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one given used to be the only one that counted."""
    whole, parts = tmp_path / "whole.json", [tmp_path / "0.json", tmp_path / "1.json"]
    whole.write_text(json.dumps(_STEPS))
    for part, steps in zip(parts, _STEPS, strict=True):
        part.write_text(json.dumps([steps]))
    together = account(ledger=parts, delta=1e-5)
    assert _epsilon(together) == _epsilon(account(ledger=whole, delta=1e-5))
    assert _epsilon(together) > 1.2 * max(_epsilon(account(ledger=part, delta=1e-5)) for part in parts)
    plan = tmp_path / "plan.report.json"
    given = [word for part in parts for word in ("--ledger", str(part))]
    assert run(["account", *given, "--delta", "1e-5", "-o", str(plan)]) == 0
    assert "All files are counted together" in " ".join(capsys.readouterr().out.split())
    assert verify(plan).exit_code == 0
    parts[1].write_text(parts[0].read_text())
    assert verify(plan).exit_code == 1
    assert run(["account", *given, "--ledger", str(parts[0]), "--delta", "1e-5"]) == 2
    assert "is given twice" in capsys.readouterr().err


def test_reports_of_trainings_are_ledgers(
    reports: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "all.json"
    assert run(["account", "--ledger", str(reports[0]), "--ledger", str(reports[1]), "-o", str(plan)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "In the reports given, one example is all records with one value of 'patient'" in shown
    assert "at delta 1e-06" in shown  # the smaller of the two
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(_STEPS))
    written = json.loads(plan.read_text())
    assert written["guarantees"][0]["epsilon"] == _epsilon(account(ledger=whole, delta=1e-6))
    assert [each["path"] for each in written["inputs"]] == [path.name for path in reports]
    assert verify(plan).exit_code == 0
    _edit(reports[1], lambda data: data["mechanism"]["events"][0].update(steps=19))
    assert verify(plan).exit_code == 1
    _edit(reports[1], lambda data: data.update(mechanism=None))
    assert verify(plan).exit_code == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["parameters"].pop("unit"), "churn.report.json single records: their epsilons do not add up"),
        (lambda data: data.update(guarantees=[]), "states no (epsilon, delta) guarantee of one example"),
        (lambda data: data.update(mechanism=None), "states no (epsilon, delta) guarantee of one example"),
        (
            lambda data: data["guarantees"][0]["assumptions"][0].update(state="violated"),
            "states no (epsilon, delta) guarantee of one example",
        ),
    ],
)
def test_reports_that_do_not_add_up_are_refused(
    reports: list[Path], change: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _edit(reports[1], change)
    assert run(["account", "--ledger", str(reports[0]), "--ledger", str(reports[1])]) == 3
    assert says in capsys.readouterr().err


def test_a_copy_of_a_report_counts_once(reports: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    reports[1].write_bytes(reports[0].read_bytes())
    assert run(["account", "--ledger", str(reports[0]), "--ledger", str(reports[1])]) == 2
    assert "is a copy of" in capsys.readouterr().err


@pytest.mark.parametrize("history", ["[[1.0, 0.01, 500], [2.0, 0.01, 50]]", '{"history": [[1.0, 0.01, 500]]}'])
def test_verify_reads_the_history_of_opacus(tmp_path: Path, history: str) -> None:
    """It used to refute every plan that was made from one."""
    ledger, plan = tmp_path / "opacus.json", tmp_path / "plan.json"
    ledger.write_text(history)
    account(ledger=ledger, delta=1e-5, output=plan)
    assert verify(plan).exit_code == 0
    ledger.write_text(history.replace("1.0", "1.5"))
    assert verify(plan).exit_code == 1


def test_verify_says_that_it_does_not_read_another_form(tmp_path: Path) -> None:
    ledger, plan = tmp_path / "event.txt", tmp_path / "plan.json"
    ledger.write_text("GaussianDpEvent(noise_multiplier=3.0)")
    account(ledger=ledger, delta=1e-5, output=plan)
    found = verify(plan)
    assert found.exit_code == 3
    assert any("in a form that verify does not read" in verdict.reason for verdict in found.verdicts)


def test_a_ledger_without_delta_is_not_sent_to_an_option_that_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps(_STEPS))
    assert run(["account", "--ledger", str(ledger)]) == 2
    said = capsys.readouterr().err
    assert "--delta is missing" in said
    assert "--dataset-size" not in said


def _edit(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_delta_by_default_is_stated(tmp_path: Path) -> None:
    """Verify used to refute such a plan, which did not say for which delta it is."""
    plan = tmp_path / "plan.json"
    sizes: dict[str, Any] = {"dataset_size": 600, "batch_size": 60, "epochs": 1, "methods": "rdp", "no_peers": True}
    account(noise_multiplier=2.0, **sizes, output=plan)
    assert json.loads(plan.read_text())["parameters"]["delta"] == 1e-5
    assert verify(plan).exit_code == 0
