"""Scores kept between audits: a second audit, another attack or a gate costs no forward pass.

A cache is a folder for one model: its name is the digest of everything that scores depend on besides the row, so that
one changed weight finds another folder. It holds files that are whole or absent, so that a killed audit goes on where
it stopped, and several processes can fill it together. What it holds is private: scores of the records themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from audits.scoring.table import FIELDS
from privctl.domain.errors import IoFault, PrivctlError
from privctl.storage.arrays import write_arrays
from privctl.storage.digest import tag
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Raised whenever the meaning of a score changes.
SCORE_VERSION = 1
#: Bytes of a row's key.
KEY_BYTES = 16

_SUFFIX = ".scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """``values`` [6, total] of rows in the order of ``keys`` [rows, 16], each of which has ``counts`` [rows] scores."""

    keys: NDArray[np.uint8]
    counts: NDArray[np.int64]
    values: NDArray[np.float32]

    def begins(self) -> dict[bytes, int]:
        """Where in ``values`` the scores of each row begin, by its key."""
        starts = np.cumsum(self.counts) - self.counts
        return dict(zip(map(bytes, self.keys), starts.tolist(), strict=True))


def scored(keys: Iterable[bytes], counts: NDArray[np.int64], values: NDArray[np.float32]) -> Scored:
    """The same with the keys as bytes."""
    packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
    return Scored(keys=packed, counts=counts, values=values)


def joined(parts: Iterable[Scored]) -> Scored:
    """All parts as one; a row that occurs in several counts once."""
    every = list(parts)
    nothing = scored([], np.zeros(0, dtype=np.int64), np.zeros((len(FIELDS), 0), dtype=np.float32))
    keys, counts, values = (
        np.concatenate([getattr(part, name) for part in (nothing, *every)], axis=axis)
        for name, axis in (("keys", 0), ("counts", 0), ("values", 1))
    )
    _, first = np.unique(keys, axis=0, return_index=True) if len(keys) else (None, np.zeros(0, dtype=np.int64))
    kept = np.zeros(len(keys), dtype=np.bool_)
    kept[first] = True
    return Scored(keys=keys[kept], counts=counts[kept], values=values[:, np.repeat(kept, counts)])


def folder_name(identity: Mapping[str, str]) -> str:
    """What the folder of a model is called: a digest of ``identity`` and of the meaning of the scores."""
    digest = blake3()
    for name, value in sorted({**identity, "score_version": str(SCORE_VERSION)}.items()):
        digest.update(f"{len(name)}:{name}={len(value)}:{value};".encode())
    return tag(digest).removeprefix("blake3:")[:32]


def default_root() -> Path:
    """Where caches lie unless the user says otherwise: ``$XDG_CACHE_HOME/privctl/scores``, for the user alone."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privctl" / "scores"


class ScoreCache:
    """The scores of one model, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, readable to its owner only. Raises IoFault where that fails."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise IoFault(
                f"{folder} cannot be made to keep scores in ({error.strerror}); give another --cache, or --no-cache"
            ) from None

    def load(self) -> Scored:
        """Everything kept; a file that cannot be read is passed over, as the rows in it can be scored again."""
        parts = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            part = _read(path)
            if part is not None:
                parts.append(part)
        return joined(parts)

    def add(self, part: Scored) -> Path:
        """Keep ``part``; the file's name tells its rows, so that processes do not meet."""
        name = tag(blake3(part.keys.tobytes())).removeprefix("blake3:")[:24]
        arrays: dict[str, NDArray[Any]] = {"keys": part.keys, "counts": part.counts, "values": part.values}
        path = self.folder / f"{name}{_SUFFIX}"
        write_arrays(path, arrays, {})
        return path

    def tidy(self) -> None:
        """Join many small files into one."""
        paths = sorted(self.folder.glob(f"*{_SUFFIX}"))
        if len(paths) > 1:
            whole = self.add(joined(part for path in paths if (part := _read(path)) is not None))
            for path in paths:
                if path != whole:
                    path.unlink(missing_ok=True)


def _read(path: Path) -> Scored | None:
    try:
        with SafetensorsFile(path) as file:
            arrays = {tensor.name: (tensor, file.read(tensor)) for tensor in file.tensors}
        keys = np.frombuffer(arrays["keys"][1], dtype=np.uint8).reshape(-1, KEY_BYTES)
        counts = np.frombuffer(arrays["counts"][1], dtype="<i8").astype(np.int64)
        values = np.frombuffer(arrays["values"][1], dtype="<f4").reshape(len(FIELDS), -1)
    except (PrivctlError, KeyError, ValueError):
        return None
    if len(keys) != len(counts) or values.shape[1] != counts.sum():
        return None
    return Scored(keys=keys, counts=counts, values=values)
