"""The one door to records: each row of whatever files a path means, as fields by name, one at a time."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from privctl.data.annotated import require_annotated
from privctl.data.arrow import ArrowSchema, arrow_rows, count_rows, schema_of
from privctl.data.columns import ANNOTATED, Columns, SameForm, kind_of, require_columns, require_unit
from privctl.data.packed import LONGEST_LINE, byte_blocks, byte_lines, opens_array, suffix_of
from privctl.data.places import ARROW, LINES, PARQUET, STDIN, TABLES, TEXT, data_files, shown
from privctl.data.several import DataPath, SeveralPaths
from privctl.data.shares import FileShare
from privctl.domain.errors import CommandError, InputError

_EXPECTED = 'expected an object such as {"text": "..."} or {"prompt": "...", "response": "..."}'
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
#: What may come after each mark of a JSON array of objects.
_FOLLOWERS = {"": "[", "[": "{]", ",": "{", "}": ",]"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a file's rows lie: "train.jsonl line", and ``before``, how many rows the files before it have."""

    name: str
    before: int = 0

    def place(self, number: int) -> str:
        """The file and line of row ``number``, which counts on from file to file, for errors."""
        return f"{self.name} {number - self.before}"


class Row(NamedTuple):
    """A record's fields; ``number`` is its line or row, counted on from file to file, in the file of ``stretch``."""

    number: int
    stretch: Stretch
    fields: dict[str, Any]

    @property
    def where(self) -> str:
        """Its file and line, for errors."""
        return self.stretch.place(self.number)


def rows_of(
    path: DataPath,
    columns: Columns,
    *,
    labelled: bool = False,
    unit: str | None = None,
    otherwise: str | None = None,
    expected: str = _EXPECTED,
) -> Iterator[Row]:
    """The rows of every file that ``path`` means (see ``data_files``), by the file's suffix.

    JSON lines or one JSON array (``.jsonl``, ``.ndjson``, ``.json``), tables with a first row of names (``.csv``,
    ``.tsv``), one record a line (``.txt``), these plain or with ``.gz`` or ``.zst``, parquet and Arrow. ``otherwise``
    is the suffix of a file that has none of these. Tables are checked for the columns that ``columns``, ``labelled``
    and ``unit`` require.

    Raises InputError, naming the line, for what is not such a file, and for one without records; CommandError for an
    unknown suffix without ``otherwise``; FileSystemError where the system refuses.
    """
    files = data_files(path)
    suffixes = [_suffix(file, otherwise) for file in files]
    first: ArrowSchema | None = None
    before, many = 0, len(files) > 1
    alike = SameForm(columns) if isinstance(path, SeveralPaths) else None
    for file, suffix in zip(files, suffixes, strict=True):
        number, place = 0, shown(path, file)
        names: tuple[str, ...] = ()
        if suffix in (PARQUET, ARROW):
            schema = schema_of(file, place)
            names = schema.names
            first = first or schema
            same_types(first.types, schema.types, columns.wanted(unit), place)
            _require(schema.names, place, columns, labelled=labelled, unit=unit)
        pairs, word = _numbered(file, suffix, place, names, columns, unit, expected)
        if alike is not None:
            pairs = alike.checked(pairs, place)
        stretch = Stretch(f"{place} {word}", before)
        for number, fields in pairs:
            yield Row(before + number, stretch, fields)
        if number == 0 and not (many and suffix in (PARQUET, ARROW)):
            raise InputError(f"{place} holds no records; {_missing(suffix, expected)}")
        before += number
    if before == 0:
        raise InputError(f"{path} holds no records; expected at least one")


def rows_of_share(
    path: DataPath, share: FileShare, columns: Columns, *, unit: str | None = None, before: int = 0
) -> Iterator[Row]:
    """The rows of a share of the data at ``path``, numbered on from ``before``; raises as ``rows_of`` does.

    A share of a file may have none. Whether files agree in types and fields is for whoever joins the shares to say.
    """
    suffix, place = _suffix(share.file, None), shown(path, share.file)
    names: tuple[str, ...] = ()
    if suffix in (PARQUET, ARROW):
        names = schema_of(share.file, place).names
        _require(names, place, columns, unit=unit)
    if share.within is not None and not share.is_first:
        place = f"{place} from byte {share.begin}"
    pairs, word = _numbered(share.file, suffix, place, names, columns, unit, _EXPECTED, share.within)
    stretch, number = Stretch(f"{place} {word}", before), 0
    for number, fields in pairs:
        yield Row(before + number, stretch, fields)
    if number == 0 and share.within is None and suffix not in (PARQUET, ARROW):
        raise InputError(f"{place} holds no records; {_missing(suffix, _EXPECTED)}")


