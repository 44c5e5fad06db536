"""The decoded size of the strings of a parquet page in encoding DELTA_BYTE_ARRAY.

Such a page has the lengths of the prefixes shared with the string before, then the lengths of the suffixes, both in
DELTA_BINARY_PACKED, then the suffixes. Only the lengths are read here, since a few bytes may make every string as long
as the page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privctl.data.thrift import varint

#: Codec number in parquet.thrift -> pyarrow's name; Hadoop's LZ4 (5) is not supported.
CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
#: Limits on the values of a DELTA_BINARY_PACKED block, its miniblocks and the bits of a value.
_LARGEST_BLOCK, _MOST_PARTS, _MOST_BITS = 1 << 20, 1 << 10, 64


class PackedPage(NamedTuple):
    """A page as stored, with its ``codec`` number, and its stated ``unpacked`` size and number of ``values``.

    The first ``plain`` bytes are uncompressed and hold levels. In the rest, the strings follow ``levels`` lists of
    levels, each prefixed with its length.
    """

    body: bytes
    codec: int
    unpacked: int
    values: int
    plain: int = 0
    levels: int = 0


def decoded_size(page: PackedPage) -> int:
    """The total bytes of the strings of ``page``. Raises ValueError if it is not in this encoding."""
    data = _decompressed(page)
    place = 0
    for _ in range(page.levels):
        place += 4 + int.from_bytes(data[place : place + 4], "little")
    shared, place = _sum_of_numbers(data, place, page.values)
    rest, place = _sum_of_numbers(data, place, page.values)
    if min(shared, rest) < 0 or place + rest > len(data):
        raise ValueError("strings lie beyond their page")
    return shared + rest


def _decompressed(page: PackedPage) -> bytes:
    import pyarrow as pa

    if page.codec not in CODECS:
        raise ValueError(f"its pages are compressed in a way that is not read, number {page.codec}")
    body, size = page.body[page.plain :], page.unpacked - page.plain
    if not CODECS[page.codec]:
        return body
    if size < 0:
        raise ValueError("a page is smaller than its levels")
    data: bytes = pa.decompress(body, size, codec=CODECS[page.codec], asbytes=True)
    return data


def _sum_of_numbers(data: bytes, offset: int, most: int) -> tuple[int, int]:
    """The sum of a list of at most ``most`` non-negative DELTA_BINARY_PACKED numbers, and the offset of its end."""
    block, offset = varint(data, offset)
    parts, offset = varint(data, offset)
    count, offset = varint(data, offset)
    first, offset = _signed(data, offset)
    if not (0 < parts <= _MOST_PARTS and 0 < block <= _LARGEST_BLOCK and block % (8 * parts) == 0 and count <= most):
        raise ValueError("its lengths are not packed as parquet packs them")
    if not count:
        return 0, offset
    values_per_part, total, last, left = block // parts, first, first, count - 1
    lowest = first
    while left > 0:
        least, offset = _signed(data, offset)
        widths, offset = data[offset : offset + parts], offset + parts
        for width in widths:
            if left <= 0:
                break
            size = width * values_per_part // 8
            if width > _MOST_BITS or offset + size > len(data):
                raise ValueError("its lengths lie beyond their page")
            steps = _unpacked(data[offset : offset + size], width, values_per_part)[:left] + least
            values = last + np.cumsum(steps)
            offset, left = offset + size, left - len(steps)
            total, last, lowest = total + int(values.sum()), int(values[-1]), min(lowest, int(values.min()))
    if lowest < 0:
        raise ValueError("a length is negative")
    return total, offset


def _unpacked(data: bytes, width: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """``count`` numbers of ``width`` bits each, lowest bit first; raises ValueError for one above 32 bits."""
    if not width:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(count, width)
    if width > 32 and bits[:, 32:].any():
        raise ValueError("a length does not fit in 32 bits")
    weights = np.left_shift(np.int64(1), np.arange(min(width, 32), dtype=np.int64))
    return np.asarray(bits[:, :32].astype(np.int64) @ weights)


def _signed(data: bytes, offset: int) -> tuple[int, int]:
    coded, offset = varint(data, offset)
    value = coded >> 1 ^ -(coded & 1)
    if abs(value) >> 32:
        raise ValueError("a length does not fit in 32 bits")
    return value, offset
