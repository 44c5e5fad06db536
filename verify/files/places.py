"""The paths of the files that a report names, and which of them exist."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from privctl.domain.report import Artifact
from privctl.storage.digest import NamedFiles


def located(path: Path, named: str) -> Path:
    """The absolute path of the file that the report at ``path`` calls ``named``."""
    return Path(os.path.normpath(path.parent.absolute() / named))


def at_hand(path: Path, artifacts: Sequence[Artifact]) -> list[tuple[Artifact, Path]]:
    """Those of ``artifacts`` that exist as files, each with its path."""
    return [(a, place) for a in artifacts if os.path.isfile(place := located(path, a.path))]


def as_recorded(path: Path, artifact: Artifact) -> Path | None:
    """The path of ``artifact`` of the report at ``path``; None if it is missing or no longer as recorded."""
    place = located(path, artifact.path)
    return (
        place if os.path.isfile(place) and NamedFiles().is_as_recorded(place, artifact.digest, artifact.bytes) else None
    )
