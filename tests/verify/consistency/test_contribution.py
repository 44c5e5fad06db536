"""A report's word that a record's gradient is its own is borne out by the self-test that it records."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from tests.verify.reports import trained
from verify.run import read, verify

KEY = "contribution_test"
MUTANTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no test": lambda p: p.pop(KEY),
    "a test of nothing": lambda p: p[KEY].update(differences={}, allowed={}),
    "a test of no words": lambda p: p.update({KEY: "passed"}),
    "too far": lambda p: p[KEY]["differences"].update(float32=2e-4),
    "more allowed": lambda p: [p[KEY][part].update(float32=0.05) for part in ("differences", "allowed")],
    "no number": lambda p: p[KEY]["differences"].update(float32="little"),
    "another stage": lambda p: p[KEY].update(differences={"bfloat16": 0.01}, allowed={"bfloat16": 0.1}),
    "not what was allowed": lambda p: p[KEY]["allowed"].pop("float32"),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("reports"), "dp-sgd")


def test_the_genuine_report_passes(report: Path) -> None:
    assert verify(report, read(report)).exit_code is ExitCode.OK


@pytest.mark.parametrize("name", MUTANTS)
def test_a_claim_without_its_test_is_refuted(name: str, report: Path) -> None:
    changed = copy.deepcopy(json.loads(report.read_text()))
    MUTANTS[name](changed["parameters"])
    report_path = report.with_name("mutant.report.json")
    report_path.write_text(json.dumps(changed))
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.REFUTED
    assert any("'contribution' is said to be enforced, but" in v.reason for v in found.verdicts)


def test_asserted_needs_no_test(report: Path) -> None:
    changed = json.loads(report.read_text())
    del changed["parameters"][KEY]
    for guarantee in changed["guarantees"]:
        for assumption in guarantee["assumptions"]:
            if assumption["name"] in ("contribution", "rounding of sums"):
                assumption["state"] = "asserted"
            if assumption["name"] == "rounding of sums":
                assumption["statement"], _, _ = assumption["statement"].partition(": ")
            if assumption["name"] == "contribution":
                premise_text, _, _ = assumption["statement"].partition(";")
                assumption["statement"] = f"{premise_text}; whether its gradient is its own was not tested"
    report_path = report.with_name("asserted.report.json")
    report_path.write_text(json.dumps(changed))
    assert verify(report_path, read(report_path)).exit_code is ExitCode.OK


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("the 0.000976562 of", "the 0.0625 of", "a margin that clipping does not leave"),
        ("which differ by ", "which differ by 1", "but what is recorded gives"),
        ("records at most", "0 records at most", "but what is recorded gives"),
    ],
)
def test_figures_of_rounding_are_those_of_the_run(old: str, new: str, reason: str, report: Path) -> None:
    text = report.read_text()
    assert old in text
    report_path = report.with_name("rounding.report.json")
    report_path.write_text(text.replace(old, new))
    found = verify(report_path, read(report_path))
    assert found.exit_code is not ExitCode.OK
    assert any("'rounding of sums'" in v.reason and reason in v.reason for v in found.verdicts)


def test_the_word_of_a_run_on_its_own_test_is_named_as_such(report: Path) -> None:
    """Differences that are edited together with what states them fit: nothing here measures them again."""
    changed = json.loads(report.read_text())
    changed["parameters"][KEY]["differences"]["float32"] = 1e-12
    for guarantee in changed["guarantees"]:
        for assumption in guarantee["assumptions"]:
            if assumption["name"] == "rounding of sums":
                premise_text, _, _ = assumption["statement"].partition("which differ by ")
                assumption["statement"] = f"{premise_text}which differ by 1e-12 of their size"
    report_path = report.with_name("edited.report.json")
    report_path.write_text(json.dumps(changed))
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.OK
    assert any("contribution_test" in omission.reason for omission in found.omissions)
