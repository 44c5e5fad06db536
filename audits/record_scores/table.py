"""Reads scores of records by another attack tool: CSV, TSV, JSON Lines or Parquet, with one row per record."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.record_scores.parts import attacks_in, read_parts
from audits.scores.table import Skip
from privctl.data.columns import require_separated
from privctl.data.plain_rows import DELIMITERS
from privctl.domain.errors import CommandError, InputError
from privctl.domain.report import Omission
from privctl.domain.shown import counted
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_EXPECTED = "a CSV or TSV file whose first line names its columns, JSON lines, or Parquet"
_MEMBER = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreColumns:
    """The names of the columns: the ``record``'s id, ``member``, and one of ``scores`` for each attack.

    Raises CommandError if they are not all different.
    """

    record: str = "id"
    member: str = "member"
    scores: tuple[str, ...] = ("score",)

    def __post_init__(self) -> None:
        names = (self.record, self.member, *self.scores)
        if len(set(names)) != len(names):
            raise CommandError(f"the columns {', '.join(names)} are not all different; name one column for each use")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRecords:
    """``member`` [records], the ``scores`` [records] of each attack by its column, and the records' ``ids``.

    ``skipped`` counts the records that privctl left out of its own file of scores, by (member, reason); ``precision``
    is the format of the forward passes.
    """

    member: NDArray[np.bool_]
    scores: Mapping[str, NDArray[np.float64]]
    ids: Sequence[str] = ()
    skipped: Mapping[tuple[bool, Skip], int] = field(default_factory=dict)
    precision: str | None = None

    @property
    def left_out(self) -> tuple[Omission, ...]:
        """The omissions for the report."""
        return tuple(
            Omission(what=counted(count, "member" if member else "nonmember"), reason=skip.reason)
            for (member, skip), count in self.skipped.items()
        )


def read_record_scores(paths: Sequence[Path], columns: ScoreColumns) -> ScoredRecords:
    """The scores of each record in ``paths``. Raises InputError if the files are not valid.

    From Parquet files by ``privctl audit score-records``, all scores are read unless ``columns`` names some.
    """
    path = paths[0]
    others = [path for path in paths if path.suffix.lower() != _PARQUET]
    if others and len(paths) > 1:
        raise InputError(f"{others[0]} is one of several files and no Parquet; give one file, or Parquet alone")
    read = _rows(path, columns) if others else _parquet(paths, columns)
    for side, name in ((True, "member"), (False, "non-member")):
        count = int((read.member == side).sum())
        if count < 2:
            raise InputError(f"{path} has {counted(count, name)}; at least 2 of each side are needed")
    return read


def _parquet(paths: Sequence[Path], columns: ScoreColumns) -> ScoredRecords:
    if columns.scores == ScoreColumns().scores:
        columns = replace(columns, scores=attacks_in(paths) or columns.scores)
    read = read_parts(paths, columns.record, columns.member, columns.scores)
    return ScoredRecords(
        member=read.member, scores=read.scores, ids=read.ids, skipped=read.left_out, precision=read.precision
    )


def _rows(path: Path, columns: ScoreColumns) -> ScoredRecords:
    suffix = path.suffix.lower()
    if suffix not in (*DELIMITERS, *_LINES):
        raise InputError(f"{path} is not a kind of file that scores of records are read from; give {_EXPECTED}")
    rows = _lines(path) if suffix in _LINES else _table(path, DELIMITERS[suffix], columns)
    member: list[bool] = []
    scores: dict[str, list[float]] = {name: [] for name in columns.scores}
    lines: dict[str, int] = {}
    for number, row in rows:
        where = f"{path} line {number}"
        for name in (columns.record, columns.member, *columns.scores):
            if row.get(name) in (None, ""):
                raise InputError(
                    f"{where} has no {shown(name)}; each line needs {_wanted(columns)}{_or_number(name, columns)}"
                )
        record = str(row[columns.record])
        if record in lines:
            raise InputError(
                f"{where} scores the record {shown(record)} again, after line {lines[record]}; give one line for each "
                "record"
            )
        lines[record] = number
        member.append(_is_member(row[columns.member], where))
        for name in columns.scores:
            scores[name].append(_score(row[name], name, where))
    return ScoredRecords(
        member=np.asarray(member, dtype=np.bool_),
        scores={name: np.asarray(values, np.float64) for name, values in scores.items()},
        ids=tuple(lines),
    )


def _or_number(name: str, columns: ScoreColumns) -> str:
    """What to do if records have no names, if ``name`` is the missing column of these."""
    return ", or add it with a number for each record" if name == columns.record else ""


def _wanted(columns: ScoreColumns) -> str:
    return ", ".join((columns.record, *columns.scores, columns.member))


def _table(path: Path, separator: str, columns: ScoreColumns) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = csv.reader(read_text(path).removeprefix("\ufeff").splitlines(), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(lines, [])]
        if len(header) == 1:
            require_separated(header[0], str(path))
        for name, flag in _flags(columns):
            if header.count(name) != 1:
                named = ", ".join(map(shown, header)) or "none"
                raise InputError(
                    f"{path} has {header.count(name) or 'no'} column {shown(name)} in its first line, which names "
                    f"{named}; name the column with {flag}{_or_number(name, columns)}, or give --models for scores of "
                    "models trained with or without one record"
                )
        for row in lines:
            if row:
                yield lines.line_num, dict(zip(header, (cell.strip() for cell in row), strict=False))
    except csv.Error as error:
        raise InputError(f"{path} is not {_EXPECTED}: {error} at line {lines.line_num}") from None


def _flags(columns: ScoreColumns) -> Sequence[tuple[str, str]]:
    return (
        (columns.record, "--id-column"),
        (columns.member, "--member-column"),
        *((name, "--score-column") for name in columns.scores),
    )


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            row = parse_json(line, f"{path} line {number}")
            if not isinstance(row, dict):
                raise InputError(f"{path} line {number} is not a JSON object; give one for each record")
            yield number, row


def _is_member(value: Any, where: str) -> bool:
    text = str(value).lower()
    if not isinstance(value, bool | int | str) or text not in _MEMBER:
        raise InputError(f"{where} has {shown(value)} as member; expected 1 or 0, true or false")
    return _MEMBER[text]


def _score(value: Any, name: str, where: str) -> float:
    # Python also reads 1_0 as 10, and digits of other scripts.
    odd = isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii()))
    try:
        score = math.nan if odd else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where} has {shown(value)} as {name}; expected a finite number")
    return score
