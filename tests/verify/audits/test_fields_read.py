"""Fields of an audit's report that ``verify`` reads, as docs/reports.md states: it does not accept another value."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import PrivctlError
from tests.docs.fields import meanings_by_type
from tests.verify.kinds import Kinds
from verify.run import read, verify

#: Type, field, and a value that differs from the one in the report.
_EDITS: list[tuple[str, str, Any]] = [
    ("JointTest", "p_value", 0.5),
    ("JointTest", "level", 0.01),
    ("JointTest", "compared", 3),
    ("JointTest", "relabellings", 77),
    ("JointTest", "critical", 1.0),
    ("JointTest", "detectable", 0.999),
    ("Evidence", "test", None),
    ("Evidence", "interval", "Wilson"),
    ("Evidence", "samples", {"members": 5, "nonmembers": 5}),
    ("PrivacyReport", "warnings", ["all is well"]),
    ("Artifact", "bytes", 5),
]


def faults(path: Path) -> set[str]:
    """The reasons why verify refutes the report, or cannot read it."""
    try:
        found = verify(path, read(path))
    except PrivctlError as fault:
        return {str(fault)}
    return {each.reason for each in found.verdicts if each.decisive and each.outcome.value == "REFUTED"}


@pytest.mark.parametrize(("kind", "field", "value"), _EDITS, ids=[f"{kind}.{field}" for kind, field, _ in _EDITS])
def test_an_edit_is_refuted_and_the_page_names_verify(
    monkeypatch: pytest.MonkeyPatch, kinds: Kinds, kind: str, field: str, value: Any
) -> None:
    monkeypatch.setattr("verify.run.check_log", lambda path, report: ([], []))  # whose digest changes with any edit
    genuine = kinds["audit"].path
    report = copy.deepcopy(json.loads(genuine.read_text()))
    item = next(each for each in report["evidence"] if each["quantity"] == "AUC" and each["test"] is not None)
    holder = {"JointTest": item["test"], "Evidence": item, "PrivacyReport": report, "Artifact": report["inputs"][0]}
    assert holder[kind][field] != value
    holder[kind][field] = value
    edited = genuine.with_name("edited.report.json")
    edited.write_text(json.dumps(report))
    try:
        assert faults(edited) > faults(genuine)
    finally:
        edited.unlink()
    assert "`verify`" in meanings_by_type()[kind][field][1]
