"""Split abstracts into a public part for the vocabulary, a private part for training, and a test part."""

from __future__ import annotations

import csv
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Paths inside the folder that ``--data-dir`` names.
ABSTRACTS, STORIES = Path("text/20200101-cs.CR.tsv.xz"), Path("stories260k")

_WORD = re.compile(r"[a-z0-9]+")
_MARKS = ".,;:()-'\"/?%&"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Three disjoint sets of abstracts."""

    private: tuple[str, ...]
    test: tuple[str, ...]
    public: tuple[str, ...]


def abstracts(path: Path) -> list[str]:
    """The column ``abstract`` of an xz-compressed table, with runs of white space replaced by single spaces."""
    with lzma.open(path, "rt", encoding="utf-8", newline="") as lines:
        return [" ".join(row["abstract"].split()) for row in csv.DictReader(lines, delimiter="\t")]


def split(texts: Iterable[str], private: int, test: int, words: int, seed: int = 0) -> Split:
    """Draw ``private`` and ``test`` texts at random, cut to ``words`` words each; the rest is public.

    Texts with the same first ``words`` words count once. Raises ValueError where there are too few.
    """
    cut = list(dict.fromkeys(" ".join(text.split()[:words]) for text in texts if text))
    if len(cut) <= private + test:
        raise ValueError(f"{len(cut)} different abstracts are too few for {private} + {test} and a public rest")
    random.Random(seed).shuffle(cut)  # noqa: S311 - reproducible, not a secret
    return Split(
        private=tuple(cut[:private]), test=tuple(cut[private : private + test]), public=tuple(cut[private + test :])
    )


def vocabulary(texts: Iterable[str], limit: int) -> list[str]:
    """Punctuation marks, then the ``limit`` most frequent words that occur at least twice in ``texts``."""
    counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    frequent = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    return [*_MARKS, *frequent[:limit]]
