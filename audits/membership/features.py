"""Features of a record that need no model: n-grams, length, compressibility, dates, a thumbnail."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from privctl.data.columns import HeadKind
from privctl.data.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of hash buckets for n-grams, the largest n, and the number of leading characters used.
BUCKETS, LONGEST, CHARACTERS = 1 << 16, 4, 2048
#: The number of texts whose n-grams are counted at a time, and the most n-grams that are kept, of 8 bytes each.
_BLOCK, _KEPT = 4096, 32 << 20
#: Larger images are subsampled to about this many pixels per side before their statistics are computed.
LOOKED_AT = 64
#: The number of most frequent labels that get a feature of their own.
LABELS = 32

#: White space mapped to private-use characters: scikit-learn collapses runs of white space, in which two data sets may
#: differ.
_SPACES = {code: 0xF0000 + code for code in range(0x3001) if chr(code).isspace()}
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


class Ngrams:
    """``ngrams`` of ``texts``, by rows. Where they would fill much memory they are not kept, but computed when needed.

    ``used`` are the columns that any text has.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        found, size = np.zeros(BUCKETS, dtype=np.bool_), 0
        kept: list[sparse.csr_array] | None = []
        for rows in self._places():
            block = ngrams(texts[rows])
            found[block.indices] = True
            size += block.nnz
            kept = None if kept is None or size > _KEPT else [*kept, block]
        self.used = np.flatnonzero(found)
        self._kept = sparse.csr_array(sparse.vstack(kept, format="csr")) if kept else None

    def _places(self) -> Iterator[slice]:
        return (slice(start, start + _BLOCK) for start in range(0, len(self._texts), _BLOCK))

    def blocks(self) -> Iterator[sparse.csr_array]:
        """The rows of all texts, a few thousand at a time, [texts, ``BUCKETS``]."""
        return (ngrams(self._texts[rows]) if self._kept is None else self._kept[rows] for rows in self._places())

    def __getitem__(self, rows: NDArray[np.int64]) -> sparse.csr_array:
        return ngrams([self._texts[row] for row in rows]) if self._kept is None else self._kept[rows]


class RecordFeatures:
    """The features of records, by rows: their n-grams, and those in ``others`` [records, features]."""

    def __init__(self, grams: Ngrams, others: NDArray[np.float64]) -> None:
        self._grams, self._others = grams, others
        self._column = np.full(BUCKETS, -1, dtype=np.int32)
        self._column[grams.used] = np.arange(len(grams.used))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of records, and of features."""
        return len(self._others), len(self._grams.used) + self._others.shape[1]

    def __getitem__(self, rows: NDArray[np.int64]) -> sparse.csr_array:
        grams = self._grams[rows]
        used = (grams.data, self._column[grams.indices], grams.indptr)
        blocks = [
            sparse.csr_array(used, shape=(len(rows), len(self._grams.used))),
            sparse.csr_array(self._others[rows]),
        ]
        return sparse.csr_array(sparse.hstack(blocks).astype(np.float32))


def record_features(records: Sequence[Record], count: Callable[[Sequence[str]], Ngrams] = Ngrams) -> RecordFeatures:
    """Features of the records themselves: text, or a coarse image or sound, and label.

    ``count`` replaces ``Ngrams``, for callers that cache it.
    """
    texts = [record.text if record.label is None else f"{record.label}\n{record.text}" for record in records]
    others = numbers(texts) / 4
    if records and records[0].pixels is not None:
        others = np.concatenate([others, _thumbnails(records)], axis=1)
    return RecordFeatures(count(texts), others)


def _thumbnails(records: Sequence[Record], most: int = 8) -> NDArray[np.float64]:
    """Thumbnails of up to ``most`` by ``most`` pixels of images of equal shape, or the loudness of sounds.

    Standardized, with rows of about unit length.
    """
    small = []
    for record in records:
        assert record.pixels is not None  # a data set has images only or none
        if record.pixels.ndim == 1:
            small.append(_loudness(record.pixels))
            continue
        pixels = _channels_last(record.pixels)
        rows, columns = (np.linspace(0, side - 1, min(side, most)).round().astype(int) for side in pixels.shape[:2])
        small.append(pixels[np.ix_(rows, columns)].astype(np.float64).reshape(-1))
    table = np.stack(small)
    return np.asarray(_standardise(table) / np.sqrt(table.shape[1]))


def _loudness(wave: NDArray[Any]) -> NDArray[np.float64]:
    """A sound's log loudness in 8 time segments and 8 frequency bands, and its log length."""
    stretches = np.array_split(wave.astype(np.float64), 8)
    bands = [np.array_split(np.abs(np.fft.rfft(stretch, max(len(stretch), 16))), 8) for stretch in stretches]
    return np.log1p([*(float(band.mean()) for stretch_bands in bands for band in stretch_bands), len(wave)])


