"""A model that was only audited: a line each for membership, extraction and secrets, measured or not."""

from __future__ import annotations

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.audited import measured_parts
from privctl.show.leaks import EXTRACTION, MEMBERSHIP
from privctl.show.page_data import JudgedSubject, ReportSource


def area(method: str, estimate: float) -> Evidence:
    return Evidence(
        method=method, quantity="AUC", estimate=estimate, lower=estimate - 0.1, upper=estimate + 0.1, confidence=0.95,
        bound=Bound.TWO_SIDED, samples={"members": 50}, details={"chance": 0.5},
    )  # fmt: skip


def subject(*verdicts: Verdict, omissions: tuple[Omission, ...] = ()) -> JudgedSubject:
    report = PrivacyReport(
        step="audit", created="", versions={}, verdicts=verdicts, omissions=omissions,
        evidence=(area("loss", 0.7), area("zlib", 0.6), area("blind baseline", 0.9)),
    )  # fmt: skip
    source = ReportSource(key="a", name="a", digest="blake3:0", report=report)
    return JudgedSubject(source=source, audits=(source,))


TOLD = Verdict(subject=MEMBERSHIP, outcome=Outcome.REFUTED, reason="some attack tells")


def test_a_line_each_with_what_was_not_measured() -> None:
    failed = Omission(what="extraction", reason="the texts are too short")
    found = {part.name: part for part in measured_parts(subject(TOLD, omissions=(failed,)))}
    assert list(found) == ["Membership", "Extraction", "Secrets"]
    assert "is rejected; loss, AUC: 0.7 (0.6 to 0.8)" in found["Membership"].text
    assert found["Extraction"].text == "not measured: the texts are too short."
    assert found["Secrets"].text.startswith("not measured: no audit tested")
    assert [part.measured for part in found.values()] == [True, False, False]


def test_what_was_asked_is_not_called_unmeasured() -> None:
    none = Verdict(subject=EXTRACTION, outcome=Outcome.CONSISTENT, reason="no text came out")
    found = {part.name: part.text for part in measured_parts(subject(TOLD, none))}
    assert found["Extraction"] == f"“{EXTRACTION}” is not rejected: no text came out."


def test_no_audit_no_lines() -> None:
    assert measured_parts(JudgedSubject(source=subject(TOLD).source)) == ()
