"""The partial result of a scan: the findings in one shard of the data, as JSON lines that only the owner may read.

The first line says what was scanned and how, each further line is a candidate, and the last has a digest of the others.
Like the book it holds secrets, and also candidates that can only be decided with all shards: words that are rare in
this shard, and matches that are part of longer ones. Records are counted from 0 within the shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from privctl.data.packed import byte_lines
from privctl.domain.errors import InputError
from privctl.secrets.scan.occurrences import SecretCandidate
from privctl.secrets.scan.report import packed_stream
from privctl.secrets.scan.search import SearchState
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import tag

#: The name and version of the format.
_NAME, _FORMAT = "privctl secrets scan --shard", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRead:
    """Bytes ``begin`` to ``end`` of file number ``file``, their ``digest``, and the number ``rows`` of their records.

    The first share of a file also has its ``form`` and ``types`` (see ``FileFacts``), and ``digests``: that of the
    whole file and, if it is split, that of each of its shares.
    """

    file: int
    begin: int
    end: int
    rows: int
    digest: str
    digests: tuple[str, ...] = ()
    form: str = "text"
    types: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file's absolute path, and its size in bytes."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHeader:
    """What the scan of shard ``shard`` (from 1) ``of`` all shards read and searched for.

    ``settings`` are the options by name, ``kinds`` the names of all kinds searched for in texts, ``data`` the paths as
    given. ``literals`` is the file of listed texts, with its digest, and ``listed`` the number of these texts.
    """

    shard: int
    of: int
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    kinds: tuple[str, ...]
    data: tuple[str, ...]
    files: tuple[ReadFile, ...]
    shares: tuple[ShareRead, ...]
    records: int
    literals: ReadFile | None = None
    literals_digest: str | None = None
    listed: int = 0


def write_part(pending: PendingFile, header: PartHeader, state: SearchState) -> int:
    """Write the partial result and return its number of candidates. Raises FileSystemError if writing fails."""
    digest, count = blake3(), 0
    with packed_stream(pending) as stream:

        def write(line: Any, *, sealed: bool = True) -> None:
            text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            if sealed:
                digest.update(text)
            stream.write(text)

        write({"is": _NAME, "format": _FORMAT, **asdict(header)})
        for rare, table in enumerate((state.occurrences, state.rare)):
            for candidate in table.candidates():
                key = None if candidate.key == candidate.value else candidate.key
                write(
                    [
                        rare,
                        candidate.kind,
                        candidate.value,
                        key,
                        int(candidate.counts),
                        candidate.total,
                        candidate.records.tolist(),
                    ]
                )
                count += 1
        write({"candidates": count, "digest": tag(digest)}, sealed=False)
    return count


def read_header(path: Path) -> PartHeader:
    """The header of the partial result at ``path``. Raises InputError for any other file."""
    line = next(byte_lines(path), b"")
    row = _json(line, path)
    if not isinstance(row, dict) or row.get("is") != _NAME:
        raise _not_a_part(path)
    if row.get("format") != _FORMAT:
        raise InputError(f"{path} is of a format that another version of privctl wrote; merge with that version")
    try:
        return _header(row)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise _not_a_part(path) from None


def add_candidates(path: Path, header: PartHeader, state: SearchState) -> None:
    """Add the candidates of the partial result at ``path`` to ``state``, whose records precede its own.

    Raises InputError for a file that was truncated or changed; ``state`` must not be used then.
    """
    digest, lines = blake3(), 0
    tables = (state.occurrences, state.rare)
    kinds = (len(header.kinds) + (header.settings.get("by") is not None), 1)
    last: bytes | None = None
    for line in byte_lines(path):
        if last is not None:
            digest.update(last)
            if lines:
                rare, candidate = _candidate(_json(last, path), path, header.records, kinds)
                tables[rare].add_candidate(candidate, state.records)
            lines += 1
        last = line
    if _json(last or b"", path) != {"candidates": lines - 1, "digest": tag(digest)}:
        raise InputError(f"{path} was cut off or changed after it was written; scan its shard again")
    state.records += header.records


def _header(row: Mapping[str, Any]) -> PartHeader:
    literals = row["literals"]
    header = PartHeader(
        shard=_whole_number(row["shard"]),
        of=_whole_number(row["of"]),
        versions={str(name): str(version) for name, version in row["versions"].items()},
        settings=dict(row["settings"]),
        kinds=tuple(map(str, row["kinds"])),
        data=tuple(map(str, row["data"])),
        files=tuple(_file(file) for file in row["files"]),
        shares=tuple(_share(share) for share in row["shares"]),
        records=_whole_number(row["records"]),
        literals=None if literals is None else _file(literals),
        literals_digest=row["literals_digest"],
        listed=_whole_number(row["listed"]),
    )
    if not 1 <= header.shard <= header.of or any(share.file >= len(header.files) for share in header.shares):
        raise ValueError
    return header


def _file(row: Mapping[str, Any]) -> ReadFile:
    return ReadFile(path=str(row["path"]), bytes=_whole_number(row["bytes"]))


def _share(row: Mapping[str, Any]) -> ShareRead:
    return ShareRead(
        **{name: _whole_number(row[name]) for name in ("file", "begin", "end", "rows")},
        digest=str(row["digest"]),
        digests=tuple(map(str, row["digests"])),
        form=str(row["form"]),
        types=None if row["types"] is None else {str(name): str(kind) for name, kind in row["types"].items()},
    )


def _whole_number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _candidate(row: Any, path: Path, most: int, kinds: tuple[int, int]) -> tuple[int, SecretCandidate]:
    """(table, candidate) of a line. Raises InputError for records not below ``most``, or a kind that is unknown."""
    try:
        rare, kind, value, key, counts, total, listed = row
        records = np.array(listed, np.int64)
        texts = isinstance(value, str) and isinstance(value if key is None else key, str)
        rising = len(records) == 0 or (records[0] >= 0 and (np.diff(records) > 0).all() and records[-1] < most)
        whole = all(type(number) is int for number in (rare, kind, counts, total, *listed))
        fits = rare in (0, 1) and 0 <= kind < kinds[rare] and counts in (0, 1) and len(records) <= total <= most
    except (TypeError, ValueError, OverflowError, IndexError):
        raise _not_a_part(path) from None
    if not (texts and rising and whole and fits and records.ndim == 1):
        raise _not_a_part(path)
    key = value if key is None else key
    return rare, SecretCandidate(kind=kind, key=key, value=value, counts=bool(counts), total=total, records=records)


def _json(line: bytes, path: Path) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _not_a_part(path) from None


def _not_a_part(path: Path) -> InputError:
    return InputError(f"{path} is not the partial result of a scan; give what privctl secrets scan --shard I/N wrote")
