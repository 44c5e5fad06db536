"""The linear program of the weights, and certificates that hold in exact arithmetic.

maximize sum_i w_i over 0 <= w <= 1 with sum_{i in S_j} w_i <= b_j for every secret j (Hush, program 1). Any y >= 0
bounds the optimum by b'y + sum_i max(0, 1 - sum_{j: i in S_j} y_j).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Weights and multipliers are whole multiples of 1 / this in a certificate: sums of them are exact in 64 bits.
_UNIT = 1 << 36
_FILLS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """A program without the variables that are settled: records in no secret that can bind have weight 1.

    ``open`` [variables] are the other records; ``matrix`` [constraints, variables] has a 1 where a record is in a
    secret, ``transposed`` is its transpose, both by rows; ``limits`` [constraints] are positive.
    """

    records: int
    open: NDArray[np.int64]
    matrix: sparse.csr_array
    transposed: sparse.csr_array
    limits: Floats

    @property
    def settled(self) -> int:
        """How many records have weight 1 in any case."""
        return self.records - len(self.open)

    def expand(self, weights: Floats) -> Floats:
        """``weights`` [variables] of the open records as weights [records] of all."""
        everything = np.ones(self.records)
        everything[self.open] = weights
        return everything

    def repair(self, weights: Floats) -> Floats:
        """``weights`` scaled down to meet all constraints (up to rounding), each by its most violated secret.

        The remaining slack is then distributed evenly, in a few rounds.
        """
        weights = np.clip(weights, 0, 1)
        load = self.matrix @ weights
        weights = weights * self._least(np.minimum(1, self.limits / np.maximum(load, 1e-300)))
        for _ in range(_FILLS):
            room = weights < 1
            slack = np.maximum(self.limits - self.matrix @ weights, 0)
            share = slack / np.maximum(self.matrix @ room.astype(np.float64), 1)
            weights = np.minimum(1, weights + self._least(share) * room)
        return weights

    def _least(self, values: Floats) -> Floats:
        """Of each variable, the least of ``values`` [constraints] over its constraints; every variable has one."""
        return np.asarray(np.minimum.reduceat(values[self.transposed.indices], self.transposed.indptr[:-1]))

    def upper_bound(self, multipliers: Floats) -> float:
        """The bound on the open records' weight that ``multipliers`` [constraints] >= 0 give; rounded as floats are."""
        reduced = 1 - self.transposed @ multipliers
        return float(self.limits @ multipliers + np.maximum(0, reduced).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified:
    """``weights`` [records] that meet every constraint exactly, their sum, and a bound that no others exceed."""

    weights: Floats
    total: float
    bound: float

    @property
    def gap(self) -> float:
        """The most by which the total falls short of the best, relative to the bound."""
        return max(0.0, self.bound - self.total) / self.bound if self.bound else 0.0


def packing(starts: NDArray[np.int64], records: NDArray[np.int64], examples: int, limits: Floats) -> Packing:
    """The program for secrets ``records[starts[j]:starts[j + 1]]`` among so many ``examples``; limits are above 0.

    Constraints that cannot bind, since a secret has no more records than its limit, are left out.
    """
    sizes = np.diff(starts)
    binding = sizes > limits
    keep = np.repeat(binding, sizes)
    columns, places = np.unique(records[keep], return_inverse=True)
    pointers = np.concatenate([[0], np.cumsum(sizes[binding])])
    matrix = sparse.csr_array(
        (np.ones(len(places)), places.astype(np.int32), pointers.astype(np.int32)), (int(binding.sum()), len(columns))
    )
    return Packing(
        records=examples,
        open=columns,
        matrix=matrix,
        transposed=sparse.csr_array(matrix.T.tocsr()),
        limits=limits[binding],
    )


def certify(problem: Packing, weights: Floats, multipliers: Floats) -> Certified:
    """``weights`` [variables] repaired and checked, and the bound from ``multipliers`` [constraints], in integers.

    Both may be any vectors: bad ones only widen the gap. The weights are rounded down to multiples of 2^-36, and
    brought within the constraints as sums of whole numbers; the bound is summed in whole numbers, rounded up.
    """
    units = np.floor(np.clip(problem.repair(weights), 0, 1) * _UNIT).astype(np.int64)
    room = np.floor(problem.limits * _UNIT).astype(np.int64)
    excess = _counts(problem.matrix) @ units - room
    for j in np.flatnonzero(excess > 0):
        # Rounding let a sum exceed its limit slightly: reduce its largest weight.
        members = problem.matrix.indices[problem.matrix.indptr[j] : problem.matrix.indptr[j + 1]]
        over = int(units[members].sum() - room[j])
        for i in members[np.argsort(-units[members])]:
            if over <= 0:
                break
            reduction = min(over, int(units[i]))
            units[i] -= reduction
            over -= reduction
    total = int(units.sum()) + problem.settled * _UNIT
    return Certified(
        weights=problem.expand(units / _UNIT),
        total=total / _UNIT,
        bound=_bound(problem, multipliers) + problem.settled,
    )


def _bound(problem: Packing, multipliers: Floats) -> float:
    """The dual bound in whole numbers, rounded up."""
    # a multiplier above 1 never improves the bound
    prices = np.floor(np.clip(multipliers, 0, 1) * _UNIT).astype(np.int64)
    paid = _counts(problem.transposed) @ prices
    unpaid = int(np.maximum(0, _UNIT - paid).sum())
    limits = np.ceil(problem.limits * _UNIT).astype(np.int64)
    sold = sum(limit * price for limit, price in zip(limits.tolist(), prices.tolist(), strict=True))
    return math.nextafter((-(-sold // _UNIT) + unpaid) / _UNIT, math.inf)


def _counts(matrix: sparse.csr_array) -> sparse.csr_array:
    """The matrix of ones in whole numbers."""
    return sparse.csr_array((np.ones(matrix.nnz, np.int64), matrix.indices, matrix.indptr), matrix.shape)
