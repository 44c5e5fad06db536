"""Features of groups of records that need no model: the means over a group's records, and features of its size.

The n-grams of only a few thousand records are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from audits.membership.features import RecordFeatures

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of records whose n-grams are in memory at a time.
_BLOCK = 4096


class GroupFeatures:
    """The features of the groups ``index`` [records] of ``records``, by rows."""

    def __init__(self, records: RecordFeatures, index: NDArray[np.int64]) -> None:
        self._records = records
        self._sizes = np.bincount(index)
        self._ends = np.cumsum(self._sizes)
        self._order = np.argsort(index, kind="stable")
        self._of_size = _of_size(self._sizes)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of groups, and of features."""
        return len(self._sizes), self._records.shape[1] + self._of_size.shape[1]

    def __getitem__(self, groups: NDArray[np.int64]) -> sparse.csr_array:
        means = sparse.vstack(list(self._means(groups, None)), format="csr")
        return sparse.csr_array(sparse.hstack([means, sparse.csr_array(self._of_size[groups])]))

    def times(self, groups: NDArray[np.int64], matrix: sparse.csr_array) -> NDArray[np.float64]:
        """The rows of ``groups`` times ``matrix`` [features, columns], without all of the rows in memory."""
        own = self._of_size.shape[1]
        means = np.concatenate(list(self._means(groups, matrix[:-own])))
        return np.asarray(means + self._of_size[groups] @ matrix[-own:])

    def _means(self, groups: NDArray[np.int64], matrix: sparse.csr_array | None) -> Iterator[Any]:
        """The means over the records of ``groups``, times ``matrix`` if that is given, for some groups at a time."""
        for some in self._joined(groups):
            sizes = self._sizes[some]
            places = np.concatenate([self._order[self._ends[g] - self._sizes[g] : self._ends[g]] for g in some])
            rows = np.repeat(np.arange(len(some)), sizes)
            yield reduce(
                add,
                (
                    self._block(rows[at : at + _BLOCK], places[at : at + _BLOCK], sizes, matrix)
                    for at in range(0, len(places), _BLOCK)
                ),
            )

    def _block(
        self, rows: NDArray[np.int64], places: NDArray[np.int64], sizes: NDArray[np.int64], matrix: Any
    ) -> sparse.csr_array | NDArray[np.float64]:
        """What the records at ``places``, of the groups ``rows`` with ``sizes``, add to the means."""
        share = sparse.csr_array((1 / sizes[rows], (rows, np.arange(len(rows)))), shape=(len(sizes), len(rows)))
        features = self._records[places]
        if matrix is None:
            return sparse.csr_array(share @ features)
        return np.asarray(share @ (features @ matrix).toarray())

    def _joined(self, groups: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """``groups`` in parts of at most ``_BLOCK`` records, or of one group."""
        if not len(groups):
            return
        before = np.cumsum(self._sizes[groups]) - self._sizes[groups]
        start = 0
        while start < len(groups):
            end = max(start + 1, int(np.searchsorted(before + self._sizes[groups], before[start] + _BLOCK, "right")))
            yield groups[start:end]
            start = end


def _of_size(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Features of the ``sizes`` of groups for the baselines, [groups, 2]: the log size, and its squared deviation.

    Scores of large groups are more extreme, so files whose groups differ only in the spread of sizes differ in scores.
    The square has a larger weight than other features, as it is one column among many n-grams.
    """
    size = _unit(np.log(sizes))
    return np.stack([size / 4, _unit(size**2)], axis=1)


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((values - values.mean()) / (values.std() or 1.0))
