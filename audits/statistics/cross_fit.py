"""Cross-fitted linear scores: learned from the records they judge, but never from the record itself, by K folds.

Ridge regression on labels centred over the training records, so every fold's score is linear in the labels. Refitting
to a thousand relabellings is then one matrix product, which makes an exact test possible: errors of cross-fitted scores
are correlated, so intervals for independent records would be too narrow (at 100 records per side, the AUC without a
difference has a standard deviation of 0.056, where they assume 0.041).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDS = 10
#: More columns than this are summed with random signs into this many (a count sketch), unless there are fewer records.
DIRECTIONS = 2000


def folds(digests: Sequence[bytes], count: int = FOLDS) -> NDArray[np.int64]:
    """The fold of each record, by the order of their digests and independent of labels and seeds, [records]."""
    order = np.empty(len(digests), dtype=np.int64)
    order[sorted(range(len(digests)), key=digests.__getitem__)] = np.arange(len(digests))
    return order % min(count, len(digests))


def cross_fitted(
    features: Any, fold: NDArray[np.int64], labels: NDArray[np.bool_], ridge: float
) -> NDArray[np.float64]:
    """How member-like each record is according to the other folds, for each row of ``labels``, [rows, records].

    ``features`` [records, columns] may be sparse. ``ridge`` is the penalty on the squared coefficients per training
    record.
    """
    narrow = _narrowed(features, len(fold))
    gram = _dense(features @ features.T) if narrow is None else None
    scores = np.zeros(labels.shape)
    for number in range(int(fold.max()) + 1):
        judged, learned = fold == number, fold != number
        targets = labels[:, learned].astype(np.float64)
        targets -= targets.mean(axis=1, keepdims=True)
        weight = ridge * int(learned.sum())
        if gram is not None:
            inner = gram[np.ix_(learned, learned)] + weight * np.eye(int(learned.sum()))
            scores[:, judged] = targets @ np.linalg.solve(inner, gram[np.ix_(learned, judged)])
        else:
            assert narrow is not None
            inner = narrow[learned].T @ narrow[learned] + weight * np.eye(narrow.shape[1])
            scores[:, judged] = (targets @ narrow[learned]) @ np.linalg.solve(inner, narrow[judged].T)
    return scores


def _narrowed(features: Any, records: int) -> NDArray[np.float64] | None:
    """``features`` with at most ``DIRECTIONS`` columns; None if there are fewer records than columns anyway."""
    columns = features.shape[1]
    if columns > records and records <= DIRECTIONS:
        return None
    if columns > DIRECTIONS:
        random = np.random.default_rng(0)
        signs, place = random.choice([-1.0, 1.0], columns), random.integers(DIRECTIONS, size=columns)
        sketch = sparse.csr_array((signs, (np.arange(columns), place)), shape=(columns, DIRECTIONS))
        features = sparse.csr_array(features) @ sketch
    return _dense(features)


def _dense(values: Any) -> NDArray[np.float64]:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64)
