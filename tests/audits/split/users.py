"""Splits of users with very different numbers of records, and scores made up for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.split.bounds import DrawnScores
from audits.split.draw import SplitRequest, draw_split
from audits.split.drawn import DrawnSplit, read_split
from audits.split.manifest import commitment_of, encode_manifest, read_manifest
from privctl.storage.digest import file_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Most users have a record or two, a few have many.
SIZES = (1, 1, 1, 2, 2, 3, 5, 8, 20)


def write_users(path: Path, users: int, texts: Sequence[str] = ()) -> Path:
    """So many ``users``, whose numbers of records are ``SIZES`` in turn; of ``texts``, or each a text of its own."""
    names = [f"u{user}" for user in range(users) for _ in range(SIZES[user % len(SIZES)])]
    rows = [
        {"text": texts[i % len(texts)] if texts else f"{i} of {name}", "user": name} for i, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def drawn_users(folder: Path, users: int, texts: Sequence[str] = (), **options: Any) -> Path:
    """The folder of a split of ``users``."""
    data = write_users(folder / "users.jsonl", users, texts)
    draw_split(SplitRequest(data=data, folder=folder / "users", group_by="user", **options))
    return folder / "users"


def made_again(split: Path, **changed: Any) -> None:
    """The manifest once more, for files as they are now and whatever else is ``changed``."""
    manifest = read_manifest(split / "manifest.json")
    named = {"members": manifest.members, "nonmembers": manifest.nonmembers, "train": manifest.train}
    for role, file in named.items():
        if file is not None:
            digest = file_digest(split / file.name)
            changed[role] = replace(file, digest=digest, content=digest)
    manifest = replace(manifest, **changed)
    (split / "manifest.json").write_bytes(encode_manifest(replace(manifest, commitment=commitment_of(manifest))))


def scored(split: DrawnSplit, scores: NDArray[np.float64]) -> tuple[DrawnScores, dict[str, NDArray[np.float64]]]:
    """``scores`` by coin [coins], each under the name of its first record."""
    first = {coin: place for place, coin in sorted(split.coins.items(), reverse=True)}
    places = [first[coin] for coin in range(len(scores))]
    ids = [f"{'members' if side else 'nonmembers'}:{line}" for side, line in places]
    member = np.array([side for side, _ in places])
    return DrawnScores(split=split, ids=ids, member=member, skipped={}), {"loss": scores}


def included(split: DrawnSplit) -> NDArray[np.float64]:
    """1 for each coin that fell on member, else 0."""
    return np.array(split.included, dtype=np.float64)


def split_at(folder: Path) -> DrawnSplit:
    return read_split(folder / "manifest.json")
