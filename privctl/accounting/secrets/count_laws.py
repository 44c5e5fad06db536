"""The number of a secret's records in a batch: ``poisson_binomial`` for many secrets at once, by blocks.

Secrets with distributions of similar length and similar numbers of records share a block. Their generating polynomials
are multiplied in one tree of products, truncated at a degree beyond which the mass is negligible by Chernoff's bound.
All terms are positive, so every weight has a small relative error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privctl.accounting.poisson_binomial import TAIL, Floats, PoissonBinomial, poisson_binomial
from privctl.domain.checks import probability

Integers = NDArray[np.int64]

#: Memberships processed at a time, which bounds the memory.
_SLAB_SIZE = 1 << 21
#: The most probabilities in one tree of products, so that it fits a CPU cache, and the most secrets in it.
_TREE = 1 << 17
_SECRETS = 4096
#: Records times length of the distribution beyond which a secret is computed by itself.
_LONG = 100_000_000
#: Levels per octave to which the probabilities of such a secret may be rounded, and the fewest records that share one.
_LEVELS = 1024
_SHARED = 16
#: The smallest number of records of a secret in a block, relative to the largest, so that there is little padding.
_LEAST_SHARE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LawBlock:
    """Distributions for some secrets: ``weights[k, i]`` is the probability of k records of secret ``places[i]``.

    ``weights`` [length, secrets] float64 sum to 1 over k. ``means`` [secrets] are sums of probabilities; ``most``
    [secrets] int64 is the largest possible k. If it is above length - 1, P(k = length - 1 + j) <= last weight *
    ``tail_ratios``^j.
    """

    places: Integers
    weights: Floats
    means: Floats
    most: Integers
    tail_ratios: Floats

    @property
    def tail_squares(self) -> Floats:
        """Upper bounds on E[k^2] over the truncated mass; shape [secrets]."""
        last, ratio = len(self.weights) - 1, self.tail_ratios
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = ratio / (1 - ratio)
            # sum_j (last + j)^2 ratio^j over all j >= 1.
            total = odds * (last * last + 2 * last / (1 - ratio) + (1 + ratio) / (1 - ratio) ** 2)
            bounds = self.weights[-1] * total
        return np.where((self.most > last) & (self.weights[-1] > 0), bounds, 0.0)

    def law(self, column: int) -> PoissonBinomial:
        """The distribution in one column."""
        weights = self.weights[:, column]
        kept = np.flatnonzero(weights)
        first, last = int(kept[0]), int(kept[-1])
        # Mass after a weight that underflowed does not matter.
        truncated = last == len(weights) - 1
        return PoissonBinomial(
            shifts=np.arange(first, last + 1, dtype=np.float64),
            weights=weights[first : last + 1],
            most=int(self.most[column]) if truncated else last,
            tail_ratio=float(self.tail_ratios[column]),
        )


def law_blocks(
    starts: Integers,
    records: Integers,
    probabilities: Floats,
    chosen: Integers | None = None,
    *,
    long: Callable[[Floats], Floats] | None = None,
) -> Iterator[LawBlock]:
    """The distributions of all secrets, or of those ``chosen`` (ascending), in blocks; none for secrets never drawn.

    Secret j is in ``records[starts[j]:starts[j + 1]]``, and record i is drawn with probability ``probabilities[i]``.
    For a secret in very many records, ``long`` may replace its probabilities by fewer distinct ones: ``average_levels``
    is on the safe side for KL(mixture || N), ``round_up_to_levels`` for every test.
    """
    indices = np.arange(len(starts) - 1) if chosen is None else chosen
    for slab in _slabs(indices, starts):
        lows, highs = starts[slab], starts[slab + 1]
        if slab[-1] - slab[0] == len(slab) - 1:
            inside, ends = probabilities[records[lows[0] : highs[-1]]], highs - lows[0]
        else:
            inside = probabilities[np.concatenate([records[a:b] for a, b in zip(lows, highs, strict=True)])]
            ends = np.cumsum(highs - lows)
        drawn = inside > 0
        ends = np.concatenate([[0], np.cumsum(drawn)])[np.concatenate([[0], ends])]
        yield from _slab_blocks(slab, np.diff(ends), inside[drawn], long)


def means_of(starts: Integers, records: Integers, probabilities: Floats) -> Floats:
    """The sum of the probabilities of each secret's records; shape [secrets]."""
    means = np.zeros(len(starts) - 1)
    for slab in _slabs(np.arange(len(means)), starts):
        sizes = starts[slab + 1] - starts[slab]
        inside = probabilities[records[starts[slab[0]] : starts[slab[-1] + 1]]]
        means[slab] = np.bincount(np.repeat(np.arange(len(slab)), sizes), inside, minlength=len(slab))
    return means


