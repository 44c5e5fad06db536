"""What privctl says beside a bound: no other text passes, as a page shows it like one that was checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.domain.errors import ExitCode
from privctl.domain.verdict import Outcome
from privctl.reports.codec import decode
from tests.verify import reports
from verify.checks import findings
from verify.run import verify
from verify.texts.notes import known


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.plan(tmp_path_factory.mktemp("notes"), "plan of signs")


def test_an_edited_note_does_not_pass(plan: Path) -> None:
    report = json.loads(plan.read_text())
    assert verify(plan, decode(plan.read_text(), "")).exit_code is ExitCode.OK
    report["guarantees"][0]["note"] = "audited by a notary: the worst case over the data is 0.01 nats"
    found = list(findings(plan, decode(json.dumps(report), ""), ()))
    assert [verdict.outcome for verdict in found if "audited by a notary" in verdict.reason] == [Outcome.INCONCLUSIVE]
    assert verify(plan, decode(json.dumps(report), "")).exit_code is ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("note", "allowed"),
    [
        ("for the secret 'email-1', nearest of 4 to its budget of 0.1 nats", True),
        ("for the secret 'email-1', nearest of 4 to its budget of 0.1 nats; nothing was found", False),
        ("nearest to its bound is 'a': no guess is right with more than 0.2, by the whole trade-off curve, of a "
         "posterior of 0.3", True),
        ("no epsilon, however large, holds with a delta below 0.2", True),
        ("every epsilon, however small, holds with a delta below 0.2", False),
    ],
)  # fmt: skip
def test_only_notes_that_privctl_writes_are_known(note: str, allowed: bool) -> None:
    assert known(note) is allowed
