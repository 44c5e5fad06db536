"""Tallies how far each weight of a released file lies from its initial value, in one pass."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from privctl.storage.header import TensorInfo
from privctl.storage.reader import SafetensorsFile
from verify.checkpoint_noise.values import VIEWS, Floats, numbers
from verify.weights.settings import UncheckableError
from verify.weights.start import Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of weights compared at a time.
_CHUNK = 1 << 21
#: A float32 update rounds by half of this fraction of the weight, and weight decay by as much again.
_GRAIN = 2.0**-23
#: Relative differences of initial weights drawn on another processor, and of moves from float32 moments.
_REDRAWN, _MOMENTS = 2.0**-17, 2.0**-15


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over the moves D of some weights, each known up to its ``room`` for rounding.

    ``squares`` is the sum of their squares as stored, ``low`` and ``high`` bound the sum of the true squares, and
    ``room`` sums the squares of the rooms. ``farthest`` is a lower bound on the largest move. ``between`` [m, m] counts
    moves by the first and the last of m intervals that may contain them, and ``still`` counts as if none had moved.
    """

    name: str
    elements: int = 0
    squares: float = 0.0
    room: float = 0.0
    low: float = 0.0
    high: float = 0.0
    farthest: float = 0.0
    between: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, 1), dtype=np.int64))
    still: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, 1), dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveScale:
    """How moves are measured: ``keep`` is P, ``edges`` are those of the intervals, ``far`` is the largest excursion.

    ``updates`` is the number of times a weight was rounded.
    """

    keep: float
    edges: Floats
    far: float
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Tallies of the trained tensors, the names of untrained ones that changed, and the number of unchanged ones."""

    moved: tuple[Tally, ...]
    touched: tuple[str, ...]
    still: int


def compare(start: Start, file: SafetensorsFile, trained: Sequence[str] | None, scale: MoveScale | None) -> Compared:
    """Compare every tensor of ``file`` with ``start``.

    ``trained`` holds globs of trained tensors: empty for all, None if no tensor was trained. Without a ``scale``, only
    untrained tensors are compared. Tensors of which the start is not known are left out. Raises UncheckableError if the
    names or shapes differ.
    """
    held = {info.name: info for info in file.tensors if info.name not in start.unknown}
    if held.keys() != start.tensors.keys():
        odd = sorted(held.keys() ^ start.tensors.keys())
        raise UncheckableError(
            f"the installed transformers makes other tensors of config.json than were released: {odd[0]}"
        )
    moved, touched, still = [], [], 0
    for name, info in sorted(held.items()):
        if start.tensors[name].shape != info.shape:
            raise UncheckableError(f"the tensor {name!r} has another shape than config.json gives it")
        if trained is not None and name in start.parameters and _fits(name, trained):
            if scale is not None:
                moved.append(_tally(start, file, info, scale))
        elif _changed(start, file, info):
            touched.append(name)
        else:
            still += 1
    return Compared(moved=tuple(moved), touched=tuple(touched), still=still)


def _fits(name: str, trained: Sequence[str]) -> bool:
    return not trained or any(fnmatch.fnmatchcase(name, glob) for glob in trained)


def _chunks(start: Start, file: SafetensorsFile, info: TensorInfo) -> Iterator[tuple[Floats, Floats]]:
    """Yields stretches of a tensor before and after training, as float64."""
    if info.dtype not in VIEWS:
        raise UncheckableError(f"the tensor {info.name!r} is {info.dtype}, which no training here moves")
    flat, size = start.tensors[info.name].reshape(-1), VIEWS[info.dtype].itemsize
    for first in range(0, len(flat), _CHUNK):
        old = flat[first : first + _CHUNK]
        raw = file.read(info, first * size, len(old) * size)
        yield old.astype(np.float64), numbers(np.frombuffer(raw, VIEWS[info.dtype]), info.dtype)


def _tally(start: Start, file: SafetensorsFile, info: TensorInfo, scale: MoveScale) -> Tally:
    found = Tally(name=info.name)
    for old, new in _chunks(start, file, info):
        move = scale.keep * old - new
        room = _GRAIN * scale.updates * (np.abs(old) + np.abs(new) + scale.far) + _MOMENTS * np.abs(move)
        if not start.exact:
            room += _REDRAWN * np.abs(old)
        size = np.abs(move)
        least = np.maximum(size - room, 0.0)
        found.elements += len(move)
        found.squares += float(np.dot(move, move))
        found.room += float(np.dot(room, room))
        found.low += float(np.dot(least, least))
        found.high += float(np.dot(size + room, size + room))
        found.farthest = max(found.farthest, float(least.max(initial=0.0)))
        found.between = found.between + _spans(scale.edges, move - room, move + room)
        found.still = found.still + _spans(scale.edges, -room, room)
    return found


def _spans(edges: Floats, lower: Floats, upper: Floats) -> NDArray[np.int64]:
    """Counts ranges [lower, upper] by the intervals in which they begin and end; shape [m, m]."""
    count = len(edges) + 1
    pairs = np.searchsorted(edges, lower) * count + np.searchsorted(edges, upper)
    return np.bincount(pairs, minlength=count * count).reshape(count, count)


def _changed(start: Start, file: SafetensorsFile, info: TensorInfo) -> bool:
    if info.dtype not in VIEWS:
        return bytes(file.read(info)) != start.tensors[info.name].tobytes()
    return any(
        bool((np.abs(new - old) > (0.0 if start.exact else _REDRAWN * np.abs(old))).any())
        for old, new in _chunks(start, file, info)
    )


def combined_tally(parts: Sequence[Tally]) -> Tally:
    """The tally of all weights together."""
    return Tally(
        name="",
        elements=sum(part.elements for part in parts),
        squares=sum(part.squares for part in parts),
        room=sum(part.room for part in parts),
        low=sum(part.low for part in parts),
        high=sum(part.high for part in parts),
        farthest=max((part.farthest for part in parts), default=0.0),
        between=np.asarray(sum(part.between for part in parts)),
        still=np.asarray(sum(part.still for part in parts)),
    )
