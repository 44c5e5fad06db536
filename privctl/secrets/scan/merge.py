"""Merges the partial results of all shards of a scan into the same book and report as a scan in one pass.

The data is not read again: each partial result has the digests of the bytes that it read, and the first share of each
file has those of all its shares. So parts of different data, settings or versions are detected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from privctl.data.agreement import FileFacts, FileRead, require_agreement
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Progress
from privctl.domain.progress import unseen as silent_progress
from privctl.domain.shown import counted
from privctl.secrets.scan.part import PartHeader, ReadFile, ShareRead, add_candidates, read_header
from privctl.secrets.scan.report import InputFile, versions_of
from privctl.secrets.scan.request import ScanRequest, request_from
from privctl.secrets.scan.run import ScanResult, require_writable_outputs, write_result
from privctl.secrets.scan.search import check_amount, empty_state, groups_of
from privctl.storage.digest import DigestedFile

#: Setting -> option, if their names differ.
_FLAGS = {"patterns": "pattern"}


def merge_parts(
    paths: Sequence[Path], output: Path | None, progress: Progress | None = None, *, force: bool = False
) -> ScanResult:
    """Merge the partial results at ``paths``, in any order, and write book and report as ``scan`` does.

    Raises InputError unless the parts are those of one scan, each given once, and for more secrets than allowed;
    CommandError for existing files; FileSystemError if a file cannot be read or written.
    """
    parts = _ordered({path: read_header(path) for path in paths}, paths)
    path, header = parts[0]
    try:
        literals = None if header.literals is None else Path(header.literals.path)
        request = request_from(header.settings, header.data, literals, output)
        used = versions_of(request)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} has settings that no scan has; scan its shard again") from None
    if not {*map(os.path.realpath, paths)}.isdisjoint(map(os.path.realpath, request.places)):
        raise CommandError(f"{output} is a partial result to be merged; choose another --output")
    require_writable_outputs(request, force=force)
    _require_same("this program", used, path, header.versions, _VERSION)
    inputs = list(_inputs(request, parts))
    state = empty_state(header.kinds, request)
    with (progress or silent_progress)("merging", len(parts), "parts") as advance:
        for path, part in parts:
            add_candidates(path, part, state)
            check_amount(state, state.rare.stored_in(request.rare_least), request, f"{path}, with those before it,")
            advance(1)
    return write_result(
        request, groups_of(state, request), inputs, records=state.records, listed=header.listed, force=force
    )


def _ordered(headers: Mapping[Path, PartHeader], paths: Sequence[Path]) -> list[tuple[Path, PartHeader]]:
    """The parts in the order of the data. Raises InputError unless they are all parts of one scan, each given once."""
    first = paths[0]
    whole, by_shard = headers[first], dict[int, Path]()
    for path in paths:
        part = headers[path]
        if part.of != whole.of:
            raise InputError(
                f"{path} is one of {counted(part.of, 'shard')}, and {first} one of {whole.of}; give the parts of one "
                "scan"
            )
        if (other := by_shard.setdefault(part.shard, path)) is not path or paths.count(path) > 1:
            raise InputError(f"{path} and {other} are both shard {part.shard} of {part.of}; give each shard once")
        _require_same(first, whole.versions, path, part.versions, _VERSION)
        _require_same(first, _findings_settings(whole), path, _findings_settings(part), _SETTING)
        _require_same_files(first, whole, path, part)
    if missing := whole.of - len(by_shard):
        # The stated number of shards may be too large to list them all.
        least = list(islice((shard for shard in range(1, whole.of + 1) if shard not in by_shard), min(missing, 5)))
        listed = ", ".join(map(str, least)) + (", ..." if missing > 5 else "")
        which = f"shard {listed} of {whole.of} is" if missing == 1 else f"shards {listed} of {whole.of} are"
        raise InputError(
            f"{which} missing; scan with --shard {least[0]}/{whole.of} and give each part that is missing too"
        )
    return [(by_shard[shard], headers[by_shard[shard]]) for shard in sorted(by_shard)]


_VERSION = "{} was made {}, and {} {}; scan all shards and merge them with the same versions"
_SETTING = "{} was scanned {}, and {} {}; scan all shards with the same options"


def _require_same(
    first: object, one: Mapping[str, Any], path: Path, other: Mapping[str, Any], explanation: str
) -> None:
    for name in sorted(one.keys() | other.keys()):
        values = one.get(name), other.get(name)
        if values[0] != values[1]:
            raise InputError(
                explanation.format(path, _option_text(name, values[1]), first, _option_text(name, values[0]))
            )


def _option_text(name: str, value: Any) -> str:
    if value in (None, [], "", False):
        return f"without {name}"
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"with {name}" if value is True else f"with {name} {shown}"


def _findings_settings(header: PartHeader) -> dict[str, Any]:
    """All settings that affect the findings, by option."""
    settings = {f"--{_FLAGS.get(name, name).replace('_', '-')}": value for name, value in header.settings.items()}
    return {**settings, "--literals": header.literals_digest, "the kinds": list(header.kinds)}


def _require_same_files(first: Path, whole: PartHeader, path: Path, part: PartHeader) -> None:
    """Raise InputError unless names and sizes of files agree; folders may differ from machine to machine."""
    if len(part.files) != len(whole.files):
        raise InputError(
            f"{path} is of {counted(len(part.files), 'file')} of data, and {first} of {len(whole.files)}; scan all "
            "shards of the same data"
        )
    for one, other in zip(whole.files, part.files, strict=True):
        if _name(one) != _name(other) or one.bytes != other.bytes:
            raise InputError(
                f"{path} is of other data: it read {other.path} of {counted(other.bytes, 'byte')}, and {first} read "
                f"{one.path} of {one.bytes}; scan all shards of the same data"
            )


def _name(file: ReadFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _inputs(request: ScanRequest, parts: Sequence[tuple[Path, PartHeader]]) -> Iterator[InputFile]:
    """The files that were read, with their digests. Raises InputError if shards read different bytes."""
    header = parts[0][1]
    read: list[list[tuple[Path, ShareRead]]] = [[] for _ in header.files]
    for path, part in parts:
        for share in part.shares:
            read[share.file].append((path, share))
    facts = []
    for file, shares in zip(header.files, read, strict=True):
        digest = _file_digest(file, shares)
        rows = sum(share.rows for _, share in shares)
        facts.append(
            FileRead(place=file.path, rows=rows, facts=FileFacts(form=shares[0][1].form, types=shares[0][1].types))
        )
        yield "data", DigestedFile(path=Path(file.path), digest=digest, bytes=file.bytes)
    require_agreement(request.data, facts, request.columns, request.by)
    if header.literals is not None and header.literals_digest is not None:
        literals = header.literals
        yield (
            "literals",
            DigestedFile(path=Path(literals.path), digest=header.literals_digest, bytes=literals.bytes),
        )


def _file_digest(file: ReadFile, shares: Sequence[tuple[Path, ShareRead]]) -> str:
    """The digest of ``file``. Raises InputError unless the ``shares`` cover it and all read the same content."""
    ends = [0, *(share.end for _, share in shares)]
    if not shares or [share.begin for _, share in shares] != ends[:-1] or ends[-1] != file.bytes:
        raise InputError(f"{file.path} was not read once from end to end by these shards; scan them all again")
    whole, *digests = shares[0][1].digests or ("",)
    digests = digests or [whole]
    for number, (path, share) in enumerate(shares):
        if len(digests) != len(shares) or digests[number] != share.digest:
            raise InputError(
                f"{path} read other bytes of {file.path} than {shares[0][0]}, so the file was changed between them; "
                "scan all shards again"
            )
    return whole