def column_names(path: DataPath) -> tuple[str, ...] | None:
    """The names of the first record's fields; None for a suffix that is not known. Raises as ``rows_of`` does."""
    file = data_files(path)[0]
    suffix = suffix_of(file)
    if suffix not in (*LINES, *TABLES, TEXT, PARQUET, ARROW):
        return None
    if suffix in (PARQUET, ARROW):
        return schema_of(file, shown(path, file)).names
    if suffix in TABLES:
        return tuple(next(_table_names(file, suffix, shown(path, file))))
    return tuple(next(rows_of(file, Columns())).fields)


def image_columns(path: Path) -> tuple[str, ...]:
    """The columns of images in parquet or Arrow files at ``path``; none for other files."""
    file = data_files(path)[0]
    return schema_of(file, shown(path, file)).images if suffix_of(file) in (PARQUET, ARROW) else ()


def is_json_lines(path: DataPath) -> bool:
    """Whether ``path`` is one file of JSON lines; so is one of an unknown suffix."""
    if isinstance(path, SeveralPaths) or path == STDIN or not path.is_file():
        return False
    suffix = suffix_of(path)
    return suffix not in (*TABLES, TEXT, PARQUET, ARROW) and not (suffix == ".json" and opens_array(path))


def numbers_in(path: DataPath) -> int:
    """The number of the last row that ``rows_of`` gives, or somewhat more: what progress counts to."""
    total = 0
    for file in data_files(path):
        if suffix_of(file) in (PARQUET, ARROW):
            total += count_rows(file, shown(path, file))
        else:
            total += sum(1 for _ in byte_lines(file))
    return total


def numbers_in_share(share: FileShare) -> int:
    """As ``numbers_in``, for a share; of a parquet file, for all its rows where the share is cut from it."""
    if suffix_of(share.file) in (PARQUET, ARROW):
        return count_rows(share.file, str(share.file), share.within)
    return sum(1 for _ in byte_lines(share.file, share.within))


