"""The single reader of records: the rows of all files that a path means, as fields by name, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from privctl.data.annotated import require_named
from privctl.data.arrow import ArrowSchema, arrow_rows, count_rows, schema_of
from privctl.data.columns import Columns, SameForm
from privctl.data.json_rows import json_array, json_lines
from privctl.data.packed import byte_lines, opens_array, suffix_of
from privctl.data.places import ARROW, LINES, PARQUET, STDIN, TABLES, TEXT, data_files, shown
from privctl.data.plain_rows import table_names, table_rows, text_lines
from privctl.data.several import DataPath, SeveralPaths
from privctl.data.shares import FileShare
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Progress

_Read = TypeVar("_Read")
_EXPECTED = 'expected an object such as {"text": "..."} or {"prompt": "...", "response": "..."}'


@dataclass(frozen=True, slots=True)
class Stretch:
    """A file's rows among all rows: ``name``, such as "train.jsonl line", and the number of rows ``before`` them."""

    name: str
    before: int = 0

    def place(self, number: int) -> str:
        """The file and line of row ``number``, which counts across files, for errors."""
        return f"{self.name} {number - self.before}"


class Row(NamedTuple):
    """A record's fields, its line or row ``number`` counted across files, and the ``stretch`` of its file."""

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
) -> Iterator[Row]:
    """The rows of every file that ``path`` means (see ``data_files``), read by the file's suffix.

    JSON lines or one JSON array (``.jsonl``, ``.ndjson``, ``.json``), tables with a first row of names (``.csv``,
    ``.tsv``), one record per line (``.txt``), all of these plain or with ``.gz`` or ``.zst``, parquet and Arrow. A file
    with any other suffix is read as if it had the suffix ``otherwise``. Tables are checked for the columns that
    ``columns``, ``labelled`` and ``unit`` require.

    Raises InputError, naming the line, for a malformed file, and for one without records; CommandError for an unknown
    suffix without ``otherwise``; FileSystemError if a file cannot be read.
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
            require_same_types(first.types, schema.types, columns.wanted(unit), place)
            require_named(schema.names, place, columns, labelled=labelled, unit=unit)
        pairs, word = _numbered(file, suffix, place, names, columns, unit)
        if alike is not None:
            pairs = alike.checked(pairs, place)
        stretch = Stretch(f"{place} {word}", before)
        for number, fields in pairs:
            yield Row(before + number, stretch, fields)
        if number == 0 and not (many and suffix in (PARQUET, ARROW)):
            raise InputError(f"{place} holds no records; {_missing(suffix)}")
        before += number
    if before == 0:
        raise InputError(f"{path} holds no records; expected at least one")


def rows_of_share(
    path: DataPath, share: FileShare, columns: Columns, *, unit: str | None = None, before: int = 0
) -> Iterator[Row]:
    """The rows of a share of the data at ``path``, numbered from ``before`` + 1; raises as ``rows_of`` does.

    A share may have no rows. Whether files agree in types and fields is checked when the shares are merged.
    """
    suffix, place = _suffix(share.file, None), shown(path, share.file)
    names: tuple[str, ...] = ()
    if suffix in (PARQUET, ARROW):
        names = schema_of(share.file, place).names
        require_named(names, place, columns, unit=unit)
    if share.within is not None and not share.is_first:
        place = f"{place} from byte {share.begin}"
    pairs, word = _numbered(share.file, suffix, place, names, columns, unit, share.within)
    stretch, number = Stretch(f"{place} {word}", before), 0
    for number, fields in pairs:
        yield Row(before + number, stretch, fields)
    if number == 0 and share.within is None and suffix not in (PARQUET, ARROW):
        raise InputError(f"{place} holds no records; {_missing(suffix)}")


def column_names(path: DataPath) -> tuple[str, ...] | None:
    """The names of the first record's fields; None for an unknown suffix. Raises as ``rows_of`` does."""
    file = data_files(path)[0]
    suffix = suffix_of(file)
    if suffix not in (*LINES, *TABLES, TEXT, PARQUET, ARROW):
        return None
    if suffix in (PARQUET, ARROW):
        return schema_of(file, shown(path, file)).names
    if suffix in TABLES:
        return tuple(table_names(file, suffix, shown(path, file)))
    return tuple(next(rows_of(file, Columns())).fields)


def image_columns(path: Path) -> tuple[str, ...]:
    """The columns of images in parquet or Arrow files at ``path``; empty for other files."""
    file = data_files(path)[0]
    return schema_of(file, shown(path, file)).images if suffix_of(file) in (PARQUET, ARROW) else ()


def is_json_lines(path: DataPath) -> bool:
    """Whether ``path`` is a single file of JSON lines; a file with an unknown suffix counts as one."""
    if isinstance(path, SeveralPaths) or path == STDIN or not path.is_file():
        return False
    suffix = suffix_of(path)
    return suffix not in (*TABLES, TEXT, PARQUET, ARROW) and not (suffix == ".json" and opens_array(path))


def progress_total(path: DataPath) -> int:
    """The total for a progress bar: an upper bound on the number of the last row that ``rows_of`` yields."""
    total = 0
    for file in data_files(path):
        if suffix_of(file) in (PARQUET, ARROW):
            total += count_rows(file, shown(path, file))
        else:
            total += sum(1 for _ in byte_lines(file))
    return total


def with_progress(rows: Iterable[_Read], path: DataPath, progress: Progress) -> Iterator[_Read]:
    """``rows``, read from the files at ``path``, with each reported to ``progress``; raises as reading them does."""
    name = "standard input" if path == STDIN else path.name or path
    with progress(f"reading {name}", progress_total(path), "rows") as advance:
        for row in rows:
            yield row
            advance(1)


def progress_total_of_share(share: FileShare) -> int:
    """As ``progress_total``, for a share."""
    if suffix_of(share.file) in (PARQUET, ARROW):
        return count_rows(share.file, str(share.file), share.within)
    return sum(1 for _ in byte_lines(share.file, share.within))


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


def _missing(suffix: str) -> str:
    if suffix in TABLES:
        return "expected a row of column names, then one row a record"
    if suffix in LINES:
        return f"{_EXPECTED} on each line"
    return "expected one record a line" if suffix == TEXT else "expected at least one row"


def require_same_types(first: Mapping[str, str], types: Mapping[str, str], wanted: set[str], place: str) -> None:
    """Raise InputError if a ``wanted`` column of the file ``place`` has a different type than in the first file."""
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
    within: tuple[int, int] | None = None,
) -> tuple[Iterator[tuple[int, dict[str, Any]]], str]:
    """The rows of a file, numbered from 1, and the word for a row; only rows that begin ``within`` two offsets."""
    if suffix in (PARQUET, ARROW):
        wanted = columns.wanted(unit)
        chosen = [name for name in names if name in wanted]
        return enumerate(arrow_rows(file, place, chosen, within), start=1), "row"
    if suffix == ".json" and opens_array(file):
        return json_array(file, place, _EXPECTED), "record"
    if suffix in TABLES:
        return table_rows(file, suffix, place, columns), "line"
    if suffix == TEXT:
        return text_lines(file, place, columns, within), "line"
    return json_lines(file, place, _EXPECTED, within), "line"
