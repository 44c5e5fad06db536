"""What a report records of the data: the digest of each file, or of a folder of class folders as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from privctl.data.places import STDIN, data_files, holds_classes
from privctl.data.several import DataPath, SeveralPaths
from privctl.domain.errors import InputError
from privctl.domain.report import Artifact
from privctl.storage.digest import DigestedFile, NamedFiles, bytes_digest, file_digest
from privctl.storage.reader import require_ordinary


def recorded_files(path: DataPath) -> tuple[DigestedFile, ...]:
    """The files of the data at ``path`` with their digests; a folder of class folders is one entry.

    Records that name WAV files are followed by one entry for all these files, with the path of the records' folder. For
    several paths, the files of each in order. Raises as ``data_files``, ``class_files`` and ``file_digest`` do.
    """
    if isinstance(path, SeveralPaths):
        return tuple(file for folder in path.paths for file in recorded_files(folder))
    if holds_classes(path):
        return (_recorded_classes(path),)
    files = [file for file in data_files(path) if file.is_file()]
    recorded = [
        DigestedFile(path=path if path == STDIN else file, digest=file_digest(file), bytes=file.stat().st_size)
        for file in files
    ]
    if path != STDIN:
        from privctl.data.sounds import lists_sounds  # not at the start: ``privctl noise`` mostly reads no data

        if lists_sounds(path):
            recorded.append(_recorded_sounds(path))
    return tuple(recorded)


def require_same(path: DataPath, before: Iterable[DigestedFile]) -> None:
    """Raise InputError if ``recorded_files`` now differs from ``before``, its result before the data was read."""
    if recorded_files(path) != tuple(before):
        raise changed(path)


def data_as_recorded(files: Sequence[tuple[Path, Artifact]], read: NamedFiles) -> DataPath | None:
    """The data that a report names by these artifacts, each at its place; None if one is missing or has changed.

    An artifact is a file, a folder of class folders, or the sound files that the records before it name, as
    ``recorded_files`` gives them. ``read`` remembers digests.
    """
    places: list[Path] = []
    for place, artifact in files:
        if os.path.isfile(place):
            as_recorded = read.is_as_recorded(place, artifact.digest, artifact.bytes)
            places.append(place)
        elif places and place == places[-1].parent and (named := _named_by_records(places[-1])):
            as_recorded = _are_as_recorded(named, artifact, read)
        elif as_recorded := os.path.isdir(place) and holds_classes(place):
            as_recorded = _are_as_recorded(_named_in_classes(place), artifact, read)
            places.append(place)
        if not as_recorded:
            return None
    return SeveralPaths(tuple(places)) if len(places) > 1 else next(iter(places), None)


def _are_as_recorded(named: Sequence[tuple[str, Path]], artifact: Artifact, read: NamedFiles) -> bool:
    """Whether these files have the size and the joint digest of ``artifact``; only then all of them are read."""
    for _, file in named:
        require_ordinary(file)
    if sum(file.stat().st_size for _, file in named) != artifact.bytes:
        return False
    return _joint_digest((name, read.digest(file)) for name, file in named) == artifact.digest


def digested(path: Path) -> DigestedFile:
    """The single file at ``path`` with its digest, whatever it holds. Raises as ``file_digest`` does."""
    return DigestedFile(path=path, digest=file_digest(path), bytes=path.stat().st_size)


def require_unchanged(before: Iterable[DigestedFile]) -> None:
    """Raise InputError for the first file whose digest or size changed since ``before``."""
    for file in before:
        if digested(file.path) != file:
            raise changed(file.path)


def data_digest(path: DataPath) -> str:
    """The digest of the data at ``path``: for a single file, its BLAKE3.

    For several files, and for a folder of class folders, the BLAKE3 of one line per file in reading order: the name
    (``CLASS/NAME`` in class folders), a NUL, the file's digest and a line end. Raises as ``recorded_files`` does.
    """
    return digest_of(recorded_files(path))


def digest_of(files: Sequence[DigestedFile]) -> str:
    """``data_digest`` of data with these ``recorded_files``."""
    return files[0].digest if len(files) == 1 else _joint_digest((file.path.name, file.digest) for file in files)


def changed(path: DataPath) -> InputError:
    """The error for data that was changed while it was read."""
    return InputError(
        f"{path} was changed while it was read, so its digest would not be that of the records that were read; let "
        "nothing write to it, and run the command again"
    )


def _recorded_classes(path: Path) -> DigestedFile:
    return _joint(path, _named_in_classes(path))


def _recorded_sounds(path: Path) -> DigestedFile:
    return _joint(path.parent, _named_by_records(path))


def _named_in_classes(path: Path) -> list[tuple[str, Path]]:
    """(CLASS/NAME, file) of each image or sound in a folder of class folders."""
    from privctl.data.images import class_files

    return [(f"{label}/{file.name}", file) for label, file in class_files(path)]


def _named_by_records(path: Path) -> list[tuple[str, Path]]:
    """(name, file) of each sound that the records at ``path`` name; empty if they name none."""
    from privctl.data.sounds import listed_sounds, lists_sounds

    return [(file.name, file) for file in listed_sounds(path)] if lists_sounds(path) else []


def _joint(path: Path, named: Sequence[tuple[str, Path]]) -> DigestedFile:
    digest = _joint_digest((name, file_digest(file)) for name, file in named)
    return DigestedFile(path=path, digest=digest, bytes=sum(file.stat().st_size for _, file in named))


def _joint_digest(named: Iterable[tuple[str, str]]) -> str:
    return bytes_digest(b"".join(f"{name}\0{digest}\n".encode("utf-8", "surrogateescape") for name, digest in named))
