"""What an audit of secrets measured, left out of its report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from tests.verify.audits.test_reach import report
from verify.audits.asked import faults

FIGURES = (
    ("secret reconstruction", "told first, trained"),
    ("secret reconstruction", "told first, kind pin"),
    ("secret completion", "in a beam of 20, trained"),
    ("secret trace", "share found beyond, drawn at random, by a beam of 20"),
)
ASKED = AskedAudit(
    files={"secrets": (), "plan": ()}, beam=20, secret_figures=tuple(f"{method}: {what}" for method, what in FIGURES)
)


def stated() -> PrivacyReport:
    found = [Evidence(method=method, quantity=what, estimate=0.5, bound=Bound.NONE) for method, what in FIGURES]
    subjects = ("training made no secret easier to tell", "(prior, posterior)-secret protection, as planned in p")
    verdicts = [Verdict(subject=subject, outcome=Outcome.INCONCLUSIVE, reason="few") for subject in subjects]
    model, ranks = (Artifact(role=role, path="f", digest="blake3:0", bytes=9) for role in ("model", "scores"))
    return replace(report(*found), inputs=(model,), outputs=(ranks,), verdicts=tuple(verdicts))


def of(found: PrivacyReport, asked: AskedAudit = ASKED) -> list[str]:
    return list(faults(found, AuditParameters(asked=asked)))


def test_nothing_is_amiss_where_all_is_stated() -> None:
    assert of(stated()) == []


@pytest.mark.parametrize("number", range(len(FIGURES)))
def test_a_figure_that_was_left_out_is_noticed(number: int) -> None:
    found = stated()
    left = replace(found, evidence=(*found.evidence[:number], *found.evidence[number + 1 :]))
    assert f"it states no '{': '.join(FIGURES[number])}', which it measured" in of(left)


@pytest.mark.parametrize(("number", "what"), [(0, "secrets, and has no"), (1, "a plan of protection, and has no")])
def test_a_verdict_that_was_left_out_is_noticed(number: int, what: str) -> None:
    found = stated()
    (fault,) = of(replace(found, verdicts=(found.verdicts[1 - number],)))
    assert what in fault


def test_a_beam_search_is_answered_or_omitted_for_a_reason() -> None:
    silent = replace(stated(), evidence=stated().evidence[:2])
    asked = replace(ASKED, secret_figures=ASKED.secret_figures[:2])
    (fault,) = of(silent, asked)
    assert "a beam search of width 20 was asked for" in fault
    omission = Omission(what="beam search for secrets", reason="this network keeps more than keys and values")
    assert of(replace(silent, omissions=(omission,)), asked) == []
