"""Texts to train on, from JSON lines or tables, with labels and units of privacy if requested."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privctl.data.records import LONGEST_LINE, byte_lines, json_objects, kind_of, text_of
from privctl.domain.errors import CommandError, InputError

#: Suffix (before ``.gz``) -> the delimiter between cells.
_TABLES = {".csv": ",", ".tsv": "\t"}
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecord:
    """One record. ``where`` is its file and line, for errors; ``line`` that line's number, from 1.

    The response begins at character ``start`` of ``text``, 0 for plain text. ``label`` and ``unit`` are None unless
    requested; records of one ``unit`` belong together (to one person, say).
    """

    where: str
    text: str
    start: int = 0
    label: str | None = None
    unit: str | None = None
    line: int = field(default=0, compare=False)


def read_texts(path: Path, *, labelled: bool = False, unit: str | None = None) -> list[TextRecord]:
    """All records of a file in a list; see ``iter_texts``."""
    return list(iter_texts(path, labelled=labelled, unit=unit))


def iter_texts(path: Path, *, labelled: bool = False, unit: str | None = None) -> Iterator[TextRecord]:
    """The records of a ``.jsonl``, ``.csv`` or ``.tsv`` file, plain or gzipped (``.gz``), one at a time.

    A record has ``text``, or ``prompt`` and ``response``; with ``labelled`` also ``label``, a string or an integer; and
    the field that ``unit`` names, likewise. Tables name these in their first row. A ``.csv`` may quote cells; in a
    ``.tsv`` quotes are ordinary characters, and no cell holds a tab or a line end.

    Raises InputError, naming the line, for anything that is not such a record, and for a file without any; CommandError
    for a suffix that is not known; FileSystemError where the system refuses.
    """
    rows = _rows(path)
    if rows is None:
        raise CommandError(
            f"{path} ends neither in .jsonl nor .csv nor .tsv (nor these with .gz); give texts as one of them"
        )
    for number, row in rows:
        yield _record(row, path, number, labelled, unit)


def first_fields(path: Path) -> tuple[str, ...] | None:
    """The names of the first record's fields; None for a suffix that is not known. Raises as ``iter_texts`` does."""
    rows = _rows(path)
    if rows is None:
        return None
    for _, row in rows:
        return tuple(row)
    return ()


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]] | None:
    """Each record's line and fields; None for a suffix that is not known."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _JSON:
        return json_objects(path)
    return _read_table(path, _TABLES[suffix]) if suffix in _TABLES else None


def count_texts(path: Path) -> int:
    """How many records ``iter_texts`` yields, all of them checked; raises as it does."""
    return sum(1 for _ in iter_texts(path))


def _record(row: Mapping[str, Any], path: Path, line: int, labelled: bool, unit: str | None) -> TextRecord:
    where = f"{path} line {line}"
    passage = text_of(row, where)
    return TextRecord(
        where=where,
        text=passage.text,
        start=passage.start,
        label=_name(row, "label", where) if labelled else None,
        unit=_name(row, unit, where) if unit is not None else None,
        line=line,
    )


def _name(row: Mapping[str, Any], key: str, where: str) -> str:
    """A field that labels or groups records, as a string. A number with a fraction is probably a mistake."""
    if key not in row:
        raise InputError(f"{where} lacks {key!r}; give every record one, a string or an integer")
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        kind = "a number with a fraction" if isinstance(value, float) else kind_of(value)
        raise InputError(f"{where} has {kind} as {key!r}; expected a string or an integer")
    name = str(value).strip()
    if not name:
        raise InputError(f"{where} has an empty {key!r}; fill it or remove the record")
    if not name.isprintable():
        raise InputError(f"{where} has unprintable characters in {key!r}; use letters, digits and punctuation")
    return name


def _read_table(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row's cells by column name, with the line it begins on."""
    source = _decode_lines(path)
    if delimiter == ",":
        reader = csv.reader(source, strict=True)
    else:
        reader = csv.reader(source, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    names: list[str] | None = None
    empty = True
    line = 1
    try:
        while (cells := _next_row(reader)) is not None:
            where = f"{path} line {line}"
            if not cells:
                pass
            elif names is None:
                names = _header(cells, where)
            elif len(cells) != len(names):
                raise InputError(
                    f"{where} has {len(cells)} cells where the first row names {len(names)}; {_advice(path)}"
                )
            else:
                empty = False
                yield line, dict(zip(names, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path} line {line} is not a row of a table: {error}; {_advice(path)}") from None
    if empty:
        raise InputError(f"{path} holds no records; expected a row of column names, then one row a record")


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row, however long its cells. The limit of ``csv`` is global, so it is raised for this call only."""
    limit = csv.field_size_limit(LONGEST_LINE)  # the module's default would refuse a text of 128 KiB
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) != len(names):
        raise InputError(f"{where} names a column twice; every column needs a name of its own")
    if "text" not in names and not {"prompt", "response"} <= set(names):
        raise InputError(
            f"{where} names no column 'text', nor 'prompt' and 'response'; the first row must name the columns"
        )
    return names


def _advice(path: Path) -> str:
    if ".csv" in path.suffixes:
        return 'put a cell that holds a comma, a quote or a line end in double quotes, and write a quote in it as ""'
    return "a cell must hold no tab and no line end"


def _decode_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(byte_lines(path), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path} line {number} is not UTF-8 text; save the file as UTF-8") from None
