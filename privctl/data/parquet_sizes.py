"""The unpacked sizes that a parquet file states, read without pyarrow, which would run out of memory on false ones.

Format: Apache Parquet's ``parquet.thrift`` in Thrift's compact protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from privctl.data.parquet_prefixes import PackedPage, decoded_size
from privctl.data.thrift import structure

_MAGIC = b"PAR1"
#: Longest footer and longest page header, in bytes.
_LONGEST_FOOTER, _LONGEST_HEADER = 64 << 20, 64 << 10
# Field numbers in parquet.thrift.
_SCHEMA, _ROW_GROUPS, _CHUNKS, _META, _FILE = 2, 4, 1, 3, 1
_REPETITION, _NAME, _CHILDREN, _REQUIRED, _REPEATED = 3, 4, 5, 0, 2
_PATH, _CODEC, _VALUES, _UNPACKED, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = 3, 4, 5, 6, 7, 9, 11
_PAGE_UNPACKED, _PAGE_PACKED, _FIRST_FORM, _SECOND_FORM = 2, 3, 5, 8
#: The field of a data page header with the number of values; for each page version, the field with the encoding.
_PAGE_VALUES, _ENCODING = 1, {_FIRST_FORM: 2, _SECOND_FORM: 4}
_LEVELS, _IS_COMPRESSED = (5, 6), 7
#: The encoding DELTA_BYTE_ARRAY, in which a few bytes may stand for a string as long as the page.
_BY_PREFIXES = 7


class PieceSize(NamedTuple):
    """The sizes in bytes of a column chunk or of one of its pages, and the number of values it states.

    ``path`` is the column's path in the schema; ``nested`` says that it has more than one part. ``by_prefixes`` says
    whether a data page has encoding DELTA_BYTE_ARRAY, and is None for other pieces. In a nested column, a page of that
    encoding is followed by a piece with the decoded size of its strings, and the last page by one with their total.
    """

    unpacked: int
    packed: int
    is_page: bool
    values: int
    nested: bool
    path: str
    by_prefixes: bool | None = None


def piece_sizes(stream: BinaryIO, columns: Collection[str]) -> Iterator[PieceSize]:
    """The size of each column chunk and page of ``columns``.

    Raises ValueError if the file is not parquet, or if a piece lies outside it.
    """
    end = stream.seek(0, 2)
    stream.seek(max(0, end - 8))
    tail = stream.read(8)
    if end < 12 or tail[4:] != _MAGIC:
        raise ValueError("it does not end as a parquet file does")
    (length,) = struct.unpack("<I", tail[:4])
    if not 0 < length <= min(_LONGEST_FOOTER, end - 12):
        raise ValueError(f"it has a footer of {length} bytes")
    stream.seek(end - 8 - length)
    footer, _ = structure(stream.read(length), 0)
    levels = dict(_levels(_list_of(footer, _SCHEMA)))
    for group in _list_of(footer, _ROW_GROUPS):
        for chunk in _list_of(group, _CHUNKS):
            meta = chunk.get(_META) if isinstance(chunk, dict) else None
            if not isinstance(meta, dict) or _FILE in chunk:
                raise ValueError("a column's description is missing or lies in another file")
            path = _list_of(meta, _PATH)
            if not path or not isinstance(path[0], bytes):
                raise ValueError("a column has no name")
            if path[0].decode("utf-8", "replace") in columns:
                yield from _chunk_sizes(stream, meta, end, levels.get(tuple(path), 0))


def groups_within(metadata: Any, within: tuple[int, int] | None) -> list[int]:
    """The row groups that begin ``within`` two byte offsets of a file with this pyarrow ``metadata``; all if None.

    A group whose stated start is before that of the group before it counts as starting with that group. So every group
    is in exactly one of adjoining ranges, and the ranges keep the order of the rows.
    """
    if within is None:
        return list(range(metadata.num_row_groups))
    chosen, latest = [], 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        chunks = (row_group.column(column) for column in range(row_group.num_columns))
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        latest = max(latest, min(starts, default=0))
        if within[0] <= latest < within[1]:
            chosen.append(group)
    return chosen


def _levels(elements: list[Any]) -> Iterator[tuple[tuple[bytes, ...], int]]:
    """(path, number of lists of levels in its pages) of every column: one if repeated, and one if optional."""
    around: list[tuple[int, tuple[bytes, ...], bool, bool]] = []
    for index, element in enumerate(elements):
        name, kind = element.get(_NAME, b""), element.get(_REPETITION, _REQUIRED)
        left, path, repeated, optional = around.pop() if around else (1, (), False, False)
        if left > 1:
            around.append((left - 1, path, repeated, optional))
        column_path = (*path, name) if index else ()
        repeated, optional = (repeated or kind == _REPEATED, optional or kind != _REQUIRED) if index else (False, False)
        if children := element.get(_CHILDREN):
            around.append((children, column_path, repeated, optional))
        else:
            yield column_path, repeated + optional


def _chunk_sizes(stream: BinaryIO, meta: dict[int, Any], end: int, levels: int) -> Iterator[PieceSize]:
    parts = _list_of(meta, _PATH)
    nested, path = len(parts) > 1, b".".join(parts).decode("utf-8", "replace")
    unpacked, packed = _number(meta, _UNPACKED), _number(meta, _PACKED)
    start = _number(meta, _DATA_PAGE)
    first = _number(meta, _DICTIONARY_PAGE) if _DICTIONARY_PAGE in meta else 0
    place = first if 0 < first < start else start
    if place + packed > end:
        raise ValueError("a column lies beyond its end")
    claimed, counted, strings = _number(meta, _VALUES), 0, 0
    yield PieceSize(unpacked, packed, is_page=False, values=claimed, nested=nested, path=path)
    stop = place + packed
    while place < stop:
        stream.seek(place)
        header, header_size = structure(stream.read(_LONGEST_HEADER), 0)
        size = _number(header, _PAGE_PACKED)
        if place + header_size + size > stop:
            raise ValueError("a page lies beyond its column")
        values, by_prefixes = _page_values(header)
        counted += values
        if counted > claimed:
            raise ValueError("a column has more values than it states")
        yield PieceSize(_number(header, _PAGE_UNPACKED), size, True, values, nested, path, by_prefixes)
        if nested and by_prefixes:
            stream.seek(place + header_size)
            page_size = decoded_size(_packed_page(stream.read(size), header, _number(meta, _CODEC), levels))
            yield PieceSize(page_size, size, True, values, nested, path)
            strings += page_size
        place += header_size + size
    if strings:
        yield PieceSize(strings, packed, is_page=False, values=claimed, nested=nested, path=path)


def _packed_page(body: bytes, header: dict[int, Any], codec: int, levels: int) -> PackedPage:
    unpacked, (values, _) = _number(header, _PAGE_UNPACKED), _page_values(header)
    second = header.get(_SECOND_FORM)
    if not isinstance(second, dict):
        return PackedPage(body, codec, unpacked, values, levels=levels)
    plain = sum(_number(second, field) for field in _LEVELS)
    return PackedPage(body, codec if second.get(_IS_COMPRESSED, True) else 0, unpacked, values, plain=plain)


def _page_values(header: dict[int, Any]) -> tuple[int, bool | None]:
    """The number of values of a data page and whether its encoding is DELTA_BYTE_ARRAY; (0, None) for other pages."""
    for form, encoding in _ENCODING.items():
        if isinstance(described := header.get(form), dict):
            return _number(described, _PAGE_VALUES), described.get(encoding) == _BY_PREFIXES
    return 0, None


def _number(fields: dict[int, Any], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError("a size is missing or negative")
    return value


def _list_of(fields: Any, field: int) -> list[Any]:
    value = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value
