"""The files that a statement is about, with digests that other tools can verify."""

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
    """``data``, read from ``paths``, with the models' files and the SHA-256 digests of the reports.

    A file has the digest that its report records, and SHA-256 too if the file exists. Raises InputError if a file is
    not the one that its report recorded, or if no report is of a step that wrote a model.
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
            "no report given is of a step that wrote a model, so there is nothing to make a statement about; give one"
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
            raise InputError(f"{place} is not the file that its report recorded; restore that file, or move this one")
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
