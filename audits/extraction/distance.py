"""Edit distances between what a model writes and the expected text, for many texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of pairs of strings compared at once.
_AT_ONCE = 256


class EditDistance:
    """Levenshtein distances (1966) between texts that grow by one symbol at a time and targets [texts, length].

    Insertions, deletions and substitutions cost 1 each (Wagner and Fischer 1974, one row of the table per symbol). Also
    tracks the longest common run of symbols, at any position.
    """

    def __init__(self, targets: NDArray[Any]) -> None:
        self._targets = targets
        self._steps = np.arange(targets.shape[1] + 1, dtype=np.int32)
        #: The distance of each text so far to every prefix of its target, [texts, length + 1].
        self.row = np.broadcast_to(self._steps, (len(targets), len(self._steps))).copy()
        self._runs = np.zeros_like(self.row)
        #: The longest common run of each text so far.
        self.run = np.zeros(len(targets), dtype=np.int32)

    @property
    def distance(self) -> NDArray[np.int32]:
        """The distance [texts] of each text so far to its complete target."""
        return self.row[:, -1]

    @property
    def least(self) -> NDArray[np.int32]:
        """The smallest distance [texts] that any continuation can reach: costs only increase along a path."""
        return np.asarray(self.row.min(axis=1), dtype=np.int32)

    def add(self, symbols: NDArray[Any]) -> None:
        """Append one symbol to each text, [texts]."""
        equal = self._targets == symbols[:, None]
        row = np.empty_like(self.row)
        row[:, 0] = self.row[:, 0] + 1
        row[:, 1:] = np.minimum(self.row[:, 1:] + 1, self.row[:, :-1] + ~equal)
        # an insertion costs 1 per step to the right: a running minimum after subtracting this slope
        self.row = np.minimum.accumulate(row - self._steps, axis=1) + self._steps
        self._runs[:, 1:] = np.where(equal, self._runs[:, :-1] + 1, 0)
        self.run = np.maximum(self.run, self._runs.max(axis=1))

    def keep(self, indices: NDArray[np.int64]) -> None:
        """Continue with only the texts at ``indices``."""
        self._targets, self.row, self._runs = self._targets[indices], self.row[indices], self._runs[indices]
        self.run = self.run[indices]


def string_distances(written: Sequence[str], expected: Sequence[str]) -> NDArray[np.float64]:
    """The edit distance of each pair of strings in characters, divided by the longer length; 0 for two empty strings.

    "kitten" and "sitting" are 3 apart, which gives .428571.
    """
    return np.concatenate(
        [
            np.zeros(0),
            *(
                _some_distances(written[i : i + _AT_ONCE], expected[i : i + _AT_ONCE])
                for i in range(0, len(written), _AT_ONCE)
            ),
        ]
    )


def _some_distances(written: Sequence[str], expected: Sequence[str]) -> NDArray[np.float64]:
    ours, theirs = _characters(written, -1), _characters(expected, -2)
    table = EditDistance(theirs)
    lengths, goals = (np.array([len(text) for text in texts]) for texts in (written, expected))
    distances = np.where(lengths == 0, goals, 0)
    every = np.arange(len(written))
    for i in range(ours.shape[1]):
        table.add(ours[:, i])
        distances = np.where(lengths == i + 1, table.row[every, goals], distances)
    return np.asarray(distances / np.maximum(1, np.maximum(lengths, goals)), dtype=np.float64)


def _characters(texts: Sequence[str], filler: int) -> NDArray[np.int32]:
    """Code points [texts, longest], padded with ``filler``, which equals no character."""
    points = np.full((len(texts), max(map(len, texts), default=0)), filler, dtype=np.int32)
    for i, text in enumerate(texts):
        points[i, : len(text)] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return points
