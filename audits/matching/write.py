"""Writes members and non-members that look alike, chosen from two files that do not: a cure for confounded audits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audits.matching.pairs import LEAST, RELIABLE, Likeness, compare, match
from privctl.data.columns import USUAL, Columns, text_of
from privctl.data.places import holds_classes, require_inputs
from privctl.data.records import Record
from privctl.data.rows import rows_of
from privctl.data.several import DataPath, paths_of
from privctl.domain.errors import CommandError, InputError
from privctl.storage.atomic import PendingFile, require_absent, require_regular, writing
from privctl.storage.commit import commit_together

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILES = ("members.jsonl", "nonmembers.jsonl")
_REMEDY = "give more records, or draw a split before training (privctl audit split)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRequest:
    """Choose from ``members`` and ``nonmembers``, and write both sides to ``folder``."""

    members: DataPath
    nonmembers: DataPath
    folder: Path
    columns: Columns = USUAL
    force: bool = False

    @property
    def written(self) -> tuple[Path, ...]:
        """The members' file and the non-members'."""
        return tuple(self.folder / name for name in _FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """How many ``pairs`` were written of ``members`` and ``nonmembers``, and how alike the sides were and are."""

    pairs: int
    members: int
    nonmembers: int
    reliability: float
    before: Likeness
    after: Likeness


def write_matched(request: MatchRequest) -> Matched:
    """Write the chosen records, readable by their owner only, as JSON lines with all fields.

    Raises CommandError for files in the way, InputError for data that are no records of texts, for sides that need no
    choice, and where none can be made.
    """
    _check_paths(request)
    lines, records, member = _read(request)
    before = compare(records, member)
    if before.alike:
        raise InputError(
            f"{request.members} and {request.nonmembers} cannot be told apart without a model (AUC {before.auc:.3f}, "
            f"p {before.p_value:.2g}); there is nothing to match, audit them as they are"
        )
    found = match(records, member)
    if found.reliability < RELIABLE:
        raise InputError(
            f"{request.members} and {request.nonmembers} look different (AUC {before.auc:.3f}), but so few records do "
            f"not teach how: what is learned of them is reliable to {found.reliability:.2f}, where {RELIABLE:g} is "
            f"needed to match by it; {_REMEDY}"
        )
    places = found.places
    after = compare([records[i] for i in places], member[places]) if len(places) >= 2 * LEAST else None
    if after is None or not after.alike:
        left = f"{len(places) // 2} pairs that look alike are left, at least {LEAST} are needed"
        still = (
            "" if after is None else f"of the pairs that look alike, members can still be told (p {after.p_value:.2g})"
        )
        raise InputError(
            f"no matched sides can be made of {request.members} and {request.nonmembers}: {still or left}; {_REMEDY}"
        )
    with writing(request.folder):
        request.folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(PendingFile(path)) for path in request.written]
        for file, side in zip(files, (True, False), strict=True):
            file.write_at(0, b"".join(lines[i] + b"\n" for i in places if member[i] == side))
        commit_together(files, replace=request.force)
    return Matched(
        pairs=len(places) // 2,
        members=int(member.sum()),
        nonmembers=int((~member).sum()),
        reliability=found.reliability,
        before=before,
        after=after,
    )


def _check_paths(request: MatchRequest) -> None:
    require_inputs(request.members, request.nonmembers)
    for data in (request.members, request.nonmembers):
        if holds_classes(data):
            raise InputError(f"{data} is a folder of images, and only records of texts are matched")
    read = {path.resolve() for data in (request.members, request.nonmembers) for path in paths_of(data)}
    if not request.folder.parent.is_dir():
        raise CommandError(f"{request.folder.parent} is not a folder; make it, or choose another --output")
    if request.folder.exists() and not request.folder.is_dir():
        raise CommandError(f"{request.folder} is a file; give a folder as --output")
    for path in request.written if request.folder.exists() else ():
        if path.resolve() in read:
            raise CommandError(f"{path} is the data itself, which is not changed; choose another --output")
        require_regular(path)
        require_absent(path, request.force)


def _read(request: MatchRequest) -> tuple[list[bytes], list[Record], NDArray[np.bool_]]:
    """Each record once, as a line of JSON and as what it looks like; one that is in both files is left out."""
    sides = [dict(_records(data, request.columns)) for data in (request.members, request.nonmembers)]
    both = sides[0].keys() & sides[1].keys()
    kept = [[value for digest, value in side.items() if digest not in both] for side in sides]
    for data, side in zip((request.members, request.nonmembers), kept, strict=True):
        if len(side) < LEAST:
            raise InputError(f"{data} has {len(side)} records that the other file has not; at least {LEAST} are needed")
    member = np.arange(len(kept[0]) + len(kept[1])) < len(kept[0])
    return [line for side in kept for line, _ in side], [record for side in kept for _, record in side], member


def _records(data: DataPath, columns: Columns) -> Iterator[tuple[bytes, tuple[bytes, Record]]]:
    for row in rows_of(data, columns, otherwise=".jsonl"):
        label = row.fields.get(columns.label_name)
        text = text_of(row.fields, row.where, columns).text
        record = Record(row.number, text, None if label is None else str(label))
        try:
            line = json.dumps(row.fields, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError):
            raise InputError(
                f"{row.where} has a value that JSON cannot hold, such as an image; give records of texts, numbers and "
                "lists"
            ) from None
        yield record.digest, (line, record)
