"""The report of a scan: what was looked for in which data and how much was found, but none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.files import file_artifact, now, versions
from privctl.secrets.scan.finds import SecretGroup
from privctl.secrets.scan.request import ScanRequest

_KEEP = (
    "the book holds the secrets themselves: keep it as you keep the data; this report holds none, but patterns as they "
    "were given, and digests of the files, which tell whoever guesses a file whether that is right"
)
_LIMITS = (
    "a scan finds what it looks for: names, places and whatever else has no form of its own are found only where "
    "--literals, --pattern or --by name them"
)


def report_of(
    request: ScanRequest,
    patterns: Mapping[str, str],
    groups: Sequence[SecretGroup],
    *,
    records: int,
    unseen: int,
    book: Artifact | None,
) -> PrivacyReport:
    """The report of a scan of ``records`` records; ``book`` is None where nothing was found.

    ``unseen`` is how many listed texts are in no record.
    """
    place = request.report
    inputs = {"data": request.data, "literals": request.literals}
    found = {
        group.kind: {
            "secrets": len(group),
            "records": group.holders,
            "memberships": len(group.records),
            "most_records": group.most,
        }
        for group in groups
    }
    parameters = {
        "kinds": [group.kind for group in groups],
        "patterns": dict(patterns),
        "by": request.by,
        "rare_words": request.rare_words,
        "rare_least": request.rare_least,
        "most_secrets": request.most_secrets,
        "pattern_seconds": request.pattern_seconds,
        "dataset_size": records,
        "found": found,
    }
    warnings = [_KEEP, _LIMITS]
    if unseen:
        warnings.append(
            f"{unseen} of the listed texts {'is' if unseen == 1 else 'are'} in no record, and not in the book"
        )
    return PrivacyReport(
        step="secrets-scan",
        created=now(),
        versions=versions(("numpy", "regex", "blake3")),
        inputs=tuple(file_artifact(role, path, place) for role, path in inputs.items() if path is not None),
        outputs=() if book is None else (book,),
        parameters=parameters,
        warnings=tuple(warnings),
    )
