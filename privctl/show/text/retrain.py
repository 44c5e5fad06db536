"""A finished retraining, for the terminal."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.show.text.guarantee import guarantee_text
from privctl.show.text.style import notes, number, paragraph, table


def retrain_text(report: PrivacyReport, *, verbose: bool = False, only: str | None = None) -> str:
    """Measures of the last epoch, then each guarantee with what it rests on, or that there is none.

    Of the notes, with ``only``, that one alone.
    """
    rows = [[item.quantity, number(item.estimate, 5)] for item in report.evidence]
    parts = [table(["measured", "last epoch"], rows)] if rows else []
    several = len(report.guarantees) > 1
    parts += [guarantee_text(guarantee, named=several, verbose=verbose) for guarantee in report.guarantees]
    parts += [paragraph(f"withheld: {item.what}: {item.reason}") for item in report.omissions]
    warnings = [warning for warning in report.warnings if only in (None, warning)]
    if warnings:
        parts.append(notes(warnings))
    return "\n".join(parts)
