"""The file of scores that an audit kept, and the figures that are computed again from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.storage.digest import NamedFiles
from verify.files.places import located


@dataclass(frozen=True, slots=True, kw_only=True)
class Recounted:
    """The figures that were computed again, and the differences, one sentence each."""

    items: tuple[Evidence, ...] = ()
    wrong: tuple[str, ...] = ()


def kept_file(path: Path, report: PrivacyReport, files: NamedFiles) -> Path | None:
    """The file of scores that the audit report at ``path`` names; None if it is missing or not the recorded one."""
    named = next((artifact for artifact in report.outputs if artifact.role == "scores"), None)
    if named is None:
        return None
    place = located(path, named.path)
    return place if os.path.isfile(place) and files.digest(place) == named.digest else None
