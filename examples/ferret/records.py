"""Draw members, non-members and records for tuning at random from one source, one record per page."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.harness.results import write_jsonl

#: Paths inside the folder that ``--data-dir`` names.
PAIRS, MODEL = Path("text/tldr_pairs.jsonl.gz"), Path("stories260k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Three lists of texts from different pages. Attacks compare the first two."""

    members: tuple[str, ...]
    nonmembers: tuple[str, ...]
    tuning: tuple[str, ...]

    def write(self, folder: Path) -> dict[str, Path]:
        """Write a JSONL file for each list, and return the paths by the names of the lists."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = {}
        for name in ("members", "nonmembers", "tuning"):
            paths[name] = write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in getattr(self, name)))
        return paths


def pairs(path: Path) -> list[dict[str, str]]:
    """The objects ``{page, instruction, output}`` of a gzipped JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def split(rows: Sequence[Mapping[str, str]], members: int, tuning: int, seed: int = 0) -> Split:
    """Draw ``members`` texts, as many non-members, and ``tuning`` others.

    One record of each page is used. With several, a classifier could recognize a page's records by the words that they
    share, which would confound every attack. Raises ValueError where there are too few pages.
    """
    draw = random.Random(seed)  # noqa: S311 - reproducible, not a secret
    pages: dict[str, dict[str, None]] = {}
    for row in rows:
        pages.setdefault(row["page"], {})[f"{row['instruction']}: {row['output']}"] = None
    texts = list(dict.fromkeys(draw.choice(list(pages[page])) for page in sorted(pages)))
    if len(texts) < 2 * members + tuning:
        raise ValueError(f"{len(texts)} different pages are too few for {2 * members} + {tuning} records")
    draw.shuffle(texts)
    return Split(
        members=tuple(texts[:members]),
        nonmembers=tuple(texts[members : 2 * members]),
        tuning=tuple(texts[2 * members : 2 * members + tuning]),
    )
