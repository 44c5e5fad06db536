"""A judgement on the terminal: what failed and what would fix it, what is open, what was waived, what passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.render.plain import plain

_TITLES = {
    GateOutcome.FAIL: "FAILED",
    GateOutcome.INCONCLUSIVE: "INCONCLUSIVE",
    GateOutcome.PASS: "passed",
}


def render(judgement: GateJudgement) -> str:
    """The whole judgement, the worst first."""
    return "\n".join(_lines(judgement)) + "\n"


def summary(judgement: GateJudgement) -> str:
    """The outcome and how many findings there are of each kind, on one line."""
    counts = [(len(judgement.of(outcome)), _TITLES[outcome].lower()) for outcome in _TITLES]
    counts.append((len(judgement.waived), "waived"))
    told = ", ".join(f"{count} {name}" for count, name in counts if count)
    return f"gate: {judgement.outcome.value.upper()} ({told or 'nothing was looked at'})"


def _lines(judgement: GateJudgement) -> Iterator[str]:
    yield summary(judgement)
    for name in judgement.models:
        yield f"model: {plain(name)}"
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        yield from _section(judgement, _TITLES[outcome], judgement.of(outcome), place=True)
    yield from _section(judgement, "waived", judgement.waived, place=True)
    yield from _section(judgement, _TITLES[GateOutcome.PASS], judgement.of(GateOutcome.PASS), place=False)
    if judgement.notes:
        yield ""
        yield from (f"note: {plain(note)}" for note in judgement.notes)
    if judgement.settings:
        yield ""
        yield "policy"
        yield from (f"  {s.key} = {plain(s.value)}  ({plain(s.source)})" for s in judgement.settings)


def _section(judgement: GateJudgement, title: str, findings: Sequence[Finding], *, place: bool) -> Iterator[str]:
    if not findings:
        return
    yield ""
    yield title
    for each in findings:
        yield f"  {each.rule}: {plain(judgement.subject(each))}: {plain(each.message)}"
        if each.waiver:
            yield f"    waived by {plain(each.waiver)}: {plain(each.waived_because)}"
        elif each.fix:
            yield f"    to fix: {plain(each.fix)}"
        if place:
            yield f"    at {plain(each.place.path)}:{each.place.line}"
