"""Abstracts as records: a public part for the vocabulary, a private one to train on, and others to test with."""

from __future__ import annotations

import csv
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Beside the folder of data that ``--data-dir`` names.
ABSTRACTS, STORIES = Path("text/20200101-cs.CR.tsv.xz"), Path("stories260k")

_WORD = re.compile(r"[a-z0-9]+")
_MARKS = ".,;:()-'\"/?%&"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Texts that have no abstract in common."""

    private: tuple[str, ...]
    test: tuple[str, ...]
    public: tuple[str, ...]


def abstracts(path: Path) -> list[str]:
    """The column ``abstract`` of a table packed by xz, white space made single blanks."""
    with lzma.open(path, "rt", encoding="utf-8", newline="") as lines:
        return [" ".join(row["abstract"].split()) for row in csv.DictReader(lines, delimiter="\t")]


def split(texts: Iterable[str], private: int, test: int, words: int, seed: int = 0) -> Split:
    """``private`` and ``test`` texts drawn at random, cut to ``words`` words each; the rest is public.

    Texts that begin alike count once. Raises ValueError where there are too few.
    """
    cut = list(dict.fromkeys(" ".join(text.split()[:words]) for text in texts if text))
    if len(cut) <= private + test:
        raise ValueError(f"{len(cut)} different abstracts are too few for {private} + {test} and a public rest")
    random.Random(seed).shuffle(cut)  # noqa: S311 - a split that can be made again, not a secret
    return Split(
        private=tuple(cut[:private]), test=tuple(cut[private : private + test]), public=tuple(cut[private + test :])
    )


def vocabulary(texts: Iterable[str], limit: int) -> list[str]:
    """Marks, then the words of ``texts`` that occur twice or more, the ``limit`` most frequent."""
    counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    frequent = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    return [*_MARKS, *frequent[:limit]]
