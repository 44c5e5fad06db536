"""Conversations in small parquet and Arrow files that unpack to gigabytes, and such files as people have."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.data import arrow
from privctl.data.texts import read_texts
from privctl.domain.errors import InputError
from tests.few import few

MIB = 1 << 20
#: Pools that arrays may still be in.
KEPT: list[pa.MemoryPool] = []
PLAIN = pa.struct([("role", pa.string()), ("content", pa.string())])


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Fails where Python and Arrow together take more bytes inside, each at its worst."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    KEPT.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        taken = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert taken < size, f"{taken / MIB:.0f} MiB"


def listed(messages: pa.Array) -> pa.Table:
    """One row that holds all messages."""
    return pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, len(messages)], pa.int32()), messages)})


def repeated(count: int, size: int) -> pa.Array:
    """Messages of one text, which is stored once."""
    places = pa.array([0] * count, pa.int32())
    texts = [pa.DictionaryArray.from_arrays(places, pa.array([text])) for text in ("user", "x" * size)]
    return pa.StructArray.from_arrays(texts, names=["role", "content"])


def one_text(path: Path) -> Path:
    pq.write_table(listed(repeated(20_000, 100_000)), path, compression="zstd")
    return path


def one_text_in_arrow(path: Path) -> Path:
    whole = listed(repeated(20_000, 100_000))
    with pa.ipc.new_stream(path.with_suffix(".arrow"), whole.schema) as writer:
        writer.write_table(whole)
    return path.with_suffix(".arrow")


def nothing(path: Path) -> Path:
    """Nine million messages that are null, in a few bytes of repeated levels."""
    pq.write_table(listed(pa.nulls(9_000_000, PLAIN)), path, compression="zstd")
    return path


def nothing_but_few(path: Path) -> Path:
    """Not too many for a row group, but for a row."""
    pq.write_table(listed(pa.nulls(2_000_000, PLAIN)), path, compression="zstd")
    return path


def prefixes(path: Path) -> Path:
    """Texts that are each stored as the one before."""
    table = pa.table({"messages": pa.array([[{"role": "user", "content": "x" * 100_000}] * 100], pa.list_(PLAIN))})
    encodings = {"messages.list.element.content": "DELTA_BYTE_ARRAY", "messages.list.element.role": "PLAIN"}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding=encodings)
    return path


@pytest.mark.parametrize(
    ("make", "fault", "size"),
    [
        (one_text, "has a row of more than 64 MiB", 2_000),
        (one_text_in_arrow, "has a row of more than 64 MiB", 300_000),
        (nothing, "has 9000000 messages in one of its row groups", 2_000),
        (nothing_but_few, "has a row of more than 64 MiB", 2_000),
        (prefixes, "has a column that unpacks to 10000000 bytes in one of its row groups", 2_000),
    ],
)
def test_a_small_file_that_claims_much(
    make: Callable[[Path], Path], fault: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.parquet")
    assert path.stat().st_size < size
    monkeypatch.setattr(arrow, "_DECODED", 8 * MIB)
    monkeypatch.setattr(arrow, "LARGEST_CHUNK", 8 * MIB)
    with at_most(200 * MIB), pytest.raises(InputError, match=fault) as caught:
        read_texts(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("large", few([True, False], 0))
def test_conversations_as_people_have_them(
    dictionary: bool, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[{"role": "user", "content": f"{i} {j} " * (j + 1)} for j in range(i % 5 + 1)] for i in range(700)]
    rows[3][0] = {"role": "user", "content": "long " * 1000}
    kind = (pa.large_list if large else pa.list_)(PLAIN)
    path = tmp_path / "a.parquet"
    more = {
        "use_dictionary": dictionary,
        "row_group_size": 300,
        "dictionary_pagesize_limit": 2000,
        "data_page_size": 3000,
    }
    pq.write_table(pa.table({"messages": pa.array(rows, kind)}), path, **more)
    expected = ["\n".join(message["content"] for message in row) for row in rows]
    assert [record.text for record in read_texts(path)] == expected
    monkeypatch.setattr(arrow, "_DECODED", 4000)
    assert [record.text for record in read_texts(path)] == expected, "a row at a time"
    monkeypatch.setattr(arrow, "LONGEST_LINE", 4000)
    with pytest.raises(InputError, match="has a row of more than"):
        read_texts(path)


def test_missing_messages_and_texts_are_told_by_their_rows(tmp_path: Path) -> None:
    rows = [[{"role": "user", "content": "a"}], None, [{"role": None, "content": "b"}]]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"messages": pa.array(rows, pa.list_(PLAIN))}), path)
    with pytest.raises(InputError, match="row 2 has null as 'messages'"):
        read_texts(path)
