"""The weights of the records: the linear program solved by the method that fits its size, always certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from privctl.secrets.plan.first_order import Solution, first_order
from privctl.secrets.plan.packing import Certified, Packing, certify, packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Memberships up to which the interior-point method takes seconds.
_INTERIOR = 300_000
_SECONDS = 600.0


class Solver(StrEnum):
    """How the program is solved. ``AUTO``: HiGHS' interior point for small programs, the first-order method above."""

    AUTO = "auto"
    INTERIOR = "interior"
    FIRST_ORDER = "first-order"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighted:
    """``weights`` [records] in [0, 1], how far from the best they can be at most, and who found them."""

    weights: NDArray[np.float64]
    gap: float
    solver: str

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self.weights.sum())


def weights_for(
    starts: NDArray[np.int64],
    records: NDArray[np.int64],
    examples: int,
    limits: NDArray[np.float64],
    *,
    solver: Solver = Solver.AUTO,
    gap: float = 1e-4,
    advance: Callable[[float], None] = lambda _: None,
) -> Weighted:
    """The most weight for ``examples`` records when secret j's records may have ``limits[j]`` (> 0) in all.

    Secret j lies in ``records[starts[j]:starts[j + 1]]``. ``gap`` is the relative gap at which the first-order method
    stops; the gap that is returned was certified in whole numbers, whatever the method.
    """
    problem = packing(starts, records, examples, limits)
    if not len(problem.open):
        return Weighted(weights=np.ones(examples), gap=0.0, solver="none: no secret can bind")
    if solver is Solver.AUTO:
        solver = Solver.INTERIOR if problem.matrix.nnz <= _INTERIOR else Solver.FIRST_ORDER
    if solver is Solver.INTERIOR:
        found = _interior(problem)
        if found is not None:
            return _weighted(certify(problem, found.weights, found.multipliers), "HiGHS interior point")
    best = first_order(problem, gap, advance=advance)
    return _weighted(
        certify(problem, best.weights, best.multipliers), f"first-order method, {best.iterations} iterations"
    )


def _weighted(found: Certified, solver: str) -> Weighted:
    return Weighted(weights=found.weights, gap=found.gap, solver=solver)


def _interior(problem: Packing) -> Solution | None:
    """HiGHS' interior point without crossover, whose solution shares weight out evenly; None where it fails."""
    import highspy

    program = highspy.HighsLp()
    rows, columns = problem.matrix.shape
    program.num_row_, program.num_col_ = rows, columns
    program.col_cost_ = -np.ones(columns)
    program.col_lower_, program.col_upper_ = np.zeros(columns), np.ones(columns)
    program.row_lower_, program.row_upper_ = np.full(rows, -highspy.kHighsInf), problem.limits
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = problem.matrix.indptr
    program.a_matrix_.index_ = problem.matrix.indices
    program.a_matrix_.value_ = problem.matrix.data
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    for name, value in (("solver", "ipm"), ("run_crossover", "off"), ("threads", 1), ("time_limit", _SECONDS)):
        highs.setOptionValue(name, value)
    highs.passModel(program)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return Solution(
        weights=np.asarray(solution.col_value, np.float64),
        multipliers=-np.asarray(solution.row_dual, np.float64),
        iterations=int(highs.getInfo().ipm_iteration_count),
    )
