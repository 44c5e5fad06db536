"""How far each weight of a released file lies from where its training began, counted in one pass."""

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

#: Weights compared at a time.
_CHUNK = 1 << 21
#: A float32 update rounds by half of this share of the weight; a factor of weight decay by as much again.
_GRAIN = 2.0**-23
#: By how much first weights that were drawn on another processor may differ, and moves that float32 moments make.
_REDRAWN, _MOMENTS = 2.0**-17, 2.0**-15


@dataclass(slots=True, kw_only=True)
class Tally:
    """Moves D of some weights, each known within its ``room`` for rounding.

    ``squares`` is the sum of their squares as stored, which ``low`` and ``high`` bound, and ``room`` that of the
    rooms'. ``farthest`` is the least that the largest of them can be. ``between`` [m, m] counts them by the first and
    the last of m intervals that they may lie in, and ``still`` as if none had moved.
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
    """What a move is measured by: ``keep`` is P, ``edges`` are those of intervals, and ``far`` is as far as weights go.

    ``updates`` is how often a weight was rounded.
    """

    keep: float
    edges: Floats
    far: float
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """``moved`` has a tally of each tensor that was trained; ``touched`` names those that were not and changed."""

    moved: tuple[Tally, ...]
    touched: tuple[str, ...]
    still: int


def compare(start: Start, file: SafetensorsFile, trained: Sequence[str], scale: MoveScale | None) -> Compared:
    """Hold every tensor of ``file`` against ``start``; ``trained`` are globs of what was trained, all where empty.

    Without a ``scale`` only what was not trained is looked at. Raises UncheckableError where the tensors are other
    ones.
    """
    held = {info.name: info for info in file.tensors}
    if held.keys() != start.tensors.keys():
        odd = sorted(held.keys() ^ start.tensors.keys())
        raise UncheckableError(
            f"the installed transformers makes other tensors of config.json than were released: {odd[0]}"
        )
    moved, touched, still = [], [], 0
    for name, info in sorted(held.items()):
        if start.tensors[name].shape != info.shape:
            raise UncheckableError(f"the tensor {name!r} has another shape than config.json gives it")
        if name in start.parameters and (not trained or any(fnmatch.fnmatchcase(name, glob) for glob in trained)):
            if scale is not None:
                moved.append(_tally(start, file, info, scale))
        elif _changed(start, file, info):
            touched.append(name)
        else:
            still += 1
    return Compared(moved=tuple(moved), touched=tuple(touched), still=still)


def _chunks(start: Start, file: SafetensorsFile, info: TensorInfo) -> Iterator[tuple[Floats, Floats]]:
    """The same stretch of a tensor before and after, in float64."""
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
    """How many of [lower, upper] begin in each interval and end in each: [m, m]."""
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


def together(parts: Sequence[Tally]) -> Tally:
    """All weights as one."""
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