def _slabs(indices: Integers, starts: Integers) -> Iterator[Integers]:
    """``indices`` in consecutive parts with a limited number of memberships, but at least one secret."""
    if not len(indices):
        return
    ends = np.cumsum(starts[indices + 1] - starts[indices])
    begin = 0
    while begin < len(indices):
        done = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _SLAB_SIZE, "right")))
        yield indices[begin:end]
        begin = end


def _slab_blocks(
    indices: Integers, sizes: Integers, values: Floats, long: Callable[[Floats], Floats] | None
) -> Iterator[LawBlock]:
    """Blocks of the secrets ``indices``, whose positive probabilities, ``sizes`` each, are concatenated: ``values``."""
    begins = np.cumsum(sizes) - sizes
    nonempty = sizes > 0
    indices, sizes, begins = indices[nonempty], sizes[nonempty], begins[nonempty]
    if not len(indices):
        return
    means = np.add.reduceat(values, begins)
    lasts = _truncation_points(means, sizes)
    alone = sizes * lasts > _LONG
    for i in np.flatnonzero(alone):
        yield _single(int(indices[i]), values[begins[i] : begins[i] + sizes[i]], long)
    order = np.flatnonzero(~alone)
    order = order[np.lexsort((-sizes[order], lasts[order]))]
    begin = 0
    while begin < len(order):
        first = order[begin]
        most = max(1, min(_SECRETS, _TREE // int(sizes[first])))
        window = order[begin : begin + most]
        similar = (lasts[window] == lasts[first]) & (sizes[window] >= _LEAST_SHARE * sizes[first])
        window = window[: len(window) if similar.all() else int(similar.argmin())]
        yield _block(indices[window], sizes[window], means[window], begins[window], values, int(lasts[first]))
        begin += len(window)


def _block(indices: Integers, sizes: Integers, means: Floats, begins: Integers, values: Floats, last: int) -> LawBlock:
    rows = np.arange(sizes[0])[:, None]
    inside = rows < sizes
    weights = _products(np.where(inside, values[np.where(inside, begins + rows, 0)], 0.0), last)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.minimum(weights[-1] / weights[-2], 1.0)
    return LawBlock(
        places=indices,
        weights=weights / weights.sum(axis=0),
        means=means,
        most=sizes,
        tail_ratios=np.where(weights[-1] > 0, ratios, 0.0),
    )


def _products(values: Floats, last: int) -> Floats:
    """Coefficients 0..last of prod_i (1 - p_i + p_i z) for each column of ``values`` [records, secrets].

    A binary tree of products, with the coefficients along the first axis; shape [last + 1, secrets].
    """
    rows = np.stack([1 - values, values])
    while (count := rows.shape[1]) > 1:
        left, right = rows[:, 0 : count - 1 : 2], rows[:, 1::2]
        degree = len(rows)
        width = min(2 * degree - 1, last + 1)
        products = np.zeros((width, (count + 1) // 2, rows.shape[2]))
        paired = products[:, : count // 2]
        for i in range(min(degree, width)):
            stop = min(width, i + degree)
            paired[i:stop] += left[i] * right[: stop - i]
        if count % 2:
            products[:degree, -1] = rows[:width, -1]
        rows = products
    coefficients = np.zeros((last + 1, rows.shape[2]))
    coefficients[: len(rows)] = rows[: last + 1, 0]
    return coefficients


def _single(index: int, values: Floats, long: Callable[[Floats], Floats] | None) -> LawBlock:
    """The block of one secret in very many records."""
    law = poisson_binomial(values if long is None else long(values))
    return LawBlock(
        places=np.array([index]),
        weights=np.concatenate([np.zeros(int(law.shifts[0])), law.weights])[:, None],
        means=np.array([values.sum()]),
        most=np.array([law.most]),
        tail_ratios=np.array([law.tail_ratio]),
    )


def average_levels(values: Floats) -> Floats:
    """``values`` with those that are within a factor of 2^(1/1024) of each other replaced by their average.

    That never lowers KL(mixture || N). For fixed p_a + p_b the distribution depends on p_a p_b only, and the derivative
    is the mean, over the number of other records drawn, of h(k + 2) - 2 h(k + 1) + h(k) with
    h(k) = E_(N(k, sigma^2))[log r]. Since log r is convex, so is h, and averaging increases p_a p_b. The increase,
    relative to the square of the mean, is less than 1e-7 of the sum of their squares.
    """
    levels = np.unique(np.floor(np.log2(values) * _LEVELS), return_inverse=True)[1]
    counts = np.bincount(levels)
    least = np.full(len(counts), np.inf)
    np.minimum.at(least, levels, values)
    # Sum small differences, as summing a million probabilities directly would lose five digits.
    averages = np.minimum(least + np.bincount(levels, values - least[levels]) / counts, 1.0)
    return np.where(counts[levels] >= _SHARED, averages[levels], values)


def round_up_to_levels(values: Floats) -> Floats:
    """``values`` rounded up to one of 1024 levels per octave: by less than 0.07 %, and never above 1.

    Records that are drawn more often are easier to detect: see ``trade_off`` for the proof.
    """
    levels: Floats = np.exp2(np.ceil(np.log2(values) * _LEVELS) / _LEVELS)
    return np.clip(levels, values, 1.0)


def _truncation_points(means: Floats, sizes: Integers) -> Integers:
    """Where to truncate: the first k on a coarse scale with P(K >= k) negligible, at most ``sizes``.

    By Chernoff's bound, P(K >= k) <= exp(k - mean) (mean / k)^k, as in ``poisson_binomial``.
    """
    targets = math.log(TAIL) + 2 * np.minimum(0.0, np.log(means))
    lasts, k = np.zeros(len(means), dtype=np.int64), 0
    remaining = np.arange(len(means))
    while len(remaining):
        k = max(k + 1, math.floor(1.12 * k))
        mean = means[remaining]
        done = (k > mean) & (k - mean - k * np.log(k / mean) <= targets[remaining])
        done |= k >= sizes[remaining]
        lasts[remaining[done]] = np.minimum(k, sizes[remaining[done]])
        remaining = remaining[~done]
    return lasts


def check_memberships(starts: Integers, records: Integers, probabilities: Floats) -> None:
    """Raise ValueError unless the arguments are memberships and probabilities as ``law_blocks`` takes them."""
    fits = len(starts) and starts[0] == 0 and starts[-1] == len(records) and bool((np.diff(starts) >= 0).all())
    if not fits:
        raise ValueError("starts must rise from 0 to the number of records listed")
    if len(records) and not (records.min() >= 0 and records.max() < len(probabilities)):
        raise ValueError(f"records must be positions of the {len(probabilities)} probabilities, from 0 on")
    wrong = ~((probabilities >= 0) & (probabilities <= 1))
    if wrong.any():
        worst_index = int(wrong.argmax())
        probability(f"probability {worst_index}", float(probabilities[worst_index]))
