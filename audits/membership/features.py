"""What can be said of a record without any model: n-grams, length, compressibility, dates, a thumbnail."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from privctl.data.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Columns that n-grams are hashed to, their longest length, and the bytes of a text that are looked at.
BUCKETS, LONGEST, BYTES = 1 << 16, 4, 2048

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def looks(records: Sequence[Record]) -> sparse.csr_array:
    """All that a record shows of itself, [records, features]: text and label, or a coarse image and label."""
    texts = [record.text if record.label is None else f"{record.label}\n{record.text}" for record in records]
    grams = ngrams(texts)
    parts = [grams[:, np.unique(grams.indices)], sparse.csr_array(numbers(texts) / 4)]
    if records and records[0].pixels is not None:
        parts.append(sparse.csr_array(_thumbnails(records)))
    return sparse.csr_array(sparse.hstack(parts).astype(np.float32))


def _thumbnails(records: Sequence[Record]) -> NDArray[np.float64]:
    """Images of any one shape [height, width, channels] at about 8 by 8 pixels, standardised, as unit rows."""
    small = []
    for record in records:
        assert record.pixels is not None  # images come in sets of nothing else
        rows, columns = (np.linspace(0, side - 1, min(side, 8)).round().astype(int) for side in record.pixels.shape[:2])
        small.append(record.pixels[np.ix_(rows, columns)].astype(np.float64).reshape(-1))
    table = np.stack(small)
    spread = table.std(axis=0)
    return np.asarray((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / np.sqrt(table.shape[1]))


def ngrams(texts: Sequence[str]) -> sparse.csr_array:
    """Byte n-grams of lengths 1 to ``LONGEST``, hashed and counted: [texts, ``BUCKETS``], log counts in unit rows."""
    raw = [text.encode()[:BYTES] for text in texts]
    lengths = np.array([len(part) for part in raw], dtype=np.int64)
    stream = np.frombuffer(b"".join(raw), dtype=np.uint8).astype(np.uint64)
    record = np.repeat(np.arange(len(raw), dtype=np.int32), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(stream))  # bytes from here to the text's end
    codes = np.zeros(len(stream), dtype=np.uint64)
    rows, columns = [], []
    for n in range(1, LONGEST + 1):
        codes[: max(0, len(stream) - n + 1)] |= stream[n - 1 :] << np.uint64(8 * (n - 1))
        whole = left >= n
        # Fibonacci hashing: the product's high bits depend on all of the code's, and n tells equal codes apart.
        mixed = (codes[whole] * np.uint64(8) + np.uint64(n)) * np.uint64(0x9E3779B97F4A7C15)
        columns.append((mixed >> np.uint64(48)).astype(np.int32))
        rows.append(record[whole])
    counts = sparse.coo_array(
        (np.ones(sum(map(len, rows)), dtype=np.float32), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(raw), BUCKETS),
    ).tocsr()
    counts.data = np.log1p(counts.data)
    norms = np.sqrt(np.maximum(counts.power(2).sum(axis=1), 1e-12))
    return sparse.csr_array(sparse.diags_array((1 / norms).astype(np.float32)) @ counts)


def numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """A few plain numbers of each text, standardised over all of them: [texts, features]."""
    table = np.array([list(_numbers(text)) for text in texts], dtype=np.float64)
    spread = table.std(axis=0)
    return np.asarray((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _numbers(text: str) -> Iterator[Any]:
    raw = text.encode()
    years = [int(year) for year in _YEAR.findall(text)]
    yield np.log1p(len(raw))
    yield len(zlib.compress(raw)) / max(len(raw), 1)
    yield sum(map(str.isdigit, text)) / max(len(text), 1)
    yield sum(map(str.isupper, text)) / max(len(text), 1)
    yield text.count("\n") / max(len(text), 1)
    yield len(raw) / max(len(text), 1)
    yield float(bool(years))
    yield max(years, default=1990) - 1990.0
