"""Permutation tests: the same statistics of the same records with permuted membership labels.

If members and non-members are exchangeable (every assignment of the labels to the records is equally likely), the
statistic of the true labels is one draw among those of the permuted ones. So its rank among them is an exact p-value,
for any scores and any number of statistics combined into one (Westfall and Young 1993, single step). A score that was
fitted to labels must be refitted to each relabelling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.laws import mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of relabellings, the minimum, and the maximum number of labels drawn in total.
_COUNT, _LEAST, _MOST_LABELS = 999, 99, 5_000_000


def data_seed(digests: Iterable[bytes]) -> int:
    """A seed derived from the records in any order, so that nobody can try several."""
    whole = hashlib.blake2b(digest_size=8)
    for digest in sorted(digests):
        whole.update(len(digest).to_bytes(8, "big") + digest)
    return int.from_bytes(whole.digest(), "big")


def relabellings(member: NDArray[np.bool_], seed: int) -> NDArray[np.bool_]:
    """The true labels, then permuted ones, [1 + count, records]: 999 of them, fewer for over 5000 records."""
    random = np.random.default_rng(seed)
    count = max(_LEAST, min(_COUNT, _MOST_LABELS // len(member)))
    return np.concatenate([member[None], random.permuted(np.tile(member, (count, 1)), axis=1)])


def areas(scores: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The AUC of ``scores``, [records] or [rows, records], for each row of ``labels`` [rows, records].

    Ties count half. NaN for a row with only one kind of label.
    """
    members = labels.sum(axis=1)
    # One row of ranks serves all labels; fitted scores have a row each, of which one is ranked at a time.
    sums = (
        labels @ mean_ranks(scores)
        if scores.ndim == 1
        else np.array([row_labels @ mean_ranks(row) for row, row_labels in zip(scores, labels, strict=True)])
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums / members - (members + 1) / 2) / (labels.shape[1] - members))


def joint_p_value(statistics: Sequence[NDArray[np.float64]]) -> float:
    """The p-value of the largest of several statistics, each [1 + count] with that of the true labels first.

    Each is standardized over all labels, which keeps the test exact.
    """
    joined = np.max([_standardised(statistic) for statistic in statistics], axis=0)
    return float((joined >= joined[0] - 1e-9).mean())


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    # A constant score, such as the length of equally long records, is not informative.
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
