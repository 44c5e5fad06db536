"""A scan for secrets on the terminal: how many of each kind, never one of them in full."""

from __future__ import annotations

from collections.abc import Mapping

from privctl.domain.report import PrivacyReport
from privctl.show.text.style import table

_STARS = "*****"


def scan_text(report: PrivacyReport, examples: Mapping[str, str]) -> str:
    """A table of kinds of secrets, with a masked one of ``examples`` each, and their number."""
    kinds = report.parameters["found"]
    rows = [
        (
            kind,
            str(counts["secrets"]),
            str(counts["records"]),
            str(counts["most_records"]),
            mask(examples[kind]) if kind in examples else "-",
        )
        for kind, counts in kinds.items()
    ]
    secrets = sum(counts["secrets"] for counts in kinds.values())
    records = report.parameters["dataset_size"]
    count = {0: "No secret was found", 1: "1 secret"}.get(secrets, f"{secrets} secrets")
    summary = f"{count} in {records} records."
    return f"{table(('kind', 'secrets', 'records', 'most records of one', 'example'), rows)}\n{summary}\n"


def mask(value: str) -> str:
    """What may be shown of a secret: an end of it, less of a short one, and not how long it is."""
    if len(value) < 6:
        return _STARS
    ends = (value[:2], value[-2:]) if len(value) >= 12 else (value[:1], "")
    return _STARS.join("".join(sign if sign.isprintable() else "?" for sign in end) for end in ends)
