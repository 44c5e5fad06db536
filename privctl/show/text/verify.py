"""A verification, for the terminal: its conclusion, failed checks, and every guarantee with its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import AssumptionState, Guarantee, Status
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.plain import plain
from privctl.show.text.style import (
    Colour,
    bound,
    coloured,
    number,
    outcome_word,
    paragraph,
    status_word,
    table,
)
from privctl.show.verified import REFUTED, UNDECIDED, VERIFIED, verification_sentence

_COLOURS = {VERIFIED: Colour.GOOD, UNDECIDED: Colour.CARE, REFUTED: Colour.BAD}
#: Subjects of checks that are only made if the files allow it; all others are made for every report.
_MEASURED = ("weights", "noise")
#: How an omission begins that says that an input's digest was not compared.
_INPUT = "digest of the input "


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """One guarantee with its verdict."""

    guarantee: Guarantee
    verdict: Verdict


def verify_text(
    integrity: Sequence[Verdict],
    guarantees: Sequence[VerifiedRow],
    simulated: Sequence[Verdict] = (),
    evidence: Sequence[Evidence] = (),
    omissions: Sequence[Omission] = (),
    *,
    verbose: bool = False,
) -> str:
    """The output of ``privctl verify``: the conclusion in one sentence, then the checks and the guarantees.

    ``integrity`` are the verdicts on files and on the report's consistency, ``simulated`` and ``evidence`` come from
    simulations; ``verbose`` also lists the checks that passed.
    """
    verdicts = [*integrity, *(row.verdict for row in guarantees), *simulated]
    word, _, rest = verification_sentence(verdicts, [row.guarantee for row in guarantees]).partition(":")
    parts = [paragraph(f"{coloured(word, _COLOURS[word])}:{plain(rest)}"), "\n"]
    parts += [*_checks(integrity, verbose), "\n", *_guarantees(guarantees, integrity)]
    if simulated:
        parts.append("\nSimulated:\n")
        parts += [_indented(f"{plain(v.subject)}: {outcome_word(v.outcome)}: {plain(v.reason)}") for v in simulated]
        parts += [
            _indented(f"{plain(e.quantity)}: {number(e.estimate, 4)} ({plain(e.method)}); {plain(e.reason)}")
            for e in evidence
        ]
    parts += [paragraph(f"not checked: {said}") for said in _omitted(omissions)]
    return "".join(parts)


def _omitted(omissions: Sequence[Omission]) -> Iterator[str]:
    """What was not checked and why; the inputs whose digests were not compared for one reason are said at once."""
    absent: dict[str, list[str]] = {}
    for each in omissions:
        if each.what.startswith(_INPUT):
            absent.setdefault(each.reason, []).append(each.what.removeprefix(_INPUT))
    for each in omissions:
        names = absent.get(each.reason, []) if each.what.startswith(_INPUT) else []
        if len(names) < 2:
            yield f"{plain(each.what)}: {plain(each.reason)}"
        elif each.what == _INPUT + names[0]:
            why = "they are not at hand" if each.reason == "it is not at hand" else each.reason
            yield f"digests of {len(names)} inputs, {', '.join(map(plain, names))}: {plain(why)}"


def _checks(integrity: Sequence[Verdict], verbose: bool) -> Iterator[str]:
    """How many checks passed, and each that did not."""
    if not integrity:
        yield paragraph("The report names no file that could be checked, and no fault was found in its parameters.")
        return
    good = [v for v in integrity if v.outcome in (Outcome.PROVED, Outcome.CONSISTENT)]
    subjects = {verdict.subject for verdict in integrity}
    checked = ["files", "reports", "parameters", *(subject for subject in _MEASURED if subject in subjects)]
    what = f"{', '.join(checked[:-1])} and {checked[-1]}"
    yield paragraph(f"{len(good)} of {counted(len(integrity), 'check')} of {what} passed")
    for verdict in integrity:
        if verbose or verdict.outcome is not Outcome.PROVED:
            yield _indented(f"{outcome_word(verdict.outcome)}: {plain(verdict.subject)}: {plain(verdict.reason)}")


def _guarantees(guarantees: Sequence[VerifiedRow], integrity: Sequence[Verdict]) -> Iterator[str]:
    """Their table, what it does and does not judge, and the reason for each verdict."""
    if not guarantees:
        yield "The report states no guarantee.\n"
        return
    rows = [
        [plain(row.verdict.subject), bound(row.guarantee.epsilon), bound(row.guarantee.delta),
         status_word(row.guarantee.status), outcome_word(row.verdict.outcome)]
        for row in guarantees
    ]  # fmt: skip
    yield paragraph(_judged_text(integrity)) + "\n"
    yield table(["guarantee", "epsilon", "delta", "the report says", "arithmetic"], rows) + "\n"
    for row in guarantees:
        yield _indented(f"{plain(row.verdict.subject)}: {plain(row.verdict.reason)}")
    yield from _asserted(guarantees)
    if any(r.guarantee.status is Status.CLAIMED and r.verdict.outcome is Outcome.REFUTED for r in guarantees):
        yield _indented(
            "A guarantee that the report itself marks as claimed promises nothing, so it does not fail the report."
        )


def _asserted(guarantees: Sequence[VerifiedRow]) -> Iterator[str]:
    """The assumptions that no program checked, once for all guarantees that rest on the same ones."""
    resting: dict[tuple[str, ...], list[str]] = {}
    for row in guarantees:
        if row.guarantee.status not in (Status.PROVED, Status.CONDITIONAL):
            continue
        asserted = (
            assumption.statement
            for assumption in row.guarantee.assumptions
            if assumption.state is AssumptionState.ASSERTED
        )
        if statements := tuple(dict.fromkeys(asserted)):
            resting.setdefault(statements, []).append(plain(row.verdict.subject))
    for statements, names in resting.items():
        holds = "holds" if len(names) == 1 else "hold"
        yield _indented(
            f"{'; '.join(names)}: {holds} if the following is true, which only the report's author asserts:"
        )
        yield from (paragraph(f"- {plain(statement)}", indent=4, hanging=6) for statement in statements)


def _judged_text(integrity: Sequence[Verdict]) -> str:
    """What the table of guarantees judges, so that nobody takes its PROVED for more."""
    outcomes = {verdict.outcome for verdict in integrity}
    if Outcome.REFUTED in outcomes:
        return (
            "A check above is REFUTED, so do not rely on this report. The table judges only its arithmetic: PROVED "
            "there promises nothing about this model."
        )
    alone = "The table judges only the report's arithmetic: whether each number follows from what the report states"
    if Outcome.INCONCLUSIVE in outcomes:
        return f"{alone}. A check above is INCONCLUSIVE, so what the report states may not be true of this model."
    return f"{alone}."


def _indented(text: str) -> str:
    return paragraph(text, indent=2)
