"""Values as notebooks show them: a fragment of HTML from ``templates/notebook.html``, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import Finding, GateJudgement
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import PrivacyReport, Reports
from privctl.domain.verdict import Verdict
from privctl.show.html.render import render_template
from privctl.show.html.values import MOST_ROWS, Pill, Table, state_word, table
from privctl.show.html.words import assumption_counts
from privctl.show.summary import amount, protects, word_of
from privctl.show.text.style import number
from privctl.show.verified import verification_sentence


def fragment(value: object) -> str:
    """The HTML of a report, reports, a guarantee, a gate's judgement or a verification.

    Raises TypeError for any other value.
    """
    return render_template("notebook.html", {"parts": list(_page_parts(value))})


def _page_parts(value: object) -> Iterable[dict[str, Any]]:
    if isinstance(value, Reports):
        return [part for report in value for part in _page_parts(report)]
    if isinstance(value, PrivacyReport):
        return [_report_parts(value)]
    if isinstance(value, Guarantee):
        return [_part(value.name, _guarantees([value]), lines=[value.note] if value.note else [])]
    if isinstance(value, GateJudgement):
        return [_part(f"gate: {value.outcome}", _findings(value.findings), lines=value.notes)]
    # A verification, whose type this package must not import.
    verdicts, verified = getattr(value, "verdicts", None), getattr(value, "report", None)
    if verdicts is None or verified is None:
        raise TypeError(f"a notebook cannot show {type(value).__name__}")
    omitted = [f"left out: {omission.what}: {omission.reason}" for omission in getattr(value, "omissions", ())]
    concluded = verification_sentence(verdicts, verified.guarantees)
    return [_part("verify", _verdicts(verdicts, "verify"), lead=concluded, lines=omitted)]


def _report_parts(report: PrivacyReport) -> dict[str, Any]:
    tables = (_guarantees(report.guarantees), _verdicts(report.verdicts, report.step), _evidence(report.evidence))
    wrote = [artifact.path for artifact in report.outputs]
    omitted = [f"left out: {omission.what}: {omission.reason}" for omission in report.omissions]
    return _part(report.step, *tables, lines=[*report.warnings, *omitted], wrote=wrote)


def _part(
    title: str, *tables: Table | None, lead: str = "", lines: Iterable[str] = (), wrote: Iterable[str] = ()
) -> dict[str, Any]:
    return {
        "title": title,
        "lead": lead,
        "tables": [table for table in tables if table is not None],
        "lines": list(islice(lines, MOST_ROWS)),
        "wrote": list(islice(wrote, MOST_ROWS)),
    }


def _guarantees(guarantees: Iterable[Guarantee]) -> Table | None:
    every = list(guarantees)
    rows = [
        (g.name, Pill(state=g.status, word=state_word(g.status)), amount(g), protects(g), assumption_counts(g))
        for g in every[:MOST_ROWS]
    ]
    heads = ("guarantee", "status", "bound", "protects", "rests on")
    return table("Guarantees", heads, rows, len(every)) if rows else None


def _verdicts(verdicts: Iterable[Verdict], step: str) -> Table | None:
    every = list(verdicts)
    rows = [(v.subject, Pill(state=v.outcome, word=word_of(v, step)), v.reason) for v in every[:MOST_ROWS]]
    return table("Verdicts", ("subject", "outcome", "why"), rows, len(every)) if rows else None


def _evidence(evidence: Iterable[Evidence]) -> Table | None:
    every = list(evidence)
    rows = [(e.quantity, e.method, _measured(e)) for e in every[:MOST_ROWS]]
    return table("Measured", ("quantity", "method", "value"), rows, len(every)) if rows else None


def _measured(evidence: Evidence) -> str:
    if evidence.estimate is None:
        return evidence.reason or "–"
    shown = number(evidence.estimate)
    if evidence.bound is Bound.UPPER:
        return f"at most {shown} at {100 * evidence.confidence:g} %"
    if evidence.bound is Bound.NONE or evidence.lower is None:
        return shown
    upper = "" if evidence.upper is None else f" to {number(evidence.upper)}"
    return f"{shown} ({'from ' if not upper else ''}{number(evidence.lower)}{upper} at {100 * evidence.confidence:g} %)"


def _findings(findings: Iterable[Finding]) -> Table | None:
    every = list(findings)
    rows = [
        (f.rule, f"waived ({f.waiver})" if f.waiver else str(f.outcome), f.subject, f.message, f.fix) for f in every
    ]
    heads = ("rule", "outcome", "subject", "what was found", "what would help")
    return table("Findings", heads, rows[:MOST_ROWS], len(every)) if rows else None
