"""Scores kept between audits: a second audit, another attack or a gate costs no forward pass.

A cache is a folder for one model: its name is the digest of everything that scores depend on besides the row, so that
one changed weight finds another folder. It holds files that are whole or absent, so that a killed audit goes on where
it stopped, and several processes can fill it together.

What it holds is private: from the scores of its tokens and the model, a text can be rebuilt. So nothing is kept unless
the user asks for it, folders and files are for their owner alone, and every file is removed when its time is over. A
checksum in each header tells damage; it does not tell an edit by someone who computes it anew, so a few rows are scored
again at each use.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from audits.scores.table import FIELDS
from privctl.domain.errors import FileSystemError, InputError, PrivctlError
from privctl.storage.arrays import write_arrays
from privctl.storage.digest import tag
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Raised whenever the meaning of a score changes.
SCORE_VERSION = 1
#: Bytes of a row's key.
KEY_BYTES = 16

#: Days that scores are kept.
KEPT_DAYS = 7

_SUFFIX = ".scores"
_FOLDER_MODE = 0o700
#: Header keys: when a file is to be removed (seconds since 1970), and the checksum of what it holds.
_EXPIRES, _CHECKSUM = "privctl.expires", "privctl.checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedScores:
    """``values`` [6, total] of rows in the order of ``keys`` [rows, 16], each of which has ``counts`` [rows] scores."""

    keys: NDArray[np.uint8]
    counts: NDArray[np.int64]
    values: NDArray[np.float32]

    def begins(self) -> dict[bytes, int]:
        """Where in ``values`` the scores of each row begin, by its key."""
        starts = np.cumsum(self.counts) - self.counts
        return dict(zip(map(bytes, self.keys), starts.tolist(), strict=True))


def scored(keys: Iterable[bytes], counts: NDArray[np.int64], values: NDArray[np.float32]) -> CachedScores:
    """The same with the keys as bytes."""
    packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
    return CachedScores(keys=packed, counts=counts, values=values)


def joined(parts: Iterable[CachedScores]) -> CachedScores:
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
    return CachedScores(keys=keys[kept], counts=counts[kept], values=values[:, np.repeat(kept, counts)])


def folder_name(identity: Mapping[str, str]) -> str:
    """What the folder of a model is called: a digest of ``identity`` and of the meaning of the scores."""
    digest = blake3()
    for name, value in sorted({**identity, "score_version": str(SCORE_VERSION)}.items()):
        digest.update(f"{len(name)}:{name}={len(value)}:{value};".encode())
    return tag(digest).removeprefix("blake3:")[:32]


def default_root() -> Path:
    """Where caches lie unless the user says otherwise: ``$XDG_CACHE_HOME/privctl/scores``, for the user alone."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privctl" / "scores"


def sweep(root: Path) -> None:
    """Remove from the caches of all models in ``root`` what has expired."""
    for path in root.glob(f"*/*{_SUFFIX}"):
        if _expired(path):
            path.unlink(missing_ok=True)


class ScoreCache:
    """The scores of one model, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, for its owner only, and remove what has expired.

        Raises FileSystemError where that fails, InputError where the folder is a link or someone else's.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
            _close(folder)
        except OSError as error:
            raise FileSystemError(
                f"{folder} cannot be made to keep scores in ({error.strerror}); give another --cache, or keep none"
            ) from None
        sweep(folder.parent)

    def load(self) -> CachedScores:
        """Everything kept; a file that cannot be read is passed over, as the rows in it can be scored again."""
        parts = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            part = _read(path)
            if part is not None:
                parts.append(part)
        return joined(parts)

    def add(self, part: CachedScores, expires: float | None = None) -> Path:
        """Keep ``part``, for ``KEPT_DAYS`` unless told; the file's name tells its rows, so that processes do not meet.

        ``expires`` is in seconds since 1970.
        """
        name = tag(blake3(part.keys.tobytes())).removeprefix("blake3:")[:24]
        arrays: dict[str, NDArray[Any]] = {"keys": part.keys, "counts": part.counts, "values": part.values}
        path = self.folder / f"{name}{_SUFFIX}"
        until = time.time() + KEPT_DAYS * 86400 if expires is None else expires
        write_arrays(path, arrays, {_EXPIRES: str(int(until)), _CHECKSUM: _checksum(part)})
        return path

    def tidy(self) -> None:
        """Join many small files into one, which expires as soon as the first of them."""
        paths = sorted(self.folder.glob(f"*{_SUFFIX}"))
        if len(paths) > 1:
            times = {path: _expiry(path) for path in paths}
            parts = {path: part for path in paths if (part := _read(path)) is not None}
            whole = self.add(joined(parts.values()), min((times[path] for path in parts), default=None))
            for path in paths:
                if path != whole:
                    path.unlink(missing_ok=True)


def _close(folder: Path) -> None:
    """Take everyone else's permissions away. Raises InputError where the folder is not the user's own."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(
            f"{folder} is a link, or belongs to another user; give a --cache of your own, as scores are private"
        )
    if stat.S_IMODE(found.st_mode) != _FOLDER_MODE:
        folder.chmod(_FOLDER_MODE)


def _checksum(part: CachedScores) -> str:
    digest = blake3()
    for array in (part.keys, part.counts, part.values):
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return tag(digest)


def _expiry(path: Path) -> float:
    """When the file is to be removed, at once where it does not say."""
    with contextlib.suppress(PrivctlError, ValueError), SafetensorsFile(path) as file:
        return int(file.metadata.get(_EXPIRES, "0"))
    return 0


def _expired(path: Path) -> bool:
    return _expiry(path) <= time.time()


def _read(path: Path) -> CachedScores | None:
    """What is in a file; None where it is damaged or has expired."""
    if _expired(path):
        return None
    try:
        with SafetensorsFile(path) as file:
            recorded = file.metadata.get(_CHECKSUM)
            arrays = {tensor.name: file.read(tensor) for tensor in file.tensors}
        keys = np.frombuffer(arrays["keys"], dtype=np.uint8).reshape(-1, KEY_BYTES)
        counts = np.frombuffer(arrays["counts"], dtype="<i8").astype(np.int64)
        values = np.frombuffer(arrays["values"], dtype="<f4").reshape(len(FIELDS), -1)
    except (PrivctlError, KeyError, ValueError):
        return None
    part = CachedScores(keys=keys, counts=counts, values=values)
    if len(keys) != len(counts) or values.shape[1] != counts.sum() or _checksum(part) != recorded:
        return None
    return part