def sound_features(records: Sequence[Record]) -> NDArray[np.float64]:
    """Features of sounds, standardized over all records, [records, features]."""
    return _standardise(np.stack([_loudness(record.pixels) for record in records if record.pixels is not None]))


def _channels_last(pixels: NDArray[Any]) -> NDArray[Any]:
    """The image as [height, width, channels]; float32 images are stored as [channels, height, width]."""
    return pixels if pixels.dtype == np.uint8 else pixels.transpose(1, 2, 0)


def image_features(records: Sequence[Record]) -> NDArray[np.float64]:
    """Features of images, standardized over all records, [records, features].

    Mean and standard deviation of each channel, mean difference of neighbouring pixels, compression ratio, and a
    thumbnail of 4 by 4 pixels.
    """
    return np.concatenate([_standardise(np.array([_statistics(r) for r in records])), _thumbnails(records, 4)], axis=1)


def _statistics(record: Record) -> list[float]:
    assert record.pixels is not None
    pixels = _channels_last(record.pixels)
    rows, columns = (-(-side // LOOKED_AT) for side in pixels.shape[:2])
    pixels = pixels[::rows, ::columns]
    raw, wide = np.ascontiguousarray(pixels).tobytes(), pixels.astype(np.float64)
    steps = [np.abs(np.diff(wide, axis=axis)).mean() if wide.shape[axis] > 1 else 0.0 for axis in (0, 1)]
    return [*wide.mean((0, 1)), *wide.std((0, 1)), *map(float, steps), len(zlib.compress(raw, 1)) / len(raw)]


def label_features(records: Sequence[Record], head: HeadKind | None) -> NDArray[np.float64]:
    """Features of the labels, [records, features]; no columns if there are no labels.

    For numbers, the value and its distance from the median; otherwise the number of labels of each record and an
    indicator for each of the most frequent labels.
    """
    if head is None:
        return np.zeros((len(records), 0))
    if head is HeadKind.NUMBER:
        stated = np.array([float(record.label or "nan") for record in records])
        return np.stack([stated, np.abs(stated - np.median(stated))], axis=1)
    several = head is HeadKind.SEVERAL
    label_sets = [set(json.loads(r.label or "[]")) if several else {r.label or ""} for r in records]
    counts = Counter(name for names in label_sets for name in names)
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:LABELS]
    return np.array([[len(names), *(name in names for name in frequent)] for names in label_sets], dtype=np.float64)


def ngrams(texts: Sequence[str]) -> sparse.csr_array:
    """Hashed counts of character n-grams up to ``LONGEST``, log-scaled in unit rows, [texts, ``BUCKETS``]."""
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.preprocessing import normalize

    counter = HashingVectorizer(
        analyzer="char",
        ngram_range=(1, LONGEST),
        preprocessor=lambda text: text[:CHARACTERS].translate(_SPACES),
        n_features=BUCKETS,
        alternate_sign=False,
        norm=None,
        dtype=np.float32,
    )
    counts = counter.transform(texts)
    counts.data = np.log1p(counts.data)
    return sparse.csr_array(normalize(counts))


def numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """A few numeric features of each text, standardized over all texts, [texts, features]."""
    return _standardise(np.array([list(_numbers(text)) for text in texts], dtype=np.float64))


def _standardise(table: NDArray[np.float64]) -> NDArray[np.float64]:
    from sklearn.preprocessing import StandardScaler

    return np.asarray(StandardScaler().fit_transform(table))


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
