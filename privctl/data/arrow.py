"""Rows of parquet and Arrow files, streamed in batches; the sizes a file states are checked before allocating memory.

Nothing is memory-mapped: truncating a mapped file kills the program. Arrow does not check offsets, so each batch is
validated before it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from privctl.data.arrow_types import is_image, is_readable, nested_sizes, unpacked
from privctl.data.packed import LONGEST_LINE, MOST_RATIO, MOST_UNPACKED, suffix_of
from privctl.data.parquet_sizes import groups_within, piece_sizes
from privctl.data.places import PARQUET
from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows decoded at a time, and the largest batch, in bytes, of an Arrow file, whose batches are read whole.
_ROWS, LARGEST_BATCH = 256, 1 << 30
#: Rows decoded at a time if no column holds texts.
_PLAIN_ROWS = 1 << 14
#: Bytes that the rows decoded at a time may unpack to.
_DECODED = 256 << 20
#: Bytes that any column chunk may unpack to, however small it is in the file; most of it is in memory at once.
LARGEST_CHUNK = 128 << 20
#: Values of a nested column that any row group may hold, however small it is in the file.
MOST_VALUES = 1 << 23
_FILE_MAGIC = b"ARROW1\0\0"
_MARK = b"\xff\xff\xff\xff"
_LONGEST_HEADER = 64 << 20
_RECORD_BATCH, _DICTIONARY = 3, 2
#: Extension type whose values older versions of pyarrow unpickled.
_PICKLED = b"arrow.py_extension_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowSchema:
    """The columns of a file: ``names``, their Arrow ``types`` as text by name, and which hold encoded ``images``."""

    names: tuple[str, ...]
    types: dict[str, str]
    images: tuple[str, ...]


def schema_of(path: Path, where: str) -> ArrowSchema:
    """The columns of a file. Raises InputError unless it is parquet or Arrow, FileSystemError if it cannot be read.

    ``images`` are the columns of structs with a field ``bytes``, or of plain bytes.
    """
    with _faults(path, where), path.open("rb") as stream:
        file = _parquet(stream) if suffix_of(path) == PARQUET else _arrow(stream, where)
        schema = file.schema_arrow if suffix_of(path) == PARQUET else file.schema
        return ArrowSchema(
            names=tuple(schema.names),
            types={field.name: str(field.type) for field in schema},
            images=tuple(field.name for field in schema if is_image(field.type)),
        )


def count_rows(path: Path, where: str, within: tuple[int, int] | None = None) -> int:
    """The number of rows: from the metadata of a parquet file, by reading all batches of an Arrow file.

    With ``within``, the number of rows that ``arrow_rows`` yields for it.
    """
    with _faults(path, where), path.open("rb") as stream:
        if suffix_of(path) == PARQUET:
            metadata = _parquet(stream).metadata
            return sum(metadata.row_group(group).num_rows for group in groups_within(metadata, within))
        return sum(batch.num_rows for batch in _arrow(stream, where))


def arrow_rows(
    path: Path, where: str, columns: Sequence[str], within: tuple[int, int] | None = None
) -> Iterator[dict[str, Any]]:
    """The values of each row in ``columns``, which must exist, as Python objects.

    With ``within``, only the row groups of a parquet file that begin between these two byte offsets. Raises InputError
    for a type other than strings, integers, lists of these or of messages, and images; for a damaged file; and for one
    that unpacks to more than both ``MOST_UNPACKED`` bytes and ``MOST_RATIO`` times its size.
    """
    total = 0
    most = max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size) if path.is_file() else MOST_UNPACKED
    with _faults(path, where), path.open("rb") as stream:
        for batch in _batches(stream, path, where, columns, within):
            for name in columns:
                batch.column(name).validate(full=True)
            for part in _row_slices(batch, columns, where):
                for row in range(part.num_rows):
                    values = {name: part.column(name)[row].as_py() for name in columns}
                    size = sum(map(_size, values.values()))
                    total += size
                    if size > LONGEST_LINE:
                        raise _long_row(where)
                    if total > most:
                        raise InputError(
                            f"{where} unpacks to more than {most / 2**30:.3g} GiB, over {MOST_RATIO} times its size; "
                            "cut it into smaller files, or write it without compression if that is intended"
                        )
                    yield values


def parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches of the ``columns`` of a parquet file, which must exist and hold no texts. Raises as ``arrow_rows``."""
    with _faults(path, str(path)), path.open("rb") as stream:
        _rows_at_a_time(stream, columns, str(path))
        file = _parquet(stream)
        _check_types(file.schema_arrow, columns, str(path))
        for batch in file.iter_batches(_PLAIN_ROWS, columns=list(columns), use_threads=False):
            batch.validate(full=True)
            yield batch.select(list(columns))