def json_objects(path: Path, expected: str = _EXPECTED) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object on each line of a file with the line's number, whatever its fields; blank lines are skipped.

    ``expected`` ends an error's sentence. Raises InputError, naming the line, for anything else, and for a file without
    any; FileSystemError where the system refuses.
    """
    empty = True
    for number, data in _lines(path, str(path), expected):
        empty = False
        yield number, data
    if empty:
        raise InputError(f"{path} holds no records; {expected} on each line")


def _require(
    names: Collection[str], where: str, columns: Columns, *, labelled: bool = False, unit: str | None = None
) -> None:
    if columns.problem not in ANNOTATED:
        require_columns(names, where, columns, labelled=labelled, unit=unit)
        return
    require_annotated(names, where, columns)
    require_unit(names, where, unit)


def _suffix(file: Path, otherwise: str | None) -> str:
    suffix = suffix_of(file)
    if suffix in (*LINES, *TABLES, TEXT, PARQUET, ARROW):
        return suffix
    if otherwise is None:
        raise CommandError(
            f"{file} ends neither in .jsonl nor .csv nor .tsv (nor these with .gz or .zst), nor in .json, .txt, "
            ".parquet or .arrow; give texts as one of them"
        )
    return otherwise


def _missing(suffix: str, expected: str) -> str:
    if suffix in TABLES:
        return "expected a row of column names, then one row a record"
    if suffix in LINES:
        return f"{expected} on each line"
    return "expected one record a line" if suffix == TEXT else "expected at least one row"


def same_types(first: Mapping[str, str], types: Mapping[str, str], wanted: set[str], place: str) -> None:
    """Raise InputError where a ``wanted`` column of the file ``place`` has another type than in the ``first`` file."""
    for name in first.keys() & types.keys() & wanted:
        if first[name] != types[name]:
            raise InputError(
                f"{place} has the column {name!r} of the type {types[name]}, and the files before it of the "
                f"type {first[name]}; write all with one schema"
            )


def _numbered(
    file: Path,
    suffix: str,
    place: str,
    names: Sequence[str],
    columns: Columns,
    unit: str | None,
    expected: str,
    within: tuple[int, int] | None = None,
) -> tuple[Iterator[tuple[int, dict[str, Any]]], str]:
    """The rows of a file from 1 on, or of those that begin ``within`` two bytes; and what one is called."""
    if suffix in (PARQUET, ARROW):
        wanted = columns.wanted(unit)
        chosen = [name for name in names if name in wanted]
        return enumerate(arrow_rows(file, place, chosen, within), start=1), "row"
    if suffix == ".json" and opens_array(file):
        return _array(file, place, expected), "record"
    if suffix in TABLES:
        return _table(file, suffix, place, columns), "line"
    if suffix == TEXT:
        return _text_lines(file, place, columns, within), "line"
    return _lines(file, place, expected, within), "line"


def _lines(
    file: Path, place: str, expected: str, within: tuple[int, int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(byte_lines(file, within), start=1):
        if line.removeprefix(codecs.BOM_UTF8).strip():
            yield number, _object(line, f"{place} line {number}", expected)


def _object(line: bytes, where: str, expected: str) -> dict[str, Any]:
    try:
        data = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON ({error.msg} at column {error.colno}); {expected}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where} holds a number or a nesting too large to read; {expected}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} is {kind_of(data)}; {expected}")
    return data


def _array(file: Path, place: str, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of one JSON array with their positions from 1; memory is that of the longest."""
    decoder, number, text = json.JSONDecoder(), 0, ""
    blocks = _text_blocks(file, place)
    ended, needed = False, 1
    last = ""  # what came before: nothing, an opening bracket, a comma or an object
    while True:
        while len(text) < needed and not ended:
            block = next(blocks, None)
            ended, text = block is None, text + (block or "")
        text = text.lstrip(" \t\r\n")
        where = f"{place} record {number + 1}"
        head = text[:1]
        _check_order(last, head, where, expected)
        if not last or head in (",", "]"):
            if head == "]":
                if text[1:].strip() or any(block.strip() for block in blocks):
                    raise InputError(f"{place} goes on after its JSON array; keep one array of records")
                return
            last, text, needed = head, text[1:], 1
            continue
        if not text and not ended:
            needed = 1
            continue
        try:
            data, end = decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError, ValueError) as error:
            if ended or len(text) > LONGEST_LINE or isinstance(error, RecursionError):
                fault = "more than 64 MiB" if len(text) > LONGEST_LINE else "no valid JSON, or is cut off"
                raise InputError(f"{where} is {fault}; {expected}") from None
            needed = 2 * len(text)
            continue
        if not isinstance(data, dict):
            raise InputError(f"{where} is {kind_of(data)}; {expected}")
        number, text, needed, last = number + 1, text[end:], 1, "}"
        yield number, data


def _check_order(last: str, head: str, where: str, expected: str) -> None:
    """Raise InputError where ``head``, if there is more, may not follow what came ``last`` in a JSON array."""
    if head and head not in _FOLLOWERS[last] and (last == "}" or head in (",", "]")):
        raise InputError(f"{where} is no valid JSON, or is cut off; {expected}")


def _text_blocks(file: Path, place: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for block in byte_blocks(file):
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InputError(f"{place} is not UTF-8 text; save the file as UTF-8") from None


def _text_lines(
    file: Path, place: str, columns: Columns, within: tuple[int, int] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    name = columns.text or "text"
    for number, line in enumerate(_decoded(file, place, within), start=1):
        if line.strip():
            yield number, {name: line.rstrip("\r\n")}


def _table(file: Path, suffix: str, place: str, columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row's cells by column name, with the line it begins on."""
    rows = _cells(file, suffix, place)
    names: list[str] | None = None
    for line, cells in rows:
        where = f"{place} line {line}"
        if names is None:
            names = _header(cells, where)
            _require(names, where, columns)
        elif len(cells) != len(names):
            raise InputError(
                f"{where} has {len(cells)} cells where the first row names {len(names)}; {_advice(suffix)}"
            )
        else:
            yield line, dict(zip(names, cells, strict=True))


def _table_names(file: Path, suffix: str, place: str) -> Iterator[list[str]]:
    for line, cells in _cells(file, suffix, place):
        yield _header(cells, f"{place} line {line}")
    yield []


def _cells(file: Path, suffix: str, place: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row that is not blank, with the line it begins on."""
    source = _decoded(file, place)
    if suffix == ".csv":
        reader = csv.reader(source, strict=True)
    else:
        reader = csv.reader(source, delimiter=_DELIMITERS[suffix], quoting=csv.QUOTE_NONE, strict=True)
    line = 1
    try:
        while (cells := _next_row(reader)) is not None:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{place} line {line} is not a row of a table: {error}; {_advice(suffix)}") from None


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
            raise InputError(f"{place} line {number} is not UTF-8 text; save the file as UTF-8") from None
