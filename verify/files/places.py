"""Where the files that a report names should lie, and which of them are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from privctl.domain.report import Artifact
from privctl.storage.digest import NamedFiles


def located(path: Path, named: str) -> Path:
    """Where the file that the report at ``path`` calls ``named`` should lie."""
    return Path(os.path.normpath(path.parent.absolute() / named))


def at_hand(path: Path, artifacts: Sequence[Artifact]) -> list[tuple[Artifact, Path]]:
    """Those of ``artifacts`` that are files there."""
    return [(a, place) for a in artifacts if os.path.isfile(place := located(path, a.path))]


def as_recorded(path: Path, artifact: Artifact) -> Path | None:
    """The file ``artifact`` of the report at ``path``; None where it is missing or another by now."""
    place = located(path, artifact.path)
    return place if place.is_file() and NamedFiles().is_as_recorded(place, artifact.digest, artifact.bytes) else None