def parquet_notes(path: Path) -> dict[bytes, bytes]:
    """The key-value metadata of a parquet file's schema. Raises as ``schema_of`` does."""
    with _faults(path, str(path)), path.open("rb") as stream:
        return dict(_parquet(stream).schema_arrow.metadata or {})


def _batches(
    stream: BinaryIO, path: Path, where: str, columns: Sequence[str], within: tuple[int, int] | None
) -> Iterator[pa.RecordBatch]:
    if suffix_of(path) != PARQUET:
        reader = _arrow(stream, where)
        _check_types(reader.schema, columns, where)
        for batch in reader:
            yield batch.select(list(columns))
        return
    rows, prefixed = _rows_at_a_time(stream, columns, where)
    file = _parquet(stream)
    _check_types(file.schema_arrow, columns, where)
    nested = _nested_texts(file.schema)
    if nested:
        # Arrow cannot read DELTA_BYTE_ARRAY as a dictionary; the size of such columns was already checked.
        file = _parquet(stream, [path for path in nested if path not in prefixed])
    # Arrow cannot read a batch of nested dictionary columns that spans two row groups.
    groups = groups_within(file.metadata, within)
    for chosen in [[group] for group in groups] if nested else [groups]:
        for batch in file.iter_batches(rows, row_groups=chosen, columns=list(columns), use_threads=False):
            yield batch.select(list(columns))


