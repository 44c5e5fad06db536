"""Solves the linear program with HiGHS: by its interior-point method, or by PDLP if it is too large to factorize.

PDLP is the restarted primal-dual hybrid gradient method (Applegate et al. 2021): an iteration is one product with the
matrix and one with its transpose. HiGHS can neither be interrupted during a PDLP run nor report progress, so PDLP runs
in rounds, each of which continues from the last point. The certified gap is checked between rounds, since PDLP's own
criteria concern an infeasible point and say little about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.progress import Advance, silent
from privctl.secrets.plan.packing import Packing

if TYPE_CHECKING:
    import highspy
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SECONDS = 600.0
#: Iterations of PDLP's first round, and the factor by which rounds grow: each round starts with new step sizes and
#: averages, so short rounds may never converge.
_ROUND, _LONGER = 100, 1.5
#: PDLP's tolerance as a share of the requested gap, the factor by which it is tightened if that is not enough, and the
#: smallest that HiGHS accepts.
_SHARE, _TIGHTER, _TIGHTEST = 0.3, 0.25, 1e-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The solver's ``weights`` [variables] and ``multipliers`` [constraints] after ``iterations``."""

    weights: Floats
    multipliers: Floats
    iterations: int


def interior_point(problem: Packing) -> Solution | None:
    """The solution that distributes weight evenly; None if HiGHS fails or takes more than ten minutes.

    Crossover and presolve are off, since either may give all weight to a few of many equivalent records.
    """
    import highspy

    highs = _load(problem, "ipm")
    highs.setOptionValue("time_limit", _SECONDS)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return Solution(iterations=int(highs.getInfo().ipm_iteration_count), **_point(highs))


def pdlp(problem: Packing, gap: float, *, most_iterations: int = 100_000, advance: Advance = silent) -> Solution:
    """The best weights and multipliers once their relative gap is at most ``gap`` or the iterations are used up.

    The weights meet all constraints up to rounding. ``advance`` is called with the progress towards ``gap``, on a
    logarithmic scale, since the last call.
    """
    import highspy

    highs = _load(problem, "pdlp")
    tolerance, length, iterations = max(_SHARE * gap, _TIGHTEST), float(_ROUND), 0
    best = {"weights": problem.repair(np.ones(len(problem.free))), "multipliers": np.zeros(len(problem.limits))}
    lowest, highest, progress_told = float(best["weights"].sum()), problem.upper_bound(best["multipliers"]), 0.0
    while iterations < most_iterations:
        highs.setOptionValue("kkt_tolerance", tolerance)
        highs.setOptionValue("pdlp_iteration_limit", min(round(length), most_iterations - iterations))
        highs.run()
        iterations += max(1, int(highs.getInfo().pdlp_iteration_count))
        point = _point(highs)
        if len(point["weights"]) != len(problem.free) or len(point["multipliers"]) != len(problem.limits):
            break  # HiGHS gave up; keep the best so far
        weights = problem.repair(point["weights"])
        if (total := float(weights.sum())) > lowest:
            best["weights"], lowest = weights, total
        if (bound := problem.upper_bound(point["multipliers"])) < highest:
            best["multipliers"], highest = point["multipliers"], bound
        achieved_gap = (highest - lowest) / (highest + problem.fixed)
        if achieved_gap <= gap:
            break
        covered = min(1.0, max(0.0, math.log(min(achieved_gap, 1.0)) / math.log(gap)))
        advance(max(0.0, covered - progress_told))
        progress_told = max(progress_told, covered)
        if highs.getModelStatus() == highspy.HighsModelStatus.kIterationLimit:
            length *= _LONGER
        elif tolerance > _TIGHTEST:
            tolerance = max(_TIGHTER * tolerance, _TIGHTEST)
        else:
            break
    return Solution(iterations=iterations, **best)


def _load(problem: Packing, solver: str) -> highspy.Highs:
    """HiGHS with the program loaded, as a minimization, on one thread and without output."""
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
    for name, value in (("solver", solver), ("presolve", "off"), ("run_crossover", "off"), ("threads", 1)):
        highs.setOptionValue(name, value)
    highs.passModel(program)
    return highs


def _point(highs: highspy.Highs) -> dict[str, Floats]:
    """The solver's current point: weights and multipliers."""
    solution = highs.getSolution()
    return {
        "weights": np.asarray(solution.col_value, np.float64),
        "multipliers": np.maximum(0, -np.asarray(solution.row_dual, np.float64)),
    }
