"""A verification, for the terminal: faults first, then every guarantee with its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import AssumptionState, Guarantee, Status
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.plain import plain
from privctl.show.text.style import bound, number, outcome_word, paragraph, status_word, table

#: What is measured where a report and the files at hand allow it; everything else is checked of every report.
_MEASURED = ("weights", "noise")


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
    """The whole answer to ``privctl verify``; ``verbose`` with the checks that passed."""
    parts = [*_bytes(integrity, verbose), "\n", *_guarantees(guarantees, integrity)]
    if simulated:
        parts.append("\nSimulated:\n")
        parts += [_indented(f"{plain(v.subject)}: {outcome_word(v.outcome)}: {plain(v.reason)}") for v in simulated]
        parts += [
            _indented(f"{plain(e.quantity)}: {number(e.estimate, 4)} ({plain(e.method)}); {plain(e.reason)}")
            for e in evidence
        ]
    parts += [paragraph(f"not looked at: {plain(o.what)}: {plain(o.reason)}") for o in omissions]
    return "".join(parts)


def _bytes(integrity: Sequence[Verdict], verbose: bool) -> Iterator[str]:
    """How much of the chain is intact, and each fault."""
    if not integrity:
        yield paragraph("the report names no file that could be checked, and no fault was found in its parameters")
        return
    good = [v for v in integrity if v.outcome in (Outcome.PROVED, Outcome.CONSISTENT)]
    subjects = {verdict.subject for verdict in integrity}
    checked = ["files", "reports", "parameters", *(each for each in _MEASURED if each in subjects)]
    what = f"{', '.join(checked[:-1])} and {checked[-1]}"
    yield paragraph(f"{len(good)} of {counted(len(integrity), 'check')} of {what} passed")
    for verdict in integrity:
        if verbose or verdict.outcome is not Outcome.PROVED:
            yield _indented(f"{outcome_word(verdict.outcome)}: {plain(verdict.subject)}: {plain(verdict.reason)}")


def _guarantees(guarantees: Sequence[VerifiedRow], integrity: Sequence[Verdict]) -> Iterator[str]:
    """Their table, what it does and does not judge, and why each verdict is what it is."""
    if not guarantees:
        yield "The report holds no guarantee.\n"
        return
    rows = [
        [plain(row.verdict.subject), bound(row.guarantee.epsilon), bound(row.guarantee.delta),
         status_word(row.guarantee.status), outcome_word(row.verdict.outcome)]
        for row in guarantees
    ]  # fmt: skip
    yield paragraph(_judged(integrity)) + "\n"
    yield table(["guarantee", "epsilon", "delta", "the report says", "arithmetic"], rows) + "\n"
    for row in guarantees:
        yield _indented(f"{plain(row.verdict.subject)}: {plain(row.verdict.reason)}")
    yield from _asserted(guarantees)
    if any(r.guarantee.status is Status.CLAIMED and r.verdict.outcome is Outcome.REFUTED for r in guarantees):
        yield _indented("What the report itself calls only claimed promises nothing, and fails nothing here.")


def _asserted(guarantees: Sequence[VerifiedRow]) -> Iterator[str]:
    """What no program checked of what the guarantees rest on; once, where several rest on the same."""
    resting: dict[tuple[str, ...], list[str]] = {}
    for row in guarantees:
        if row.guarantee.status not in (Status.PROVED, Status.CONDITIONAL):
            continue
        asserted = (each.statement for each in row.guarantee.assumptions if each.state is AssumptionState.ASSERTED)
        if statements := tuple(dict.fromkeys(asserted)):
            resting.setdefault(statements, []).append(plain(row.verdict.subject))
    for statements, names in resting.items():
        yield _indented(
            f"{', '.join(names)}: holds if the following is true, for which there is only the author's word:"
        )
        yield from (paragraph(f"- {plain(each)}", indent=4, hanging=6) for each in statements)


def _judged(integrity: Sequence[Verdict]) -> str:
    """What the table of guarantees is about, so that nobody takes its PROVED for more."""
    outcomes = {verdict.outcome for verdict in integrity}
    if Outcome.REFUTED in outcomes:
        return (
            "A check above is REFUTED, so this report does not hold. The table judges its arithmetic alone: PROVED "
            "there promises nothing about this model."
        )
    alone = "The table judges the report's arithmetic alone: whether each number follows from what the report states"
    if Outcome.INCONCLUSIVE in outcomes:
        return f"{alone}. A check above is INCONCLUSIVE, so what it states may not be true of this model."
    return f"{alone}."


def _indented(text: str) -> str:
    return paragraph(text, indent=2)
