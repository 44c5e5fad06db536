"""The gate's judgement, for the terminal: failures with their fixes, inconclusive, waived and passed findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.gate import Finding, GateJudgement, GateOutcome
from privctl.show.alike import grouped, in_a_sentence, parts, told
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
    """The judgement, worst findings first.

    ``quiet`` omits notes and policy; ``verbose`` adds the place of passes, and names all of many alike findings.
    """
    return "".join(_parts(judgement, quiet=quiet, verbose=verbose))


def summary(judgement: GateJudgement) -> str:
    """One line with the outcome and the number of findings of each kind; it says if nothing was recomputed."""
    counts = [(len(judgement.of(outcome)), _TITLES[outcome].lower()) for outcome in _TITLES]
    counts.append((len(judgement.waived), "waived"))
    text = ", ".join(f"{count} {name}" for count, name in counts if count)
    believed = "" if judgement.recomputed else "; nothing recomputed"
    return f"gate: {judgement.outcome.value.upper()} ({text or 'nothing was checked'}{believed})"


def _parts(judgement: GateJudgement, *, quiet: bool, verbose: bool) -> Iterator[str]:
    word = judgement.outcome.value.upper()
    yield summary(judgement).replace(word, coloured(word, _COLOURS[judgement.outcome]), 1) + "\n"
    yield paragraph(in_a_sentence(judgement))
    for name in judgement.models:
        yield f"model: {plain(name)}\n"
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        title = coloured(_TITLES[outcome], _COLOURS[outcome])
        yield from _section(judgement, title, judgement.of(outcome), place=True, every=verbose)
    yield from _section(judgement, coloured("waived", Colour.CARE), judgement.waived, place=True, every=verbose)
    title = coloured(_TITLES[GateOutcome.PASS], Colour.GOOD)
    yield from _section(judgement, title, judgement.of(GateOutcome.PASS), place=verbose, every=verbose)
    if judgement.notes and not quiet:
        yield "\n" + notes(map(plain, judgement.notes))
    if judgement.settings and not quiet:
        yield "\npolicy\n"
        for each in judgement.settings:
            yield paragraph(f"{each.key} = {plain(each.value)}  ({plain(each.source)})", indent=2)


def _section(
    judgement: GateJudgement, title: str, findings: Sequence[Finding], *, place: bool, every: bool
) -> Iterator[str]:
    if not findings:
        return
    yield f"\n{title}\n"
    for alike in grouped(findings):
        several = f" ({len(alike)} findings)" if len(alike) > 1 else ""
        conclusion, named = parts(judgement, alike) if every and several else (told(judgement, alike), [])
        yield paragraph(f"{alike[0].rule}{several}: {plain(conclusion)}", indent=2)
        yield from (paragraph(plain(each), indent=4) for each in named)
        first = alike[0]
        if first.waiver:
            yield paragraph(f"waived by {plain(first.waiver)}: {plain(first.waived_because)}", indent=4)
        elif first.fix:
            yield paragraph(f"to fix: {plain(first.fix)}", indent=4)
        if place:
            yield f"    at {plain(first.place.path)}:{', '.join(str(each.place.line) for each in alike)}\n"
