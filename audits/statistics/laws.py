"""Ranks and discrete distributions without ``scipy.stats``, whose import takes longer than most audits of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mean_ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks from 1 on along the last axis, of the shape of ``values``; ties share their mean rank.

    ``mean_ranks([10, 30, 30])`` is [1, 2.5, 2.5]. If any value is NaN, all ranks along its axis are.
    """
    given = np.asarray(values)
    if not given.size:
        return np.zeros(given.shape)
    order = np.argsort(given, axis=-1)
    ordered = np.take_along_axis(given, order, axis=-1)
    ends = np.ones((*given.shape[:-1], given.shape[-1] + 1), dtype=np.bool_)
    np.not_equal(ordered[..., 1:], ordered[..., :-1], out=ends[..., 1:-1])
    indices = np.arange(given.shape[-1])
    first = np.maximum.accumulate(np.where(ends[..., :-1], indices, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends[..., 1:], indices, indices[-1])[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(given.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=-1)
    ranks[np.isnan(given).any(axis=-1)] = np.nan
    return ranks


def hypergeometric(total: int, marked: int, drawn: int) -> tuple[int, NDArray[np.float64]]:
    """The distribution of the number of ``marked`` among ``total`` that are ``drawn`` without replacement.

    Returns the smallest possible number, and the probabilities of it and each larger number up to the largest.
    ``hypergeometric(4, 2, 2)`` is 0 and [1/6, 4/6, 1/6].
    """
    low, high = max(0, drawn + marked - total), min(drawn, marked)
    k = np.arange(low, high, dtype=np.float64)
    ratios = (marked - k) * (drawn - k) / ((k + 1) * (total - marked - drawn + k + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights = np.exp(logs - logs.max())
    return low, weights / weights.sum()


def binomial_quantile(share: float, trials: int, rate: float) -> int:
    """The smallest k such that ``trials`` with success ``rate`` have at most k successes with probability ``share``."""
    low, high = 0, trials
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if betaincc(middle + 1, trials - middle, rate) >= share else (middle + 1, high)
    return low
