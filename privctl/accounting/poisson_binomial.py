"""The Poisson binomial distribution: how many of a secret's records a batch holds.

Its weights are computed as sums of positive terms, so the tails are as accurate as the bulk. They are log-concave
(Newton's inequalities, since the generating polynomial has only real zeros), which bounds the truncated mass.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from privctl.domain.checks import probability

Floats = NDArray[np.float64]

#: Mass of K that may be truncated, relative to the square of its mean if that is below one: for means, and for privacy
#: losses, where all steps together must lose less than delta.
TAIL, TAIL_OF_LOSSES = 1e-18, 1e-24
#: At least this many equal probabilities are treated as one binomial distribution.
_GROUP = 16


@dataclass(frozen=True, slots=True, eq=False)
class PoissonBinomial:
    """The distribution of the number K of successes, truncated where its upper tail is negligible.

    ``shifts``: consecutive integers, shape (n,). ``weights``: their probabilities, shape (n,), positive, sum 1.
    ``most``: the largest possible K. If it is above the last shift, P(K = last + j) <= last weight * ``tail_ratio``^j,
    since the weights are log-concave.
    """

    shifts: Floats
    weights: Floats
    most: int
    tail_ratio: float

    @property
    def tail_square(self) -> float:
        """An upper bound on E[K^2] over the truncated mass."""
        cut = self.most - self.shifts[-1]
        if cut <= 0:
            return 0.0
        # Each term is smaller by about mean / last: 400 are summed, and the others bounded by the largest of them.
        j = np.arange(1, min(cut, 400) + 1)
        total = np.sum((self.shifts[-1] + j) ** 2 * self.tail_ratio**j) + cut * self.most**2 * self.tail_ratio**401
        return float(total * self.weights[-1])

    @property
    def tail_mass(self) -> float:
        """An upper bound on the truncated mass."""
        return self.tail_square / float(self.shifts[-1] + 1) ** 2

    def log_tail_norm(self, growth: float) -> float:
        """Logarithm of an upper bound on sum_k P(K = k) exp(growth k^2) over the truncated k, for ``growth`` >= 0."""
        cut = self.most - self.shifts[-1]
        if cut <= 0:
            return -math.inf
        # The exponent is convex in k, so its maximum is at one of the ends.
        ends = np.array([1.0, cut])
        with np.errstate(divide="ignore", over="ignore"):
            exponent = ends * np.log(self.tail_ratio) + growth * (self.shifts[-1] + ends) ** 2
        return float(math.log(self.weights[-1]) + math.log(cut) + exponent.max())


def poisson_binomial(probabilities: Sequence[float] | Floats, tail: float = TAIL) -> PoissonBinomial:
    """The distribution of the number of successes in independent trials with these probabilities, up to a ``tail``.

    Every weight has a small relative error. Raises ValueError for no probabilities, or one outside [0, 1].
    """
    every = np.asarray(probabilities, dtype=np.float64)
    if not len(every):
        raise ValueError("probabilities is empty; a secret lies in at least one record")
    # min and max are NaN if one of the values is.
    for value in (every.min(), every.max()):
        probability("probabilities", float(value))
    values, counts = np.unique(every, return_counts=True)
    sure = int(counts[values == 1].sum())
    open_ = (values > 0) & (values < 1)
    values, counts = values[open_], counts[open_]
    if not len(values):
        return PoissonBinomial(shifts=np.array([float(sure)]), weights=np.ones(1), most=sure, tail_ratio=0.0)
    last = _last_kept(float(counts @ values), int(counts.sum()), tail)
    grouped = counts >= _GROUP
    factors = [_binomial(int(n), float(p), last) for n, p in zip(counts[grouped], values[grouped], strict=True)]
    if not grouped.all():
        factors.append(_product(np.repeat(values[~grouped], counts[~grouped]), last))
    weights = reduce(lambda a, b: np.convolve(a, b)[: last + 1], sorted(factors, key=len))
    kept = np.flatnonzero(weights)
    weights = weights[kept[0] : kept[-1] + 1]
    ratio = float(min(weights[-1] / weights[-2], 1.0)) if len(weights) > 1 else 1.0
    return PoissonBinomial(
        shifts=np.arange(kept[0], kept[-1] + 1, dtype=np.float64) + sure,
        weights=weights / weights.sum(),
        most=int(counts.sum()) + sure,
        tail_ratio=ratio,
    )


def _last_kept(mean: float, trials: int, tail: float) -> int:
    """The first k whose Chernoff bound P(K >= k) <= exp(k - mean) (mean / k)^k is negligible, else ``trials``."""
    target = math.log(tail) + 2 * min(0.0, math.log(mean))
    candidates = range(math.floor(mean) + 1, trials)
    first = bisect_left(candidates, True, key=lambda k: k - mean - k * math.log(k / mean) <= target)
    return candidates[first] if first < len(candidates) else trials


def _binomial(trials: int, p: float, last: int) -> Floats:
    """Binomial probabilities of 0..min(trials, last), by the ratio recurrence from the mode, without logarithms."""
    last = min(trials, last)
    mode = min(int((trials + 1) * p), last)
    up, down = np.arange(mode, last, dtype=np.float64), np.arange(mode, 0, -1, dtype=np.float64)
    odds = p / (1 - p)
    above = np.cumprod((trials - up) / (up + 1) * odds)
    below = np.cumprod(down / ((trials - down + 1) * odds))[::-1]
    weights = np.concatenate([below, [1.0], above])
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _product(values: Floats, last: int) -> Floats:
    """Coefficients 0..last of prod_i (1 - p_i + p_i z), by a binary tree of products."""
    rows = np.stack([1 - values, values], axis=1)
    while len(rows) > 1:
        if len(rows) % 2:
            rows = np.concatenate([rows, np.eye(1, rows.shape[1])])
        left, right = rows[0::2], rows[1::2]
        degree = rows.shape[1]
        width = min(2 * degree - 1, last + 1)
        rows = np.zeros((len(left), width))
        for i in range(min(degree, width)):
            stop = min(width, i + degree)
            rows[:, i:stop] += left[:, i : i + 1] * right[:, : stop - i]
    return np.asarray(rows[0, : last + 1], dtype=np.float64)