def _row_slices(batch: pa.RecordBatch, columns: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
    """A few rows of ``batch`` at a time, dictionary encoding undone; raises InputError for a row that is too long."""
    import pyarrow as pa

    for start in range(0, batch.num_rows, _ROWS):
        part = batch.slice(start, _ROWS)
        sizes = sum((nested_sizes(part.column(name)) for name in columns), np.zeros(part.num_rows, np.int64))
        if sizes.max(initial=0) > LONGEST_LINE:
            raise _long_row(where)
        rows = part.num_rows if sizes.sum() <= _DECODED else 1
        for row in range(0, part.num_rows, rows):
            arrays = [unpacked(part.column(name).slice(row, rows)) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _nested_texts(schema: Any) -> list[str]:
    """The columns of lists of texts. In dictionary encoding, a text stored once may occur in millions of rows."""
    return [c.path for c in schema if c.max_repetition_level and c.physical_type == "BYTE_ARRAY"]


def _long_row(where: str) -> InputError:
    return InputError(f"{where} has a row of more than {LONGEST_LINE >> 20} MiB; split records that are longer")


def _parquet(stream: BinaryIO, dictionaries: Sequence[str] = ()) -> Any:
    """A reader of the file that keeps the columns ``dictionaries`` dictionary-encoded."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        stream,
        read_dictionary=list(dictionaries),
        memory_map=False,
        pre_buffer=False,
        buffer_size=1 << 20,
        thrift_string_size_limit=_LONGEST_HEADER,
        thrift_container_size_limit=1 << 22,
        page_checksum_verification=True,
    )


def _rows_at_a_time(stream: BinaryIO, columns: Sequence[str], where: str) -> tuple[int, set[str]]:
    """How many rows may be decoded at a time, and the columns whose strings are all stored as DELTA_BYTE_ARRAY.

    A dictionary page may hold one string of its own length that every row repeats, so the rows are limited by the
    largest page. Raises InputError if a column chunk or page states a larger size than a file of its size may hold.
    """
    longest, stored = 1, {True: set[str](), False: set[str]()}
    for piece in piece_sizes(stream, columns):
        if piece.unpacked > max(LARGEST_CHUNK, MOST_RATIO * piece.packed):
            raise InputError(
                f"{where} has a column that unpacks to {piece.unpacked} bytes in one of its row groups, more than "
                f"{MOST_RATIO} times its size; write it with smaller row groups"
            )
        if piece.nested and piece.values > max(MOST_VALUES, 8 * piece.packed):
            raise InputError(
                f"{where} has {piece.values} messages in one of its row groups, more than a file of its size holds; "
                "write it with smaller row groups"
            )
        longest = max(longest, piece.unpacked if piece.is_page else 1)
        if piece.by_prefixes is not None:
            stored[piece.by_prefixes].add(piece.path)
    return max(1, min(_ROWS, _DECODED // longest)), stored[True] - stored[False]


def _check_types(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    for name in columns:
        field = schema.field(name)
        # pyarrow 18 registers this type, so its name is no longer in the field's metadata.
        names = {*(field.metadata or {}).values(), getattr(field.type, "extension_name", "").encode()}
        if _PICKLED in names:
            raise InputError(
                f"{where} has the column {name!r} of a pickled type, which can run code; write it as plain strings"
            )
        if not is_readable(field.type):
            raise InputError(
                f"{where} has the column {name!r} of the type {field.type}; expected strings, whole numbers, lists of "
                "them, messages or images"
            )


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


@contextmanager
def _faults(path: Path, where: str) -> Iterator[None]:
    """Turns pyarrow's exceptions into InputError or FileSystemError."""
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{where} asks for more memory than there is; write it in smaller pieces") from None
    except (ValueError, TypeError, LookupError, NotImplementedError, struct.error) as error:  # pyarrow's are of these
        kind = "parquet" if suffix_of(path) == PARQUET else "Arrow"
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{where} is not a complete {kind} file ({detail}); copy or write it again") from None
    except OSError as error:
        if error.errno is not None:
            raise unreadable(path, error) from None
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{where} cannot be read ({detail}); copy or write it again") from None


def _arrow(stream: BinaryIO, where: str) -> Any:
    """A reader of the batches, after checking the size of every message."""
    import pyarrow as pa

    begin = len(_FILE_MAGIC) if stream.read(len(_FILE_MAGIC)) == _FILE_MAGIC else 0
    end = stream.seek(0, 2)
    stream.seek(begin)
    while (header := _next_message(stream, where)) is not None:
        body, packed = header
        if packed:
            raise InputError(f"{where} is compressed inside, which says nothing of its size; write it as parquet")
        if body > LARGEST_BATCH:
            raise InputError(
                f"{where} has a batch of {body} bytes, and {LARGEST_BATCH} are read; write it in smaller batches"
            )
        if not 0 <= body <= end - stream.tell():
            raise InputError(f"{where} is cut off; copy or write it again")
        stream.seek(body, 1)
    stream.seek(begin)
    return pa.ipc.open_stream(stream)


def _next_message(stream: BinaryIO, where: str) -> tuple[int, bool] | None:
    """The size of the next message's body and whether it is compressed; None after the last message.

    Format: Arrow columnar format 1.4, "Encapsulated message format"; its header is a flatbuffer.
    """
    prefix = stream.read(8)
    if len(prefix) == 0 or prefix[4:] == bytes(4):
        return None
    if len(prefix) < 8 or prefix[:4] != _MARK:
        raise InputError(f"{where} is not an Arrow file; give one that datasets or pyarrow wrote")
    (length,) = struct.unpack("<i", prefix[4:])
    if not 0 < length <= _LONGEST_HEADER:
        raise InputError(f"{where} has a message header of {length} bytes; copy or write it again")
    data = stream.read(length)
    message = struct.unpack_from("<I", data, 0)[0]
    kind = _field(data, message, 1, "B") or 0
    body = _field(data, message, 3, "q") or 0
    header = _table(data, message, 2)
    if kind == _DICTIONARY and header is not None:
        header = _table(data, header, 1)
    packed = kind in (_DICTIONARY, _RECORD_BATCH) and header is not None and _place(data, header, 3) is not None
    return body, packed


def _place(data: bytes, table: int, field: int) -> int | None:
    """The offset of a field of a flatbuffer table; None if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * field + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * field)
    return table + offset if offset else None


def _field(data: bytes, table: int, field: int, kind: str) -> int | None:
    place = _place(data, table, field)
    return None if place is None else int(struct.unpack_from(f"<{kind}", data, place)[0])


def _table(data: bytes, table: int, field: int) -> int | None:
    place = _place(data, table, field)
    return None if place is None else place + int(struct.unpack_from("<I", data, place)[0])
