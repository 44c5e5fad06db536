"""Members, non-members and records to tune on: from one source, one record a page, at random."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.harness.results import write_jsonl

#: Beside the folder of data that ``--data-dir`` names.
PAIRS, MODEL = Path("text/tldr_pairs.jsonl.gz"), Path("stories260k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Three lists of texts without a page in common; attacks compare the first two."""

    members: tuple[str, ...]
    nonmembers: tuple[str, ...]
    tuning: tuple[str, ...]

    def write(self, folder: Path) -> dict[str, Path]:
        """A JSONL file for each list, by its name."""
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
    """``members`` texts, as many non-members and ``tuning`` others.

    One record of each page, drawn at random: with several, a classifier of words alone would know a page's records by
    each other, and every attack would be confounded. Raises ValueError where there are too few pages.
    """
    draw = random.Random(seed)  # noqa: S311 - a split that can be made again, not a secret
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
