"""Tests by relabelling: what the same statistics say of the same records once membership is shuffled.

If members and non-members are exchangeable (every assignment of the labels to the records is equally likely), the
statistic of the true labels is one draw among those of the shuffled ones. So its rank among them is an exact p-value,
whatever the scores are and however many statistics are joined into one (Westfall and Young 1993, single step). A score
that was fitted to labels has to be fitted again to each relabelling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.laws import mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Relabellings, and how many labels are drawn at most in all.
_COUNT, _LEAST, _MOST_LABELS = 999, 99, 5_000_000


def data_seed(digests: Iterable[bytes]) -> int:
    """A seed that the records themselves determine, in any order, so that nobody can try one after another."""
    whole = hashlib.blake2b(digest_size=8)
    for digest in sorted(digests):
        whole.update(len(digest).to_bytes(8, "big") + digest)
    return int.from_bytes(whole.digest(), "big")


def relabellings(member: NDArray[np.bool_], seed: int) -> NDArray[np.bool_]:
    """The true labels, then shuffled ones: [1 + count, records]. 999 of them, fewer for over 5000 records."""
    random = np.random.default_rng(seed)
    count = max(_LEAST, min(_COUNT, _MOST_LABELS // len(member)))
    return np.concatenate([member[None], random.permuted(np.tile(member, (count, 1)), axis=1)])


def areas(scores: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The AUC under each row of ``labels`` [rows, records], of ``scores`` [records] or [rows, records].

    Ties count half. NaN where a row has one kind of label only.
    """
    members = labels.sum(axis=1)
    ranks = mean_ranks(scores)
    # One row of ranks serves all labels; fitted scores have a row each.
    sums = labels @ ranks if ranks.ndim == 1 else np.einsum("ij,ij->i", ranks, labels.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums / members - (members + 1) / 2) / (labels.shape[1] - members))


def joint_p_value(statistics: Sequence[NDArray[np.float64]]) -> float:
    """The p-value of the largest of several statistics, each [1 + count] with that of the true labels first.

    Each is put in units of its own standard deviation over all labels, which leaves the test exact.
    """
    joined = np.max([_standardised(each) for each in statistics], axis=0)
    return float((joined >= joined[0] - 1e-9).mean())


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    # A score that is the same for all records, such as the length of equally long ones, says nothing.
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
