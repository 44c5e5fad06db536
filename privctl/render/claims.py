"""The book of claims on the terminal: a table of verdicts, then why, what holds, and what to check by hand."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from privctl.render.text import table

_WIDTH = 100
_HOLDS_WIDTH = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One judged claim as it is shown; ``expected`` None where nobody has judged it before."""

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


def book_text(rows: Sequence[ClaimRow], unchecked: Sequence[Omission]) -> str:
    """All of it: the table, the claims with their reasons by paper, what was not checked, and the count."""
    body = [[row.key, str(row.outcome), _cut(row.holds), f"{row.seconds:.2f}"] for row in rows]
    lines = [table(["claim", "verdict", "what holds", "seconds"], body)]
    paper = ""
    for row in rows:
        if row.paper != paper:
            paper = row.paper
            lines.append(f"{paper}\n")
        lines += [f"{line}\n" for line in claim_lines(row)]
    if unchecked:
        lines.append("\nNot checked:\n")
        for each in unchecked:
            lines += [f"{line}\n" for line in _wrapped("  - ", f"{each.what}: {each.reason}")]
    lines.append(f"\n{_count(rows)}\n")
    return "".join(lines)


def claim_lines(row: ClaimRow) -> Iterator[str]:
    """One claim with everything found about it."""
    yield ""
    yield from _wrapped(f"  {row.outcome}: ", f"{row.key}: {row.statement}" if row.key else row.statement)
    if row.expected is not None and row.expected is not row.outcome:
        yield f"    THE BOOK EXPECTS {row.expected}"
    for label, text in (("why", row.reason), ("holds", row.holds), ("check", row.witness)):
        if text:
            yield from _wrapped(f"    {label:<6} ", text)


def _count(rows: Sequence[ClaimRow]) -> str:
    found = Counter(row.outcome for row in rows)
    parts = ", ".join(f"{found[outcome]} {outcome}" for outcome in Outcome if found[outcome])
    return (
        f"{len(rows)} claims: {parts}; {sum(row.theorems for row in rows)} theorems put to the solver, "
        f"{sum(row.seconds for row in rows):.1f} s"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _HOLDS_WIDTH else f"{text[: _HOLDS_WIDTH - 4].rstrip(' ,;')} ..."


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=label, subsequent_indent=" " * (len(label) if len(label) < 12 else 6)
    )
