"""The rows of text files: tables with a first row of column names, and files with one record per line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privctl.data.annotated import require_named
from privctl.data.columns import Columns
from privctl.data.packed import LONGEST_LINE, byte_lines, not_text
from privctl.domain.errors import InputError

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def table_rows(file: Path, suffix: str, place: str, columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line it begins on, cells by column name) of each row."""
    rows = _cells(file, suffix, place)
    names: list[str] | None = None
    for line, cells in rows:
        where = f"{place} line {line}"
        if names is None:
            names = _header(cells, where)
            require_named(names, where, columns)
        elif len(cells) != len(names):
            raise InputError(
                f"{where} has {len(cells)} cells where the first row names {len(names)}; {_advice(suffix)}"
            )
        else:
            yield line, dict(zip(names, cells, strict=True))


def table_names(file: Path, suffix: str, place: str) -> list[str]:
    """The column names in a table's first row; empty for an empty file."""
    return next((_header(cells, f"{place} line {line}") for line, cells in _cells(file, suffix, place)), [])


def text_lines(
    file: Path, place: str, columns: Columns, within: tuple[int, int] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, {text column: line}) of each line that is not blank."""
    name = columns.text or "text"
    for number, line in enumerate(_decoded(file, place, within), start=1):
        if line.strip():
            yield number, {name: line.rstrip("\r\n")}


def _cells(file: Path, suffix: str, place: str) -> Iterator[tuple[int, list[str]]]:
    """(line it begins on, cells) of each row that is not blank."""
    source = _decoded(file, place)
    if suffix == ".csv":
        reader = csv.reader(source, strict=True)
    else:
        reader = csv.reader(source, delimiter=DELIMITERS[suffix], quoting=csv.QUOTE_NONE, strict=True)
    line = 1
    try:
        while (cells := _next_row(reader)) is not None:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{place} line {line} is not a row of a table: {error}; {_advice(suffix)}") from None


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row, None at the end. The field size limit of ``csv`` is global, so it is raised for this call only."""
    limit = csv.field_size_limit(LONGEST_LINE)  # the default refuses a text of 128 KiB
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) != len(names):
        raise InputError(f"{where} names a column twice; every column needs a name of its own")
    return names


def _advice(suffix: str) -> str:
    if suffix == ".csv":
        return 'put a cell that holds a comma, a quote or a line end in double quotes, and write a quote in it as ""'
    return "a cell must hold no tab and no line end"


def _decoded(file: Path, place: str, within: tuple[int, int] | None = None) -> Iterator[str]:
    begins = within is None or within[0] == 0
    for number, line in enumerate(byte_lines(file, within), start=1):
        try:
            yield line.decode("utf-8-sig" if begins and number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(not_text(line, f"{place} line {number}")) from None
