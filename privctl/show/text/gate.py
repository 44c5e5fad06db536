"""A judgement on the terminal: what failed and what would fix it, what is open, what was waived, what passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.plain import plain
from privctl.show.text.style import Colour, coloured, notes, paragraph

_TITLES = {
    GateOutcome.FAIL: "FAILED",
    GateOutcome.INCONCLUSIVE: "INCONCLUSIVE",
    GateOutcome.PASS: "passed",
}
_COLOURS = {
    GateOutcome.FAIL: Colour.BAD,
    GateOutcome.INCONCLUSIVE: Colour.CARE,
    GateOutcome.PASS: Colour.GOOD,
}


def render(judgement: GateJudgement, *, quiet: bool = False, verbose: bool = False) -> str:
    """The whole judgement, the worst first; ``quiet`` without notes and policy, ``verbose`` with every place."""
    return "".join(_parts(judgement, quiet=quiet, verbose=verbose))


def summary(judgement: GateJudgement) -> str:
    """The outcome and how many findings there are of each kind, on one line."""
    counts = [(len(judgement.of(outcome)), _TITLES[outcome].lower()) for outcome in _TITLES]
    counts.append((len(judgement.waived), "waived"))
    text = ", ".join(f"{count} {name}" for count, name in counts if count)
    return f"gate: {judgement.outcome.value.upper()} ({text or 'nothing was looked at'})"


def _parts(judgement: GateJudgement, *, quiet: bool, verbose: bool) -> Iterator[str]:
    word = judgement.outcome.value.upper()
    yield summary(judgement).replace(word, coloured(word, _COLOURS[judgement.outcome]), 1) + "\n"
    for name in judgement.models:
        yield f"model: {plain(name)}\n"
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        title = coloured(_TITLES[outcome], _COLOURS[outcome])
        yield from _section(judgement, title, judgement.of(outcome), place=True)
    yield from _section(judgement, coloured("waived", Colour.CARE), judgement.waived, place=True)
    title = coloured(_TITLES[GateOutcome.PASS], Colour.GOOD)
    yield from _section(judgement, title, judgement.of(GateOutcome.PASS), place=verbose)
    if judgement.notes and not quiet:
        yield "\n" + notes(map(plain, judgement.notes))
    if judgement.settings and not quiet:
        yield "\npolicy\n"
        for each in judgement.settings:
            yield paragraph(f"{each.key} = {plain(each.value)}  ({plain(each.source)})", indent=2)


def _section(judgement: GateJudgement, title: str, findings: Sequence[Finding], *, place: bool) -> Iterator[str]:
    if not findings:
        return
    yield f"\n{title}\n"
    for each in findings:
        yield paragraph(f"{each.rule}: {plain(judgement.subject(each))}: {plain(each.message)}", indent=2)
        if each.waiver:
            yield paragraph(f"waived by {plain(each.waiver)}: {plain(each.waived_because)}", indent=4)
        elif each.fix:
            yield paragraph(f"to fix: {plain(each.fix)}", indent=4)
        if place:
            yield f"    at {plain(each.place.path)}:{each.place.line}\n"
