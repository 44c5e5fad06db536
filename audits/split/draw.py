"""Drawing a split: each record, or group of records, is a member or not by its own coin, before any training.

As the coins depend on nothing, members and non-members come from one distribution by construction: given the records,
every assignment of the labels with as many members is equally likely. So if scores do not depend on who is a member, a
permutation test of them is exact, and no difference between the two files themselves can cause a rejection (Fisher's
randomization test). If groups have the coins, the same holds for groups.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from audits.canaries.manifest import DataFile
from audits.split.drawn import contents, group_of
from audits.split.manifest import (
    KEY_BYTES,
    MEMBERS,
    NAME,
    NONMEMBERS,
    TRAIN,
    VERSION,
    SplitManifest,
    Use,
    commitment_of,
    encode_manifest,
    is_member,
    keyed,
)
from privctl.data.columns import USUAL, Columns
from privctl.data.json_rows import object_of
from privctl.data.names import spelled_alike
from privctl.data.places import holds_classes, require_inputs
from privctl.data.recorded import digest_of, recorded_files, require_same
from privctl.data.rows import is_json_lines, rows_of
from privctl.data.several import DataPath, paths_of, real_paths
from privctl.domain.errors import CommandError, InputError
from privctl.reports.files import now
from privctl.storage.atomic import PendingFile, require_absent, require_regular, writing
from privctl.storage.commit import commit_together
from privctl.storage.digest import tag

_BATCH = 1 << 20
_EXPECTED = 'expected an object such as {"text": "..."}'


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """Split ``data`` into files in ``folder``; ``records`` of them are drawn, by default all.

    With ``group_by``, all records with the same value of that field share a coin, and ``records`` counts groups.
    """

    data: DataPath
    folder: Path
    records: int | None = None
    group_by: str | None = None
    columns: Columns = USUAL
    force: bool = False

    @property
    def written(self) -> tuple[Path, ...]:
        """The files to write, with a separate training file only if not all records are drawn."""
        names = (MEMBERS, NONMEMBERS, NAME) if self.records is None else (MEMBERS, NONMEMBERS, TRAIN, NAME)
        return tuple(self.folder / name for name in names)


def draw_split(request: SplitRequest) -> SplitManifest:
    """Write the split, readable only by its owner, and return its manifest.

    With ``records``, that many different lines or groups are chosen at random and drawn; all others are trained on.
    Raises CommandError for files in the way and for too many ``records``, InputError for data that are not records,
    lack the field of their groups, or change meanwhile.
    """
    _check_paths(request)
    before = recorded_files(request.data)
    key = os.urandom(KEY_BYTES)
    coins = _Coins(key=key, of_groups=request.group_by is not None)
    chosen, units, included_units = _choose_units(request, coins)
    drawn_lines: dict[bytes, bool] = {}
    with ExitStack() as stack:
        stack.enter_context(_made(request.folder))
        files = {path.name: stack.enter_context(PendingFile(path)) for path in request.written}
        outputs = {name: _Output(file) for name, file in files.items() if name != NAME}
        lines = 0
        for content, unit in _contents(request):
            lines += 1
            drawn = chosen is None or _name(unit) in chosen
            member = drawn and coins.member(unit)
            if drawn and request.group_by is not None:
                drawn_lines[_name(content)] = member
            if drawn:
                outputs[MEMBERS if member else NONMEMBERS].add(content)
            if TRAIN in outputs and (member or not drawn):
                outputs[TRAIN].add(content)
        written = {name: output.finish(name) for name, output in outputs.items()}
        source = digest_of(before)
        grouped = request.group_by is not None
        manifest = SplitManifest(
            version=VERSION,
            created=now(),
            key=key.hex(),
            records=len(drawn_lines) if grouped else units,
            included=sum(drawn_lines.values()) if grouped else included_units,
            source=DataFile(name=request.data.name, digest=source, content=source, records=lines),
            members=written[MEMBERS],
            nonmembers=written[NONMEMBERS],
            train=written.get(TRAIN),
            commitment="",
            group_by=request.group_by,
            groups=units if grouped else None,
            included_groups=included_units if grouped else None,
            similar_names=_similar(request) if grouped else None,
        )
        manifest = replace(manifest, commitment=commitment_of(manifest))
        files[NAME].write_at(0, encode_manifest(manifest))
        require_same(request.data, before)
        commit_together(list(files.values()), replace=request.force)
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coins:
    """The coins of lines, or of groups by name, under one key."""

    key: bytes
    of_groups: bool

    def member(self, unit: bytes) -> bool:
        """Whether the unit's coin says member."""
        return is_member(self.key, unit, Use.GROUP_COIN if self.of_groups else Use.COIN)

    def order(self, unit: bytes) -> bytes:
        """A sort key that ranks the unit among all that may be drawn."""
        return keyed(self.key, Use.GROUP_CHOICE if self.of_groups else Use.CHOICE, unit)


