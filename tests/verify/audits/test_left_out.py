"""What an audit found, left out of its report wherever it is named: neither verify nor a gate passes what is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from privctl.domain.gate import GateOutcome
from tests.verify.kinds import Gate, Kind, Kinds, verified

Report = dict[str, Any]


def without(report: Report, method: str, quantity: str = "") -> None:
    """No figures of ``method`` whose quantities begin so."""
    report["evidence"] = [
        item for item in report["evidence"] if item["method"] != method or not item["quantity"].startswith(quantity)
    ]


def without_attack(report: Report, name: str) -> None:
    without(report, name)
    for item in report["evidence"]:
        if item["test"]:
            item["test"]["compared"] -= 1
    report["parameters"]["attack"].remove(name)
    report["parameters"]["asked"]["attacks"].remove(name)


def without_extraction(report: Report) -> None:
    without(report, "extraction")
    del report["verdicts"][1], report["parameters"]["extraction"]
    for role in ("train", "heldout"):
        report["inputs"] = [item for item in report["inputs"] if item["role"] != role]
        del report["parameters"]["asked"]["files"][role]


def without_trace(report: Report) -> None:
    without(report, "canary exposure", "mean")
    del report["verdicts"][0]


def without_curve(report: Report) -> None:
    del report["parameters"]["canary_mechanism"], report["parameters"]["canary_curve"], report["verdicts"][2]


def without_claim(report: Report) -> None:
    del report["verdicts"][1]
    report["parameters"]["asked"]["claims"] = []


def without_ranks(report: Report) -> None:
    """So that what was asked can be edited: here the AUC that must be detectable."""
    report["outputs"] = []
    report["parameters"]["least_auc"] = report["parameters"]["asked"]["least_auc"] = 0.9


def without_asked(report: Report) -> None:
    """What was asked, with the ranks, which repeat it."""
    report["outputs"] = []
    del report["parameters"]["asked"]


LEFT_OUT: dict[str, tuple[str, Callable[[Report], object]]] = {
    "rates of one attack": ("audit", lambda report: without(report, "zlib", "TPR")),
    "all rates": ("audit", lambda report: [without(report, name, "TPR") for name in ("loss", "zlib")]),
    "an attack": ("audit", lambda report: without_attack(report, "zlib")),
    "near-verbatim text": ("audit", lambda report: without(report, "extraction", "near-verbatim")),
    "sampled text": ("audit", lambda report: without(report, "extraction", "training text found")),
    "a grid of queries": ("audit", lambda report: without(report, "extraction", "share found by sampling")),
    "frequent text": ("audit", lambda report: without(report, "extraction", "rate on text in 2")),
    "extraction": ("audit", without_extraction),
    "ranks": ("audit", without_ranks),
    "what was asked": ("audit", without_asked),
    "what was asked of canaries": ("audit of canaries", without_asked),
    "traces": ("audit of canaries", without_trace),
    "medians": ("audit of canaries", lambda report: without(report, "canary exposure", "median bits, included")),
    "a bound": ("audit of canaries", lambda report: without(report, "one run, Mahloujifar 2024")),
    "completions": ("audit of canaries", lambda report: without(report, "canary completion")),
    "a curve": ("audit of canaries", without_curve),
    "a claim": ("audit of canaries", without_claim),
}


def outcomes(kind: Kind, change: Callable[[Report], object]) -> tuple[ExitCode, GateOutcome]:
    report = json.loads(kind.path.read_text())
    change(report)
    report_path = kind.path.with_name("left-out.report.json")
    report_path.write_text(json.dumps(report))
    try:
        found = verified(report_path)
        assert found is not None
        return found.exit_code, Gate(kind).judged(report_path).outcome
    finally:
        report_path.unlink()


@pytest.mark.parametrize("what", LEFT_OUT)
def test_nothing_is_left_out_unnoticed(kinds: Kinds, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the audit, which would tell, is not at hand."""
    name, change = LEFT_OUT[what]
    monkeypatch.setattr("verify.run.check_log", lambda path, report: ([], []))
    code, outcome = outcomes(kinds[name], change)
    assert code is ExitCode.REFUTED
    assert outcome is not GateOutcome.PASS


@pytest.mark.parametrize("name", ["audit", "audit of canaries"])
def test_an_audit_that_was_logged_names_its_log(kinds: Kinds, name: str) -> None:
    code, outcome = outcomes(kinds[name], lambda report: report.update(log=None))
    assert (code, outcome) == (ExitCode.REFUTED, GateOutcome.FAIL)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("book of secrets", lambda found: found["found"]["email"].update(secrets=3)),
        ("book of secrets", lambda found: found["found"]["email"].update(records=3, memberships=3, most_records=1)),
        ("book of secrets", lambda found: found["found"].pop("email")),
        ("book of secrets", lambda found: found.update(dataset_size=11)),
        ("plan of secrets", lambda found: found.update(memberships=4, records_with_a_secret=4, largest_secret=1)),
        ("plan of secrets", lambda found: found.update(dataset_size=600)),
        ("plan of secrets", lambda found: found.update(secrets_in_no_record=2)),
    ],
)
def test_what_is_said_of_secrets_is_what_their_files_hold(
    kinds: Kinds, name: str, change: Callable[[Any], Any]
) -> None:
    report = json.loads(kinds[name].path.read_text())
    change(report["parameters"])
    report_path = kinds[name].path.with_name("left-out.report.json")
    report_path.write_text(json.dumps(report))
    found = verified(report_path)
    report_path.unlink()
    assert found is not None
    assert found.exit_code is ExitCode.REFUTED
