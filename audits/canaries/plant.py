"""Plants canaries: writes the data with copies of the included ones inserted, and the manifest."""

from __future__ import annotations

import bisect
import json
import os
import random
import secrets
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from blake3 import blake3

from audits.canaries.design import PlantRequest, draw, formats_of, randomness, register, shape_of
from audits.canaries.manifest import VERSION, Coins, DataFile, Manifest, commitment_of, encode_manifest
from privctl.data.columns import Columns, text_of
from privctl.data.packed import byte_lines
from privctl.data.places import data_files, require_inputs
from privctl.data.recorded import digest_of, recorded_files, require_same
from privctl.data.rows import is_json_lines, rows_of
from privctl.data.several import DataPath, SeveralPaths, real_paths
from privctl.domain.errors import CommandError
from privctl.reports.files import now, require_not_weights_or_report
from privctl.storage.atomic import PendingFile, require_absent, require_regular
from privctl.storage.commit import commit_together
from privctl.storage.digest import tag

_GZIP = 31  # zlib's window bits for a gzip file; it leaves the time in the header at 0
#: Bytes that are written at once.
_WRITTEN = 1 << 20
_UNFILLED = DataFile(name="", digest="", content="", records=0)


def plant(request: PlantRequest, *, force: bool = False) -> Manifest:
    """Write the planted data and the manifest, and return the manifest.

    Each canary is included, with all its copies, by its own fair coin. Every copy is inserted before a line chosen
    uniformly and independently; the lines themselves are copied byte for byte. Raises CommandError for settings that
    cannot be met and for files that exist, InputError for data that are not records or change meanwhile.
    """
    _check_paths(request, force)
    before = recorded_files(request.data)
    shape = shape_of(request.data)
    source = randomness(request)
    formats = formats_of(request)
    canaries = draw(request, formats, shape, source)
    manifest = Manifest(
        version=VERSION,
        created=now(),
        coins=Coins.OPERATING_SYSTEM if request.seed is None else Coins.SEED,
        shape=shape,
        delta=request.delta,
        guesses=register([canary.copies for canary in canaries]),
        formats=formats,
        source=_source_file(request.data, digest_of(before)),
        planted=_UNFILLED,
        salt=secrets.token_hex(32) if request.seed is None else source.randbytes(32).hex(),
        commitment="",
        canaries=tuple(canaries),
    )
    lines = [manifest.line(canary) for canary in canaries if canary.included for _ in range(canary.copies)]
    with PendingFile(request.output) as data, PendingFile(request.manifest) as coins:
        planted = _write(request, data, lines, manifest.source.records, source)
        manifest = replace(manifest, planted=planted)
        manifest = replace(manifest, commitment=commitment_of(manifest))
        coins.write_at(0, encode_manifest(manifest))
        require_same(request.data, before)
        commit_together([data, coins], replace=force)  # planted data is useless without its coins
    return manifest


def record_lines(path: DataPath) -> Iterator[tuple[bytes, bool]]:
    """The decompressed lines of a data file, each with whether it is a record (or blank).

    For other formats than JSON Lines, each record becomes a line of JSON with its text or its prompt and response. With
    several paths, a last line without a newline gets one.
    """
    if isinstance(path, SeveralPaths):
        data_files(path)  # raises if a file is given twice
        for each in path.paths:
            for line, is_record in record_lines(each):
                yield line if line.endswith(b"\n") else line + b"\n", is_record
        return
    if is_json_lines(path):
        for line in byte_lines(path):
            yield line, bool(line.strip())
        return
    for row in rows_of(path, Columns()):
        passage = text_of(row.fields, row.where)
        prompt, response = passage.text[: passage.start].rstrip("\n"), passage.text[passage.start :]
        fields = {"prompt": prompt, "response": response} if passage.start else {"text": passage.text}
        yield json.dumps(fields, ensure_ascii=False).encode() + b"\n", True


def _check_paths(request: PlantRequest, force: bool) -> None:
    outputs = (request.output, request.manifest)
    if os.path.realpath(outputs[0]) == os.path.realpath(outputs[1]):
        raise CommandError(f"--output and --manifest are both {request.output}; give two names")
    given = [data for data in (request.data, request.prefix_from) if data is not None]
    read = {place for data in given for place in real_paths(data)}
    require_inputs(*given)
    for path, option in zip(outputs, ("--output", "--manifest"), strict=True):
        if os.path.realpath(path) in read:
            raise CommandError(f"{path} is the data itself, which is not changed; choose another {option}")
        require_regular(path, option=option)
        require_absent(path, force, option=option)
        require_not_weights_or_report(path)


def _source_file(path: DataPath, whole: str) -> DataFile:
    digest, records = blake3(), 0
    for line, is_record in record_lines(path):
        digest.update(line)
        records += is_record
    return DataFile(name=path.name, digest=whole, content=tag(digest), records=records)


def _write(
    request: PlantRequest, pending: PendingFile, lines: list[bytes], records: int, source: random.Random
) -> DataFile:
    """Write the data with ``lines`` inserted to ``pending``."""
    source.shuffle(lines)
    indices = sorted(source.randrange(records) for _ in lines)
    pack = zlib.compressobj(wbits=_GZIP) if request.output.suffix == ".gz" else None
    content, digest = blake3(), blake3()
    position = 0
    for block in _in_batches(_merge(request.data, lines, indices)):
        content.update(block)
        packed = pack.compress(block) if pack else block
        digest.update(packed)
        pending.write_at(position, packed)
        position += len(packed)
    if pack:
        tail = pack.flush()
        digest.update(tail)
        pending.write_at(position, tail)
    return DataFile(name=request.output.name, digest=tag(digest), content=tag(content), records=records + len(lines))


def _merge(path: DataPath, lines: Sequence[bytes], indices: Sequence[int]) -> Iterator[bytes]:
    """The data's lines, with ``lines[i]`` before the record of number ``indices[i]``; ``indices`` are sorted."""
    record = 0
    for line, is_record in record_lines(path):
        if is_record:
            yield from lines[bisect.bisect_left(indices, record) : bisect.bisect_right(indices, record)]
            record += 1
        yield line


def _in_batches(lines: Iterator[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    total = 0
    for line in lines:
        batch.append(line)
        total += len(line)
        if total >= _WRITTEN:
            yield b"".join(batch)
            batch, total = [], 0
    yield b"".join(batch)
