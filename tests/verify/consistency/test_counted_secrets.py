"""Numbers of secrets in reports of scans, plans and trainings are those of the book and the plan at hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from privctl.domain.errors import ExitCode
from tests.verify.kinds import Kinds
from tests.verify.mutants import at
from verify.run import read, verify


@pytest.mark.parametrize(
    ("name", "place", "word"),
    [
        ("plan of secrets", ("kinds", "email"), "does not count the secrets of each kind"),
        ("planned", ("plan", "secrets_checked"), "parameter secrets_checked is"),
        ("book of secrets", ("found", "card", "records"), "does not count the secrets of kind 'card'"),
        ("book of secrets", ("found", "email", "secrets"), "does not count the secrets of kind 'email'"),
    ],
)
def test_an_edited_number_of_secrets_is_refuted(kinds: Kinds, name: str, place: tuple[str, ...], word: str) -> None:
    kind = kinds[name]
    data: dict[str, Any] = json.loads(kind.path.read_text())
    at(data["parameters"], place[:-1])[place[-1]] += 1
    report_path = kind.path.with_name("mutant.report.json")
    report_path.write_text(json.dumps(data))
    found = verify(report_path, read(report_path))
    report_path.unlink()
    assert found.exit_code is ExitCode.REFUTED
    assert any(word in verdict.reason for verdict in found.verdicts)
