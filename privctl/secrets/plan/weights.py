"""The weights of the records: solves the linear program by a method that suits its size, and certifies the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.progress import Advance, silent
from privctl.secrets.plan.highs import interior_point, pdlp
from privctl.secrets.plan.packing import Certified, Packing, certify, packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Most memberships for which the interior-point method takes seconds.
_INTERIOR = 300_000
_MANY = 1_000_000


class Solver(StrEnum):
    """How the program is solved. ``AUTO``: HiGHS's interior-point method for small programs, its PDLP for others."""

    AUTO = "auto"
    INTERIOR = "interior"
    FIRST_ORDER = "first-order"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighted:
    """``weights`` [records] in [0, 1], their certified gap to the optimum, and the solver."""

    weights: NDArray[np.float64]
    gap: float
    solver: str

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.weights.sum())


def weights_for(
    starts: NDArray[np.int64],
    records: NDArray[np.int64],
    examples: int,
    limits: NDArray[np.float64],
    *,
    solver: Solver = Solver.AUTO,
    gap: float | None = None,
    advance: Advance = silent,
) -> Weighted:
    """The largest total weight of ``examples`` records if those of secret j may have at most ``limits[j]`` (> 0).

    Secret j is in ``records[starts[j]:starts[j + 1]]``. ``gap`` is the relative gap at which PDLP stops; None means
    1e-4, or 1e-3 for more than a million memberships, which saves minutes. The returned gap is certified in integer
    arithmetic, whatever the method.
    """
    problem = packing(starts, records, examples, limits)
    if not len(problem.free):
        return Weighted(weights=np.ones(examples), gap=0.0, solver="none: no secret can bind")
    # If all limits are below 1, no free record can reach weight 1, and the weights scale with the limits. Without this,
    # a tiny cap would lead to weights below the certificate's unit.
    scale = max(1.0, 2.0 ** -math.ceil(math.log2(problem.limits.max())))
    problem = replace(problem, limits=problem.limits * scale)
    if solver is Solver.AUTO:
        solver = Solver.INTERIOR if problem.matrix.nnz <= _INTERIOR else Solver.FIRST_ORDER
    if solver is Solver.INTERIOR:
        solution = interior_point(problem)
        if solution is not None:
            return _unscale(
                problem, certify(problem, solution.weights, solution.multipliers), scale, "HiGHS interior point"
            )
    if gap is None:
        gap = 1e-3 if problem.matrix.nnz > _MANY else 1e-4
    best = pdlp(problem, gap, advance=advance)
    solved_by = f"HiGHS PDLP, {best.iterations} iterations"
    return _unscale(problem, certify(problem, best.weights, best.multipliers), scale, solved_by)


def _unscale(problem: Packing, solution: Certified, scale: float, solver: str) -> Weighted:
    """The weights of the program before its limits were multiplied by ``scale``, a power of 2, so division is exact."""
    weights = problem.expand(solution.weights[problem.free] / scale)
    total, bound = (problem.fixed + (value - problem.fixed) / scale for value in (solution.total, solution.bound))
    return Weighted(weights=weights, gap=replace(solution, total=total, bound=bound).gap, solver=solver)
