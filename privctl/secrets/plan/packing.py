"""The linear program of the weights, and certificates in exact arithmetic.

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

#: In a certificate, weights and multipliers are multiples of 1 / ``_UNIT``, so that their sums are exact in 64 bits.
_UNIT = 1 << 36
_FILLS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """The program without fixed variables: records that are in no secret whose constraint can bind have weight 1.

    ``free`` [variables] are the other records; ``matrix`` [constraints, variables] is 1 if a record is in a secret,
    ``transposed`` is its transpose, both stored by rows; ``limits`` [constraints] are positive.
    """

    records: int
    free: NDArray[np.int64]
    matrix: sparse.csr_array
    transposed: sparse.csr_array
    limits: Floats

    @property
    def fixed(self) -> int:
        """The number of records whose weight is fixed at 1."""
        return self.records - len(self.free)

    def expand(self, weights: Floats) -> Floats:
        """The weights [records] of all records, given ``weights`` [variables] of the free ones."""
        everything = np.ones(self.records)
        everything[self.free] = weights
        return everything

    def repair(self, weights: Floats) -> Floats:
        """``weights`` scaled down to meet all constraints (up to rounding), each by its most violated constraint.

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
        """For each variable, the minimum of ``values`` [constraints] over its constraints; every variable has one."""
        return np.asarray(np.minimum.reduceat(values[self.transposed.indices], self.transposed.indptr[:-1]))

    def upper_bound(self, multipliers: Floats) -> float:
        """The dual bound on the free records' total weight from ``multipliers`` [constraints] >= 0, in floats."""
        reduced = 1 - self.transposed @ multipliers
        return float(self.limits @ multipliers + np.maximum(0, reduced).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified:
    """``weights`` [records] that meet every constraint exactly, their ``total``, and an upper ``bound`` on totals."""

    weights: Floats
    total: float
    bound: float

    @property
    def gap(self) -> float:
        """The largest possible distance of the total from the optimum, relative to the bound."""
        return max(0.0, self.bound - self.total) / self.bound if self.bound else 0.0


def packing(starts: NDArray[np.int64], records: NDArray[np.int64], examples: int, limits: Floats) -> Packing:
    """The program for secrets ``records[starts[j]:starts[j + 1]]`` among ``examples`` records; limits are above 0.

    Constraints that cannot bind, because a secret has no more records than its limit, are left out.
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
        free=columns,
        matrix=matrix,
        transposed=sparse.csr_array(matrix.T.tocsr()),
        limits=limits[binding],
    )


def certify(problem: Packing, weights: Floats, multipliers: Floats) -> Certified:
    """Feasible weights from ``weights`` [variables], and the bound from ``multipliers`` [constraints], in integers.

    Both may be any vectors: bad ones only widen the gap. The weights are rounded down to multiples of 2^-36, and
    reduced until they meet the constraints in integer arithmetic; the bound is an integer sum, rounded up.
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
    total = int(units.sum()) + problem.fixed * _UNIT
    return Certified(
        weights=problem.expand(units / _UNIT),
        total=total / _UNIT,
        bound=_bound(problem, multipliers) + problem.fixed,
    )


def _bound(problem: Packing, multipliers: Floats) -> float:
    """The dual bound for the free records in integer arithmetic, rounded up."""
    # A multiplier above 1 never improves the bound.
    prices = np.floor(np.clip(multipliers, 0, 1) * _UNIT).astype(np.int64)
    paid = _counts(problem.transposed) @ prices
    unpaid = int(np.maximum(0, _UNIT - paid).sum())
    limits = np.ceil(problem.limits * _UNIT).astype(np.int64)
    sold = sum(limit * price for limit, price in zip(limits.tolist(), prices.tolist(), strict=True))
    return math.nextafter((-(-sold // _UNIT) + unpaid) / _UNIT, math.inf)


def _counts(matrix: sparse.csr_array) -> sparse.csr_array:
    """The matrix of ones as integers."""
    return sparse.csr_array((np.ones(matrix.nnz, np.int64), matrix.indices, matrix.indptr), matrix.shape)
