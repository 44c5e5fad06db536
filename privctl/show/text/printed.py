"""Values of the Python interface as ``print`` shows them: a few lines without colour."""

from __future__ import annotations

from collections.abc import Iterator

from privctl.domain.gate import GateJudgement
from privctl.domain.guarantee import AssumptionState, Guarantee
from privctl.domain.report import PrivacyReport, Reports
from privctl.domain.shown import counted
from privctl.domain.verdict import Verdict
from privctl.show.decision import conclusion
from privctl.show.page_data import AUDIT_STEP
from privctl.show.summary import word_of
from privctl.show.text.gate import summary
from privctl.show.text.guarantee import amount
from privctl.show.text.style import number, paragraph
from privctl.show.verified import verification_sentence

#: Most guarantees, verdicts, measures or files that are listed.
_MOST = 4
_FIELDS = ("guarantees", "evidence", "verdicts", "warnings", "omissions")


def printed(value: object) -> str:
    """A report, reports, a guarantee, a gate's judgement or a verification in a few lines; otherwise its ``repr``."""
    if isinstance(value, Reports):
        return "\n".join(map(printed, value)) or repr(value)
    if isinstance(value, PrivacyReport):
        lines = list(_report_lines(value))
    elif isinstance(value, Guarantee):
        lines = [_guarantee_text(value)]
    elif isinstance(value, GateJudgement):
        lines = [
            summary(value),
            *_first_lines([f"{finding.rule}: {finding.message}" for finding in value.findings if finding.counts]),
        ]
    else:
        # A verification, whose type this package must not import.
        verdicts, verified = getattr(value, "verdicts", None), getattr(value, "report", None)
        if verdicts is None or verified is None:
            return repr(value)
        concluded = verification_sentence(verdicts, verified.guarantees)
        lines = ["verification", concluded, *_first_lines([_verdict_text(verdict, "verify") for verdict in verdicts])]
    text = "".join(paragraph(line, indent=2 if i else 0) for i, line in enumerate(lines))
    return text.removesuffix("\n")


def _report_lines(report: PrivacyReport) -> Iterator[str]:
    yield f"report of privctl {report.step}, {report.created}"
    if report.step == AUDIT_STEP:
        yield conclusion(report).sentence
    yield from _first_lines([_guarantee_text(guarantee) for guarantee in report.guarantees])
    yield from _first_lines([_verdict_text(verdict, report.step) for verdict in report.verdicts])
    if not report.guarantees and not report.verdicts:
        yield from _first_lines([f"{e.method}: {e.quantity} {number(e.estimate)}" for e in report.evidence])
    yield from _first_lines([f"wrote {output.path} ({output.role})" for output in report.outputs])
    counts = [f"{len(getattr(report, name))} in .{name}" for name in _FIELDS if getattr(report, name)]
    if counts:
        yield f"all of it: {', '.join(counts)}"


def _guarantee_text(guarantee: Guarantee) -> str:
    states = [assumption.state for assumption in guarantee.assumptions]
    counts = [(str(state), states.count(state)) for state in AssumptionState if state in states]
    rests = ", ".join(f"{count} {word}" for word, count in counts) or "none"
    name = "" if amount(guarantee) == guarantee.name else f"{guarantee.name}: "
    return f"{name}{amount(guarantee)}, {guarantee.status}; assumptions: {rests}"


def _verdict_text(verdict: Verdict, step: str) -> str:
    return f"{word_of(verdict, step)}: {verdict.subject}"


def _first_lines(lines: list[str]) -> Iterator[str]:
    """The first few lines, and how many more there are."""
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"... and {counted(len(lines) - _MOST, 'more', 'more')}"
