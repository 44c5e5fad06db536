"""Scores of records as Parquet: one file, or a part from each process, to be judged by ``privctl audit scores``.

A row is a record: its ``id`` (file and line), whether it is a ``member``, how many ``tokens`` were scored, and one
score per attack. Scores of single tokens are not stored. The scores are unchanged, since ranks within a part are not
comparable between parts; that of a record of one token, or of a label, is a log-probability in full precision, which
helps to search for the text. So files are readable only by their owner (mode 0600) and not for release.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scores.table import Skip
from privctl.data.arrow import parquet_batches, parquet_notes, schema_of
from privctl.domain.errors import InputError
from privctl.storage.atomic import PendingFile
from privctl.storage.json_text import parse_json, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

ID, MEMBER, TOKENS = "id", "member", "tokens"
#: The key of the schema's metadata that describes what was scored.
_NOTE = b"privctl.scores"
#: The version of the metadata and of the scores; 2 since zlib divides the mean loss, 3 since ``reference`` compares
#: logits. Without a reference model, both are the same.
_FORMAT, _BEFORE = 3, 2
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}")
#: The number of rows per row group, which is written and read at once.
_GROUP = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredWork:
    """What was scored and how, the same in all parts of one audit: digests of the model and of both sets, and settings.

    ``attacks`` are the columns of scores.
    """

    model: str
    reference: str | None
    members: str
    nonmembers: str
    attacks: tuple[str, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The scores of process ``rank`` (from 0) of ``size``: one row per record, ``scores`` by attack.

    ``left_out`` counts the records without scores by (member, reason).
    """

    work: ScoredWork
    rank: int
    size: int
    ids: Sequence[str]
    member: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    scores: Mapping[str, NDArray[np.float64]]
    left_out: Mapping[tuple[bool, Skip], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScores:
    """The rows of one or more files in the order of their ids: ``member`` [records], ``scores`` [records] by column.

    ``precision`` is the format of the forward passes that produced the scores; None if unknown.
    """

    member: NDArray[np.bool_]
    scores: Mapping[str, NDArray[np.float64]]
    left_out: Mapping[tuple[bool, Skip], int]
    ids: Sequence[str] = ()
    precision: str | None = None


def part_path(output: Path, rank: int, size: int) -> Path:
    """The file that process ``rank`` of ``size`` writes: ``output``, or a part with its number in the name."""
    return output if size == 1 else output.with_name(f"{output.stem}-{rank:05d}-of-{size:05d}{output.suffix}")


def whole_name(path: Path) -> Path:
    """The file that ``path`` is a part of, by name; ``path`` itself for any other file."""
    match = _PART.fullmatch(path.stem)
    return path if match is None else path.with_name(match["stem"] + path.suffix)


def write_part(path: Path, part: ScorePart, *, replace: bool) -> None:
    """Write ``part``, readable only by its owner.

    Raises CommandError if the file exists, FileSystemError as writing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    left_out = [[member, int(skip), count] for (member, skip), count in part.left_out.items()]
    note = {"format": _FORMAT, **asdict(part.work), "part": [part.rank, part.size], "left_out": left_out}
    table = pa.table(
        {ID: pa.array(part.ids, pa.string()), MEMBER: part.member, TOKENS: part.tokens, **part.scores}
    ).replace_schema_metadata({_NOTE: json.dumps(note).encode()})
    stream = BytesIO()
    pq.write_table(table, stream, row_group_size=_GROUP)
    with PendingFile(path) as pending:
        pending.write_at(0, stream.getbuffer())
        pending.commit(replace=replace)


def attacks_in(paths: Sequence[Path]) -> tuple[str, ...]:
    """The columns of scores in files by ``write_part``; empty for other files."""
    note = _note(paths[0])
    return () if note is None else tuple(map(str, note["attacks"]))


def read_parts(paths: Sequence[Path], record: str, member: str, scores: Sequence[str]) -> ReadScores:
    """The rows of all ``paths``, with the columns ``record``, ``member`` and ``scores``.

    Raises InputError for a file that lacks a column, a record that occurs twice, a score that is not a finite number,
    and parts by ``write_part`` that are not all of one audit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    left_out = _require_one_audit(paths)
    names = (record, member, *scores)
    ids: list[pa.Array] = []
    labels: list[NDArray[np.bool_]] = []
    values: dict[str, list[NDArray[np.float64]]] = {name: [] for name in scores}
    for path in paths:
        _require_columns(path, names)
        for batch in parquet_batches(path, names):
            ids.append(batch.column(record).cast(pa.string()))
            labels.append(_labels(batch.column(member), member, path))
            for name in scores:
                values[name].append(_finite(batch.column(name), name, path))
    every = pa.concat_arrays(ids) if ids else pa.array([], pa.string())
    if every.null_count:
        raise InputError(f"{_names(paths)} has rows without {shown(record)}; give each record one")
    order = pc.sort_indices(every)
    ordered = every.take(order)
    twice = pc.equal(ordered[:-1], ordered[1:]) if len(ordered) else pa.array([], pa.bool_())
    if pc.any(twice).as_py():
        first = ordered[pc.index(twice, True).as_py()].as_py()
        raise InputError(f"{_names(paths)} scores the record {shown(first)} twice; give one row for each record")
    places = order.to_numpy()
    return ReadScores(
        member=np.concatenate([*labels, np.zeros(0, np.bool_)])[places],
        scores={name: np.concatenate([*parts, np.zeros(0)])[places] for name, parts in values.items()},
        left_out=left_out,
        ids=ordered.to_pylist(),
        precision=_precision_in(paths[0]),
    )


def _precision_in(path: Path) -> str | None:
    note = _note(path)
    named = None if note is None else dict(note["settings"]).get("dtype")
    return None if named is None else str(named)


def _require_one_audit(paths: Sequence[Path]) -> dict[tuple[bool, Skip], int]:
    """What the parts left out in total.

    Raises InputError unless they are all parts of one audit, or all foreign files.
    """
    notes = {path: _note(path) for path in paths}
    first = notes[paths[0]]
    ranks: dict[int, Path] = {}
    left_out: dict[tuple[bool, Skip], int] = {}
    for path, note in notes.items():
        if note is None or first is None:
            if note is not first:
                raise InputError(f"{path} and {paths[0]} are not both of privctl; give files of one origin")
            continue
        for name in sorted((note.keys() | first.keys()) - {"part", "left_out"}):
            if note.get(name) != first.get(name):
                raise InputError(
                    f"{path} and {paths[0]} are of different audits, as their {shown(name)} differ; give the parts of "
                    "one audit"
                )
        rank, size = note["part"]
        if size != first["part"][1]:
            raise InputError(f"{path} is one of {size} parts and {paths[0]} one of {first['part'][1]}; give one set")
        if rank in ranks:
            raise InputError(f"{path} and {ranks[rank]} are both part {rank + 1} of {size}; give each once")
        ranks[rank] = path
        for member, skip, many in note["left_out"]:
            key = (bool(member), Skip(skip))
            left_out[key] = left_out.get(key, 0) + many
    if first is not None and len(ranks) != first["part"][1]:
        missing = next(rank for rank in count() if rank not in ranks)
        raise InputError(
            f"{_names(paths)} lacks part {missing + 1} of {first['part'][1]}; give all parts, such as with a pattern"
        )
    return dict(sorted(left_out.items(), reverse=True))


def _note(path: Path) -> dict[str, Any] | None:
    """The metadata of what was scored; None if another program wrote the file. Raises InputError if it is invalid."""
    raw = parquet_notes(path).get(_NOTE)
    if raw is None:
        return None
    note = parse_json(raw.decode("utf-8", "replace"), str(path))
    try:
        rank, size = note["part"]
        same = note["format"] == _FORMAT or (note["format"] == _BEFORE and note["reference"] is None)
        sound = same and type(rank) is type(size) is int and 0 <= rank < size
        sound = sound and isinstance(note["attacks"], list) and isinstance(note["settings"], dict)
        sound = sound and all(Skip(skip) and type(many) is int and many > 0 for _, skip, many in note["left_out"])
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise InputError(f"{path} says of its scores what this version cannot read; score the records again")
    return dict(note)


def _require_columns(path: Path, names: Sequence[str]) -> None:
    have = schema_of(path, str(path)).names
    for name in names:
        if have.count(name) != 1:
            raise InputError(
                f"{path} has {have.count(name) or 'no'} column {shown(name)}, but {', '.join(map(repr, have[:8]))}; "
                "name the columns with --id-column, --member-column and --score-column"
            )


def _labels(column: Any, name: str, path: Path) -> NDArray[np.bool_]:
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise InputError(f"{path} has values in {shown(name)} that are neither 1 nor 0, true nor false; expected these")
    return np.asarray(values, np.bool_)


def _finite(column: Any, name: str, path: Path) -> NDArray[np.float64]:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiu" or column.null_count or not np.isfinite(values).all():
        bad = next((v for v in values.tolist() if not (isinstance(v, int | float) and math.isfinite(v))), "a text")
        raise InputError(f"{path} has {shown(bad)} as {name}; expected a finite number for each record")
    return np.asarray(values, np.float64)


def _names(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} with {len(paths) - 1} more"
