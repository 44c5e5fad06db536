"""The files that a statement is about, with digests that other tools can check."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.report import Artifact
from privctl.reports.chain import path_of
from privctl.show.gather.sources import entries_of
from privctl.show.page_data import MODEL_ROLE, OutputFile, PageData
from privctl.storage.digest import file_digest
from privctl.storage.reader import unreadable

_ROLES = (MODEL_ROLE, "companion")
_BLOCK = 1 << 20


def with_files(data: PageData, paths: Sequence[Path]) -> PageData:
    """``data``, read from ``paths``, with the models' files and the reports' digests.

    A file has the digest its report records, and SHA-256 too where it is at hand. Raises InputError where a file at
    hand is not the one that its report wrote, or where no report wrote a model.
    """
    entries = dict(zip((source.key for source in data.sources), entries_of(paths), strict=True))
    files = [
        _file(entries[subject.source.key].path, artifact)
        for subject in data.subjects
        for artifact in subject.source.report.outputs
        if artifact.role in _ROLES and subject.source.models
    ]
    if not files:
        raise InputError(
            "no report here wrote a model, so there is nothing to make a statement over; give one that did"
        )
    reports = {key: {"sha256": _sha256(entry.path)} for key, entry in entries.items()}
    return replace(data, files=tuple(files), report_files=reports)


def _file(report: Path, artifact: Artifact) -> OutputFile:
    place = path_of(report, artifact)
    return OutputFile(name=artifact.path, digests=dict(_digests(place, artifact)))


def _digests(place: Path, artifact: Artifact) -> Iterator[tuple[str, str]]:
    algorithm, _, value = artifact.digest.partition(":")
    if not value:
        raise InputError(
            f"the digest {artifact.digest[:40]!r} of {artifact.path[:80]!r} is not of the form algorithm:hex"
        )
    yield algorithm, value
    if os.path.isfile(place):
        if file_digest(place) != artifact.digest:
            raise InputError(f"{place} is not the file that its report wrote; put the right one there, or move it away")
        yield "sha256", _sha256(place)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()