class _Output:
    """A buffered writer of lines."""

    def __init__(self, pending: PendingFile) -> None:
        self._pending, self._waiting = pending, bytearray()
        self._position = self._records = 0
        self._digest = blake3()

    def add(self, content: bytes) -> None:
        """Add another line."""
        self._waiting += content + b"\n"
        self._records += 1
        if len(self._waiting) >= _BATCH:
            self._flush()

    def finish(self, name: str) -> DataFile:
        """Write the buffered lines, and describe the file."""
        self._flush()
        digest = tag(self._digest)
        return DataFile(name=name, digest=digest, content=digest, records=self._records)

    def _flush(self) -> None:
        block, self._waiting = bytes(self._waiting), bytearray()
        self._digest.update(block)
        self._pending.write_at(self._position, block)
        self._position += len(block)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make ``folder`` unless it exists; if the body fails, remove it again if it was made and is empty."""
    existed = folder.exists()
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check_paths(request: SplitRequest) -> None:
    require_inputs(request.data)
    read = real_paths(request.data)
    if not request.folder.parent.is_dir():
        raise CommandError(f"{request.folder.parent} is not a folder; make it, or choose another --output")
    if request.folder.exists() and not request.folder.is_dir():
        raise CommandError(f"{request.folder} is a file; give a folder as --output")
    for path in request.written if request.folder.exists() else ():
        if os.path.realpath(path) in read:
            raise CommandError(f"{path} is the data itself, which is not changed; choose another --output")
        require_regular(path)
        require_absent(path, request.force)
    if holds_classes(request.data):
        raise InputError(
            f"{request.data} is a folder without a file of records, and images or sounds in folders are not split; "
            "give records as JSON lines or parquet"
        )
    for path in paths_of(request.data):
        if path.suffix == ".npz":
            raise InputError(
                f"{path} holds images, which are not split; give records of texts as JSON lines or parquet"
            )


def _choose_units(request: SplitRequest, coins: _Coins) -> tuple[frozenset[bytes] | None, int, int]:
    """The names of the lines or groups that are drawn (None for all), their number, and how many are members."""
    draws = {_name(unit): (coins.order(unit), coins.member(unit)) for _, unit in _contents(request)}
    names: Sequence[bytes] = list(draws)
    word = "record" if request.group_by is None else "group"
    if request.records is not None:
        if request.records > len(names):
            raise CommandError(
                f"--records is {request.records}, but {request.data} holds {len(names)} different {word}s; give fewer"
            )
        names = heapq.nsmallest(request.records, names, key=lambda name: draws[name][0])
    included = sum(draws[name][1] for name in names)
    if not 0 < included < len(names):
        raise InputError(
            f"{request.data} has so few {word}s that all coins fell alike ({included} members of {len(names)}); give "
            f"more {word}s"
        )
    return None if request.records is None else frozenset(names), len(names), included


def _name(content: bytes) -> bytes:
    return blake3(content).digest(length=16)


def _contents(request: SplitRequest) -> Iterator[tuple[bytes, bytes]]:
    """Each record as a line of JSON without newline, with its unit: the line itself, or the name of its group.

    For JSON Lines, the line is unchanged; otherwise it has all of the record's fields.
    """
    if is_json_lines(request.data):
        has_records = False
        for path in paths_of(request.data):
            for number, content in contents(path):
                has_records, where = True, f"{path} line {number}"
                object_of(content, where, _EXPECTED)
                yield content, _unit(content, request, where)
        if not has_records:
            raise InputError(f"{request.data} holds no records; expected at least one")
        return
    for row in rows_of(request.data, request.columns, unit=request.group_by):
        try:
            content = json.dumps(row.fields, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError):
            raise InputError(
                f"{row.where} has a value that JSON cannot hold, such as an image; give records of texts, numbers and "
                "lists"
            ) from None
        yield content, _unit(content, request, row.where)


def _similar(request: SplitRequest) -> int:
    """How many groups of the data have names that differ only in spelling from another's."""
    return spelled_alike({unit.decode() for _, unit in _contents(request)})


def _unit(content: bytes, request: SplitRequest, where: str) -> bytes:
    return content if request.group_by is None else group_of(content, request.group_by, where).encode()
