"""An audit log, for the terminal: each audit with its result, and the head of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privctl.domain.shown import counted
from privctl.show.plain import plain
from privctl.show.text.style import paragraph, short, table


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One audit: its first ``line``, when it began, the digest of the model's ``folder``, and how it ended.

    ``end`` is the digest of its report if one was ``written``; otherwise the reason why not, empty if unknown.
    """

    line: int
    at: str
    folder: str
    written: bool
    end: str
    worst: Mapping[str, float]


def audit_log_text(path: str, rows: Sequence[LogRow], *, lines: int, head: str, torn: bool) -> str:
    """The table of the audits in the log at ``path``, with the number of its ``lines`` and its ``head``.

    ``torn``: its last line is incomplete.
    """
    cells = [[str(row.line), plain(row.at), plain(short(row.folder)), _result(row)] for row in rows]
    text = table(["line", "begun", "model", "result"], cells) + "\n" if rows else "no audit was begun\n"
    text += paragraph(
        f"{path}: the chain of its {counted(lines, 'line')} is intact; its head, which identifies them all, is {head}"
    )
    if torn:
        text += paragraph("its last line is incomplete because a run was killed; the next audit removes it")
    return text + paragraph(
        "whoever has the file can write another log from the start: keep the head, or have it signed (privctl sign)"
    )


def _result(row: LogRow) -> str:
    if row.written:
        worst = ", ".join(f"{name} {value:.4g}" for name, value in sorted(row.worst.items()))
        return f"report {plain(short(row.end))}" + (f" ({plain(worst)})" if worst else "")
    return f"no report: {plain(row.end)}" if row.end else "no report, for an unknown reason"
