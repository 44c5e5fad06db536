"""Whether any of several scores beats chance: one permutation test over all of them (Westfall and Young 1993, max-T).

Labels are exchangeable if the model did not see which side a record is on and both sides were drawn alike. Each
relabelling is applied to all scores at once, so the test accounts for their correlation, whereas Bonferroni's
correction pays for each score in full. The test is exact for every number of records, with or without ties, as long as
the statistics are computed in the same way from relabelled records as from the true labels: a score that was fitted to
labels must be refitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaln, gammaln, ndtri

from audits.statistics.laws import mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Maps labels [rows, records] to statistics [rows, any number], each about standard normal if labels are exchangeable.
Statistics = Callable[["NDArray[np.bool_]"], "NDArray[np.float64]"]

#: The number of relabellings, and the maximum number of labels drawn in total and at a time.
RELABELLINGS, _MOST_LABELS, _CHUNK = 999, 50_000_000, 2_000_000
#: The range to which statistics are clipped; only the largest matters.
_LEAST, _MOST = -8.0, 40.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxT:
    """``p_values`` by score, adjusted for all scores, and the number of ``relabellings`` they come from.

    A score whose largest statistic exceeds ``critical`` has a p-value of at most the test's level; infinite if there
    are too few relabellings for that.
    """

    p_values: Mapping[str, float]
    relabellings: int
    critical: float


def max_t(
    scores: Mapping[str, Statistics], member: NDArray[np.bool_], seed: int, level: float, count: int = RELABELLINGS
) -> MaxT:
    """The single-step test over ``scores``, with the true labels ``member`` [records].

    If labels are exchangeable, the probability that any adjusted p-value is at most ``level`` is at most ``level``.
    ``seed`` should be derived from the records (``relabel.data_seed``), so that nobody can try several. ``count``
    relabellings are drawn, fewer for very many records, but enough for a p-value of ``level``.
    """
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in scores}
    for labels in _relabellings(member, seed, level, count):
        for name, statistics in scores.items():
            parts[name].append(statistics(labels).max(axis=1, initial=_LEAST))
    largest = {name: np.concatenate(parts_of_name) for name, parts_of_name in parts.items()}
    whole = np.max(list(largest.values()), axis=0)
    p_values = {name: float((whole >= found[0] - _ROUNDING).mean()) for name, found in largest.items()}
    allowed = math.floor(level * len(whole) + _ROUNDING)
    critical = float(np.sort(whole[1:])[-allowed]) if allowed else math.inf
    return MaxT(p_values=p_values, relabellings=len(whole) - 1, critical=critical)


def rank_statistics(scores: NDArray[Any], rates: Sequence[float]) -> Statistics:
    """The AUC of ``scores`` [records], and the TPR at each of the false positive rates that the records resolve.

    The AUC is in units of its exact standard deviation over relabellings. The TPR is put on the same scale by its exact
    distribution for scores without ties: the number of m members that exceed the (k+1)-th largest of n non-members is
    beta-binomial with parameters m, k + 1 and n - k.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    new = np.append(True, ordered[1:] != ordered[:-1])
    first = np.maximum.accumulate(np.where(new, np.arange(len(scores)), 0))
    return partial(_rank_statistics, mean_ranks(scores), order, first, tuple(rates))


def _rank_statistics(
    ranks: NDArray[np.float64],
    order: NDArray[np.int64],
    first: NDArray[np.int64],
    rates: Sequence[float],
    labels: NDArray[np.bool_],
) -> NDArray[np.float64]:
    records, members = labels.shape[1], int(labels[0].sum())
    others = records - members
    spread = math.sqrt(members * others * float(ranks.var(ddof=1)) / records) if records > 1 else 0.0
    sums = labels @ ranks - members * (records + 1) / 2
    columns = [sums / spread if spread > 0 else np.zeros(len(labels))]
    above = np.cumsum(~labels[:, order], axis=1, dtype=np.int32)
    for rate in rates:
        allowed = int(rate * others + _ROUNDING)
        if allowed < 1:
            continue
        # The index of the first score tied with the threshold: the members before it exceed the threshold.
        start = first[(above > allowed).argmax(axis=1)]
        errors = np.where(start > 0, above[np.arange(len(labels)), start - 1], 0)
        columns.append(_normal_of_hits(members, others, allowed)[start - errors])
    return np.stack(columns, axis=1)


@lru_cache(maxsize=64)
def _normal_of_hits(members: int, others: int, allowed: int) -> NDArray[np.float64]:
    """The normal quantile with the same tail probability as each number of hits, 0 to ``members``."""
    hits = np.arange(members + 1)
    choose = gammaln(members + 1) - gammaln(hits + 1) - gammaln(members - hits + 1)
    log = choose + betaln(hits + allowed + 1, members - hits + others - allowed) - betaln(allowed + 1, others - allowed)
    tail = np.cumsum(np.exp(log)[::-1])[::-1]
    return np.asarray(np.clip(-ndtri(np.minimum(tail, 1.0)), _LEAST, _MOST), dtype=np.float64)


def _relabellings(member: NDArray[np.bool_], seed: int, level: float, count: int) -> Iterator[NDArray[np.bool_]]:
    """The true labels, then permuted ones, in batches [rows, records]."""
    random = np.random.default_rng(seed)
    left = max(math.ceil(1 / level), min(count, _MOST_LABELS // len(member)))
    yield member[None]
    while left:
        rows = min(left, max(1, _CHUNK // len(member)))
        yield random.permuted(np.tile(member, (rows, 1)), axis=1)
        left -= rows
