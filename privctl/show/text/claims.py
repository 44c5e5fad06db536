"""Published claims, for the terminal: a table of verdicts, then reasons, what holds, and what to check by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome
from privctl.show.text.style import Colour, coloured, outcome_word, paragraph, table

_HOLDS_WIDTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One judged claim; ``expected`` is the recorded outcome, None if there is none."""

    paper: str
    key: str
    statement: str
    outcome: Outcome
    expected: Outcome | None
    reason: str
    holds: str
    witness: str
    theorems: int
    seconds: float


def book_text(rows: Sequence[ClaimRow], unchecked: Sequence[Omission], *, verbose: bool = False) -> str:
    """The table, the claims by paper with their reasons, what was not checked, and the counts.

    In the table, what holds is shortened unless ``verbose``; below it is given in full.
    """
    holds = [row.holds if verbose else _shortened(row.holds) for row in rows]
    body = [[r.key, outcome_word(r.outcome), h, f"{r.seconds:.2f}"] for r, h in zip(rows, holds, strict=True)]
    lines = [table(["claim", "verdict", "what holds", "seconds"], body)]
    paper = ""
    for row in rows:
        if row.paper != paper:
            paper = row.paper
            lines.append(f"{paper}\n")
        lines.append("\n" + claim_text(row))
    if unchecked:
        lines.append("\nNot checked:\n")
        for unchecked_claim in unchecked:
            lines.append(paragraph(f"- {unchecked_claim.what}: {unchecked_claim.reason}", indent=2))
    lines.append("\n" + paragraph(_count(rows)))
    return "".join(lines)


def claim_text(row: ClaimRow) -> str:
    """One claim with its verdict, its reason, what holds instead, and the witness to check."""
    claim = f"{row.key}: {row.statement}" if row.key else row.statement
    text = paragraph(f"{outcome_word(row.outcome)}: {claim}", indent=2, hanging=6)
    if row.expected is not None and row.expected is not row.outcome:
        text += f"    {coloured(f'EXPECTED {row.expected}', Colour.BAD)}\n"
    for label, more in (("why", row.reason), ("holds", row.holds), ("check", row.witness)):
        if more:
            text += paragraph(f"{label:<6} {more}", indent=4, hanging=11)
    return text


def _count(rows: Sequence[ClaimRow]) -> str:
    counts = Counter(row.outcome for row in rows)
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    return (
        f"{counted(len(rows), 'claim')}: {parts}; {counted(sum(row.theorems for row in rows), 'theorem')} given to "
        f"the solver, {sum(row.seconds for row in rows):.1f} s"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _HOLDS_WIDTH else f"{text[: _HOLDS_WIDTH - 4].rstrip(' ,;')} ..."
