"""A scan for secrets, for the terminal: counts by kind, and masked examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.parameters import ScanParameters, parameters_as
from privctl.show.text.style import paragraph, table

_STARS = "*****"


def scan_text(report: PrivacyReport, examples: Mapping[str, str], not_looked_for: Sequence[str]) -> str:
    """A table of the secrets by kind, each with a masked one of ``examples``, and what was not searched for.

    Raises ParametersError if the report is not of a scan.
    """
    parameters = parameters_as(ScanParameters, report)
    rows = [
        (
            kind,
            str(counts.secrets),
            str(counts.records),
            str(counts.most_records),
            mask(examples[kind]) if kind in examples else "-",
        )
        for kind, counts in parameters.found.items()
    ]
    secrets = sum(counts.secrets for counts in parameters.found.values())
    number = counted(secrets, "secret") if secrets else "No secret was found"
    summary = f"{number}; {counted(parameters.dataset_size, 'record was', 'records were')} searched."
    limits = paragraph(
        f"Not searched for: {'; '.join(not_looked_for)}. Describe what matters with --pattern, --literals or --by."
    )
    return f"{table(('kind', 'secrets', 'records', 'most records of one', 'example'), rows)}\n{summary}\n\n{limits}"


def mask(value: str) -> str:
    """A secret with only its ends shown (nothing if shorter than 6 characters); its length is not revealed."""
    if len(value) < 6:
        return _STARS
    ends = (value[:2], value[-2:]) if len(value) >= 12 else (value[:1], "")
    return _STARS.join("".join(sign if sign.isprintable() else "?" for sign in end) for end in ends)
