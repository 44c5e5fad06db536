"""The terminal view of a log of audits: each audit with its result, and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privctl.domain.shown import counted
from privctl.show.plain import plain
from privctl.show.text.style import paragraph, short, table


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One audit: its first ``line``, when it was begun, the digest of the model's ``folder``, and how it ended.

    ``end`` is the digest of its report where one was ``written``, else why there is none, and empty where nothing says.
    """

    line: int
    at: str
    folder: str
    written: bool
    end: str
    worst: Mapping[str, float]


def audit_log_text(path: str, rows: Sequence[LogRow], *, lines: int, head: str, torn: bool) -> str:
    """The log at ``path`` with its ``lines``."""
    cells = [[str(row.line), plain(row.at), plain(short(row.folder)), _became(row)] for row in rows]
    text = table(["line", "begun", "model", "what came of it"], cells) + "\n" if rows else "no audit was begun\n"
    text += paragraph(
        f"{path}: the chain of its {counted(lines, 'line')} is whole; the head, which stands for all, is {head}"
    )
    if torn:
        text += paragraph("its last line was cut short by a kill and says nothing; the next audit takes it off")
    return text + paragraph(
        "whoever holds the file can write another log from the start: keep the head, or have it signed (privctl sign)"
    )


def _became(row: LogRow) -> str:
    if row.written:
        worst = ", ".join(f"{name} {value:.4g}" for name, value in sorted(row.worst.items()))
        return f"report {plain(short(row.end))}" + (f" ({plain(worst)})" if worst else "")
    return f"no report: {plain(row.end)}" if row.end else "no report, and nothing says why"
