"""A cache of scores between audits: another audit, attack or gate needs no forward pass.

A cache is a folder for one model. Its name is a digest of everything except the row that scores depend on, so a changed
weight leads to another folder. Files are written completely or not at all, so a killed audit resumes where it stopped,
and several processes can fill the cache together.

The content is private: a text can be reconstructed from the model and the scores of its tokens. So nothing is cached
unless the user asks for it, only the owner can read folders and files, and every file is removed when it expires. A
checksum in each header detects damage, but not an edit by someone who recomputes it, so a few rows are rescored at each
use.
"""

from __future__ import annotations

import contextlib
import os
import re
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

#: Increased whenever the meaning of a score changes.
SCORE_VERSION = 1
#: Bytes of a row's key.
KEY_BYTES = 16

#: The number of days that scores are kept.
KEPT_DAYS = 7

_SUFFIX = ".scores"
_FOLDER_MODE = 0o700
#: The names of folders, as ``folder_name`` gives them.
_NAME = re.compile("[0-9a-f]{32}")
#: Header keys: the expiry time (seconds since 1970), and the checksum of the content.
_EXPIRES, _CHECKSUM = "privctl.expires", "privctl.checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedScores:
    """``values`` [6, total] of rows in the order of ``keys`` [rows, 16], each of which has ``counts`` [rows] scores."""

    keys: NDArray[np.uint8]
    counts: NDArray[np.int64]
    values: NDArray[np.float32]

    def begins(self) -> dict[bytes, int]:
        """The index in ``values`` at which the scores of each row begin, by the row's key."""
        starts = np.cumsum(self.counts) - self.counts
        return dict(zip(map(bytes, self.keys), starts.tolist(), strict=True))


def cached_scores(keys: Iterable[bytes], counts: NDArray[np.int64], values: NDArray[np.float32]) -> CachedScores:
    """``CachedScores`` with the keys given as bytes."""
    packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
    return CachedScores(keys=packed, counts=counts, values=values)


def join_scores(chunks: Iterable[CachedScores]) -> CachedScores:
    """Merge ``chunks``; a row that occurs in several is kept once."""
    all_chunks = list(chunks)
    empty = cached_scores([], np.zeros(0, dtype=np.int64), np.zeros((len(FIELDS), 0), dtype=np.float32))
    keys, counts, values = (
        np.concatenate([getattr(chunk, name) for chunk in (empty, *all_chunks)], axis=axis)
        for name, axis in (("keys", 0), ("counts", 0), ("values", 1))
    )
    _, first_places = np.unique(keys, axis=0, return_index=True) if len(keys) else (None, np.zeros(0, dtype=np.int64))
    kept = np.zeros(len(keys), dtype=np.bool_)
    kept[first_places] = True
    return CachedScores(keys=keys[kept], counts=counts[kept], values=values[:, np.repeat(kept, counts)])


def folder_name(identity: Mapping[str, str]) -> str:
    """The name of a model's folder: a digest of ``identity`` and of the score version."""
    digest = blake3()
    for name, value in sorted({**identity, "score_version": str(SCORE_VERSION)}.items()):
        digest.update(f"{len(name)}:{name}={len(value)}:{value};".encode())
    return tag(digest).removeprefix("blake3:")[:32]


def default_root() -> Path:
    """The default folder of all caches: ``$XDG_CACHE_HOME/privctl/scores``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privctl" / "scores"


def sweep(root: Path) -> None:
    """Remove expired files from the caches of all models in ``root``, which may hold files of other programs too."""
    for path in root.glob(f"*/*{_SUFFIX}"):
        is_cache_file = _NAME.fullmatch(path.parent.name) is not None or _expiry(path) > 0
        if is_cache_file and not path.parent.is_symlink() and _is_expired(path):
            path.unlink(missing_ok=True)


class ScoreCache:
    """The cached scores of one model, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        """Create the folder, readable only by its owner, and remove expired files.

        Raises FileSystemError if that fails, InputError if the folder is a link or belongs to someone else.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
            _make_private(folder)
        except OSError as error:
            raise FileSystemError(
                f"{folder} cannot be made to keep scores in ({error.strerror}); give another --cache, or keep none"
            ) from None
        sweep(folder.parent)

    def load(self) -> CachedScores:
        """All cached scores. Unreadable files are skipped, as their rows can be rescored."""
        chunks = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            chunk = _read_cached(path)
            if chunk is not None:
                chunks.append(chunk)
        return join_scores(chunks)

    def add(self, scores: CachedScores, expires: float | None = None) -> Path:
        """Cache ``scores`` until ``expires`` (seconds since 1970), by default for ``KEPT_DAYS``.

        File names depend on the rows, so processes do not collide.
        """
        name = tag(blake3(scores.keys.tobytes())).removeprefix("blake3:")[:24]
        arrays: dict[str, NDArray[Any]] = {"keys": scores.keys, "counts": scores.counts, "values": scores.values}
        path = self.folder / f"{name}{_SUFFIX}"
        until = time.time() + KEPT_DAYS * 86400 if expires is None else expires
        write_arrays(path, arrays, {_EXPIRES: str(int(until)), _CHECKSUM: _checksum(scores)})
        return path

    def tidy(self) -> None:
        """Merge all files into one, which expires with the first of them."""
        paths = sorted(self.folder.glob(f"*{_SUFFIX}"))
        if len(paths) > 1:
            times = {path: _expiry(path) for path in paths}
            chunks = {path: chunk for path in paths if (chunk := _read_cached(path)) is not None}
            merged = self.add(join_scores(chunks.values()), min((times[path] for path in chunks), default=None))
            for path in paths:
                if path != merged:
                    path.unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Remove everyone else's permissions. Raises InputError if the folder is not the user's own."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise InputError(
            f"{folder} is a link, or belongs to another user; give a --cache of your own, as scores are private"
        )
    if stat.S_IMODE(status.st_mode) != _FOLDER_MODE:
        folder.chmod(_FOLDER_MODE)


def _checksum(scores: CachedScores) -> str:
    digest = blake3()
    for array in (scores.keys, scores.counts, scores.values):
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return tag(digest)


def _expiry(path: Path) -> float:
    """When the file expires; 0 if that is not stated."""
    with contextlib.suppress(PrivctlError, ValueError), SafetensorsFile(path) as file:
        return int(file.metadata.get(_EXPIRES, "0"))
    return 0


def _is_expired(path: Path) -> bool:
    return _expiry(path) <= time.time()


def _read_cached(path: Path) -> CachedScores | None:
    """The scores in a file; None if it is damaged or has expired."""
    if _is_expired(path):
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
    scores = CachedScores(keys=keys, counts=counts, values=values)
    if len(keys) != len(counts) or values.shape[1] != counts.sum() or _checksum(scores) != recorded:
        return None
    return scores
