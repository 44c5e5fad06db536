"""The gate's judgement, for the terminal: failures with their fixes, inconclusive, waived and passed findings."""

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
    """The judgement, worst findings first. ``quiet`` omits notes and policy; ``verbose`` adds the places of passes."""
    return "".join(_sections(judgement, quiet=quiet, verbose=verbose))


def summary(judgement: GateJudgement) -> str:
    """One line with the outcome and the number of findings of each kind; it says if nothing was recomputed."""
    counts = [(len(judgement.of(outcome)), _TITLES[outcome].lower()) for outcome in _TITLES]
    counts.append((len(judgement.waived), "waived"))
    text = ", ".join(f"{count} {name}" for count, name in counts if count)
    believed = "" if judgement.recomputed else "; nothing recomputed"
    return f"gate: {judgement.outcome.value.upper()} ({text or 'nothing was checked'}{believed})"


def _sections(judgement: GateJudgement, *, quiet: bool, verbose: bool) -> Iterator[str]:
    word = judgement.outcome.value.upper()
    yield summary(judgement).replace(word, coloured(word, _COLOURS[judgement.outcome]), 1) + "\n"
    for name in judgement.models:
        yield f"model: {plain(name)}\n"
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        title = coloured(_TITLES[outcome], _COLOURS[outcome])
        yield from _section(judgement, title, judgement.of(outcome), with_places=True)
    yield from _section(judgement, coloured("waived", Colour.CARE), judgement.waived, with_places=True)
    title = coloured(_TITLES[GateOutcome.PASS], Colour.GOOD)
    yield from _section(judgement, title, judgement.of(GateOutcome.PASS), with_places=verbose)
    if judgement.notes and not quiet:
        yield "\n" + notes(map(plain, judgement.notes))
    if judgement.settings and not quiet:
        yield "\npolicy\n"
        for setting in judgement.settings:
            yield paragraph(f"{setting.key} = {plain(setting.value)}  ({plain(setting.source)})", indent=2)


def _section(judgement: GateJudgement, title: str, findings: Sequence[Finding], *, with_places: bool) -> Iterator[str]:
    if not findings:
        return
    yield f"\n{title}\n"
    for alike in _grouped(findings):
        several = f" ({len(alike)} findings)" if len(alike) > 1 else ""
        yield paragraph(f"{alike[0].rule}{several}: {_joint_message(judgement, alike)}", indent=2)
        first = alike[0]
        if first.waiver:
            yield paragraph(f"waived by {plain(first.waiver)}: {plain(first.waived_because)}", indent=4)
        elif first.fix:
            yield paragraph(f"to fix: {plain(first.fix)}", indent=4)
        if with_places:
            yield f"    at {plain(first.place.path)}:{', '.join(str(finding.place.line) for finding in alike)}\n"


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings grouped by rule, place, conclusion and fix, such as those on several attacks."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        _, _, conclusion = finding.message.rpartition(": ")
        key = (
            finding.rule,
            finding.model,
            finding.place.path,
            conclusion,
            finding.fix,
            finding.waiver,
            finding.waived_because,
        )
        groups.setdefault(key if finding.fix or finding.waiver else id(finding), []).append(finding)
    return list(groups.values())


def _joint_message(judgement: GateJudgement, alike: Sequence[Finding]) -> str:
    """The message of ``alike`` findings once, with the subject and value of each."""
    if len(alike) == 1:
        return f"{plain(judgement.subject(alike[0]))}: {plain(alike[0].message)}"
    values = [finding.message.rpartition(": ")[0] for finding in alike]
    named = [f"{judgement.subject(finding)} {value}".rstrip() for finding, value in zip(alike, values, strict=True)]
    return plain(f"{', '.join(named)}: {alike[0].message.rpartition(': ')[2]}")
