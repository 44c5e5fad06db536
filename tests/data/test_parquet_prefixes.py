"""Strings that share their beginnings (DELTA_BYTE_ARRAY): how long they are, before any is made."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.data import arrow
from privctl.data.parquet_prefixes import PackedPage, decoded_size
from privctl.data.parquet_sizes import piece_sizes
from privctl.data.texts import read_texts

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
ENCODINGS = {"messages.list.element.content": "DELTA_BYTE_ARRAY", "messages.list.element.role": "PLAIN"}


def chats(count: int, size: int) -> list[Any]:
    """Long ones that begin alike, some messages without a text, and a row without messages."""
    source, shared = random.Random(0), "You are a helpful assistant. " * (size // 29)
    rows: list[Any] = [
        [{"role": "user", "content": shared[: source.randrange(size)] + str(source.random())} for _ in range(1 + i % 4)]
        for i in range(count)
    ]
    return rows


def written(path: Path, rows: list[Any], **more: Any) -> Path:
    table = pa.table({"messages": pa.array(rows, pa.list_(MESSAGE))})
    pq.write_table(table, path, **{"use_dictionary": False, "column_encoding": ENCODINGS, **more})
    return path


@pytest.mark.parametrize(
    "codec", ["zstd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("none", "snappy", "gzip", "brotli"))]
)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_size_of_all_strings_is_known(codec: str, version: str, tmp_path: Path) -> None:
    rows = chats(300, 400)
    rows[5], rows[7] = None, [{"role": "user", "content": None}, {"role": None, "content": "ünï"}]
    path = written(tmp_path / "a.parquet", rows, compression=codec, data_page_version=version, data_page_size=5_000)
    sizes = [len((m["content"] or "").encode()) for row in rows if row for m in row]
    with path.open("rb") as stream:
        _, *others = [piece.unpacked for piece in piece_sizes(stream, ["messages"]) if not piece.is_page]
    assert sum(sizes) in others


def test_honest_long_chats_are_read(tmp_path: Path) -> None:
    """A million bytes of different text and as many values as were refused once: their product said nothing."""
    rows = chats(800, 6_000)
    path = written(tmp_path / "a.parquet", rows, compression="zstd", data_page_size=1 << 20)
    values = sum(map(len, rows))
    with path.open("rb") as stream:
        largest = max(piece.unpacked for piece in piece_sizes(stream, ["messages"]) if piece.is_page)
    assert values * largest > arrow._DECODED, "refused before"
    expected = ["\n".join(m["content"] for m in row) for row in rows]
    assert [record.text for record in read_texts(path)] == expected


def packed(count: int, first: int, *blocks: bytes, block: int = 128, parts: int = 4) -> bytes:
    return varint(block) + varint(parts) + varint(count) + varint(first << 1) + b"".join(blocks)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        packed(5, 3),  # its block is missing
        packed(2**40, 0),
        packed(1, 3) + packed(1, 2**31),  # more bytes than there are
        packed(1, 3) + packed(1, 3) + b"ab",
        packed(1, 3, parts=0),
        packed(1, 3, block=2**40),
        packed(9, 0, varint(0) + bytes([255] * 4) + bytes(5000)),
        packed(9, 0, varint(1) + bytes(4)),  # falls below 0
    ],
)  # fmt: skip
def test_pages_that_lie(body: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        decoded_size(PackedPage(body, 0, len(body), 10))


def test_by_hand() -> None:
    """Three strings of "ab", each the one before: prefixes 0, 2, 2 and rests 2, 0, 0."""
    steps = [packed(3, 0, varint(0) + bytes([2, 0, 0, 0]) + bytes([0b0010] + [0] * 7))]
    steps.append(packed(3, 2, varint(3) + bytes([2, 0, 0, 0]) + bytes([0b1000] + [0] * 7)))
    body = b"".join(itertools.chain(steps, [b"ab"]))
    assert decoded_size(PackedPage(body, 0, len(body), 3)) == 6
