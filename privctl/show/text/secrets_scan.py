"""A scan for secrets on the terminal: how many of each kind, never one of them in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.parameters import ScanParameters, parameters_as
from privctl.show.text.style import paragraph, table

_STARS = "*****"


def scan_text(report: PrivacyReport, examples: Mapping[str, str], not_looked_for: Sequence[str]) -> str:
    """A table of kinds of secrets, with a masked one of ``examples`` each; their number; what was not looked for."""
    said = parameters_as(ScanParameters, report)
    rows = [
        (
            kind,
            str(counts.secrets),
            str(counts.records),
            str(counts.most_records),
            mask(examples[kind]) if kind in examples else "-",
        )
        for kind, counts in said.found.items()
    ]
    secrets = sum(counts.secrets for counts in said.found.values())
    number = counted(secrets, "secret") if secrets else "No secret was found"
    summary = f"{number}; {counted(said.dataset_size, 'record was', 'records were')} searched."
    limits = paragraph(
        f"Not looked for: {'; '.join(not_looked_for)}. Describe what matters with --pattern, --literals or --by."
    )
    return f"{table(('kind', 'secrets', 'records', 'most records of one', 'example'), rows)}\n{summary}\n\n{limits}"


def mask(value: str) -> str:
    """What may be shown of a secret: an end of it, less of a short one, and not how long it is."""
    if len(value) < 6:
        return _STARS
    ends = (value[:2], value[-2:]) if len(value) >= 12 else (value[:1], "")
    return _STARS.join("".join(sign if sign.isprintable() else "?" for sign in end) for end in ends)
