"""Features of a record without any model: n-grams, length, compressibility, dates, a thumbnail."""

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

#: Columns that n-grams are hashed to, the longest n, and the number of leading characters used.
BUCKETS, LONGEST, CHARACTERS = 1 << 16, 4, 2048

#: White space as characters of private use: scikit-learn would take a run of it for one space, and two data sets may
#: differ in just that.
_SPACES = {code: 0xF0000 + code for code in range(0x3001) if chr(code).isspace()}
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def record_features(records: Sequence[Record]) -> sparse.csr_array:
    """Features of the records themselves, [records, features]: text, or a coarse image or sound, and label."""
    texts = [record.text if record.label is None else f"{record.label}\n{record.text}" for record in records]
    grams = ngrams(texts)
    blocks = [grams[:, np.unique(grams.indices)], sparse.csr_array(numbers(texts) / 4)]
    if records and records[0].pixels is not None:
        blocks.append(sparse.csr_array(_thumbnails(records)))
    return sparse.csr_array(sparse.hstack(blocks).astype(np.float32))


def _thumbnails(records: Sequence[Record]) -> NDArray[np.float64]:
    """Images of any one shape [height, width, channels] at about 8 by 8 pixels, or the loudness of sounds.

    Standardised, as unit rows.
    """
    small = []
    for record in records:
        assert record.pixels is not None  # images come in sets of nothing else
        if record.pixels.ndim == 1:
            small.append(_loudness(record.pixels))
            continue
        rows, columns = (np.linspace(0, side - 1, min(side, 8)).round().astype(int) for side in record.pixels.shape[:2])
        small.append(record.pixels[np.ix_(rows, columns)].astype(np.float64).reshape(-1))
    table = np.stack(small)
    return np.asarray(_standardise(table) / np.sqrt(table.shape[1]))


def _loudness(wave: NDArray[Any]) -> NDArray[np.float64]:
    """The loudness of a sound in 8 stretches of time and 8 bands of frequency, and its length; on a log scale."""
    stretches = np.array_split(wave.astype(np.float64), 8)
    bands = [np.array_split(np.abs(np.fft.rfft(each, max(len(each), 16))), 8) for each in stretches]
    return np.log1p([*(float(band.mean()) for each in bands for band in each), len(wave)])


def ngrams(texts: Sequence[str]) -> sparse.csr_array:
    """Counts of character n-grams of up to ``LONGEST``, hashed: [texts, ``BUCKETS``], their logs in unit rows."""
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
    """A few numeric features of each text, standardised over all texts: [texts, features]."""
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
