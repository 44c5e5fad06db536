"""What a report records of the data: the digest of each file, or of a folder of class folders as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from privctl.data.places import STDIN, data_files, holds_classes
from privctl.data.several import DataPath, SeveralPaths
from privctl.domain.errors import InputError
from privctl.domain.report import Artifact
from privctl.storage.digest import DigestedFile, NamedFiles, bytes_digest, file_digest


def recorded_files(path: DataPath) -> tuple[DigestedFile, ...]:
    """The files of the data at ``path`` with their digests; a folder of class folders is one entry.

    Records that name WAV files are followed by one entry for all these files, with the path of the records' folder. For
    several paths, the files of each in order. Raises as ``data_files``, ``class_files`` and ``file_digest`` do.
    """
    if isinstance(path, SeveralPaths):
        return tuple(file for each in path.paths for file in recorded_files(each))
    if holds_classes(path):
        return (_of_classes(path),)
    files = [file for file in data_files(path) if file.is_file()]
    recorded = [
        DigestedFile(path=path if path == STDIN else file, digest=file_digest(file), bytes=file.stat().st_size)
        for file in files
    ]
    if path != STDIN:
        from privctl.data.sounds import lists_sounds  # not at the start: ``privctl noise`` mostly reads no data

        if lists_sounds(path):
            recorded.append(_of_sounds(path))
    return tuple(recorded)


def require_same(path: DataPath, before: Iterable[DigestedFile]) -> None:
    """Raise InputError if ``recorded_files`` now differs from ``before``, its result before the data was read."""
    if recorded_files(path) != tuple(before):
        raise changed(path)


def data_as_recorded(files: Sequence[tuple[Path, Artifact]], read: NamedFiles) -> DataPath | None:
    """The data that a report names by these artifacts, each at its place; None if one is missing or has changed.

    Also None for a folder of class folders and for records that name sound files. ``read`` remembers digests.
    """
    for place, artifact in files:
        if not place.is_file() or not read.is_as_recorded(place, artifact.digest, artifact.bytes):
            return None
    places = tuple(place for place, _ in files)
    return SeveralPaths(places) if len(places) > 1 else next(iter(places), None)


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


def _of_classes(path: Path) -> DigestedFile:
    from privctl.data.images import class_files

    files = class_files(path)
    digest = _joint_digest((f"{label}/{file.name}", file_digest(file)) for label, file in files)
    return DigestedFile(path=path, digest=digest, bytes=sum(file.stat().st_size for _, file in files))


def _of_sounds(path: Path) -> DigestedFile:
    from privctl.data.sounds import listed_sounds

    files = listed_sounds(path)
    digest = _joint_digest((file.name, file_digest(file)) for file in files)
    return DigestedFile(path=path.parent, digest=digest, bytes=sum(file.stat().st_size for file in files))


def _joint_digest(named: Iterable[tuple[str, str]]) -> str:
    return bytes_digest(b"".join(f"{name}\0{digest}\n".encode("utf-8", "surrogateescape") for name, digest in named))
