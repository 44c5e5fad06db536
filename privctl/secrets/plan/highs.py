"""The linear program by HiGHS: its interior point, and PDLP for programs too large to factorize.

PDLP is the restarted primal-dual hybrid gradient method (Applegate and others 2021): one iteration is one product with
the matrix and one with its transpose. HiGHS cannot be interrupted within a run of it, nor does it report progress, so
it runs in rounds, each of which continues from the point that the last one reached. Between rounds the gap is looked
at that can be certified; PDLP's own criteria concern an infeasible point and say little about it.
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
#: Iterations of PDLP's first round, and how much longer each round is than the last: a round forgets step sizes and
#: averages of the one before, so that short ones may never converge.
_ROUND, _LONGER = 100, 1.5
#: PDLP's tolerance as a share of the gap that is sought, how much it is tightened where that was not enough, and the
#: least that HiGHS takes.
_SHARE, _TIGHTER, _TIGHTEST = 0.3, 0.25, 1e-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """``weights`` [variables] and ``multipliers`` [constraints] as the solver left them, after ``iterations``."""

    weights: Floats
    multipliers: Floats
    iterations: int


def interior_point(problem: Packing) -> Solution | None:
    """The solution that shares weight out evenly; None where HiGHS fails or takes more than ten minutes.

    Without crossover and presolve, either of which may give all weight to some of many records that are alike.
    """
    import highspy

    highs = _loaded(problem, "ipm")
    highs.setOptionValue("time_limit", _SECONDS)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return Solution(iterations=int(highs.getInfo().ipm_iteration_count), **_point(highs))


def pdlp(problem: Packing, gap: float, *, most_iterations: int = 100_000, advance: Advance = silent) -> Solution:
    """The best weights and multipliers found when their relative gap is at most ``gap``, or the iterations are spent.

    The weights are within all constraints but for rounding. ``advance`` hears of the share of the way to ``gap``, on a
    logarithmic scale, that was covered since the last call.
    """
    import highspy

    highs = _loaded(problem, "pdlp")
    tolerance, length, iterations = max(_SHARE * gap, _TIGHTEST), float(_ROUND), 0
    best = {"weights": problem.repaired(np.ones(len(problem.open))), "multipliers": np.zeros(len(problem.limits))}
    lowest, highest, told = float(best["weights"].sum()), problem.upper_bound(best["multipliers"]), 0.0
    while iterations < most_iterations:
        highs.setOptionValue("kkt_tolerance", tolerance)
        highs.setOptionValue("pdlp_iteration_limit", min(round(length), most_iterations - iterations))
        highs.run()
        iterations += max(1, int(highs.getInfo().pdlp_iteration_count))
        at = _point(highs)
        if len(at["weights"]) != len(problem.open) or len(at["multipliers"]) != len(problem.limits):
            break  # HiGHS gave up; what was found before still stands
        weights = problem.repaired(at["weights"])
        if (total := float(weights.sum())) > lowest:
            best["weights"], lowest = weights, total
        if (bound := problem.upper_bound(at["multipliers"])) < highest:
            best["multipliers"], highest = at["multipliers"], bound
        found = (highest - lowest) / (highest + problem.settled)
        if found <= gap:
            break
        way = min(1.0, max(0.0, math.log(min(found, 1.0)) / math.log(gap)))
        advance(max(0.0, way - told))
        told = max(told, way)
        if highs.getModelStatus() == highspy.HighsModelStatus.kIterationLimit:
            length *= _LONGER
        elif tolerance > _TIGHTEST:
            tolerance = max(_TIGHTER * tolerance, _TIGHTEST)
        else:
            break
    return Solution(iterations=iterations, **best)


def _loaded(problem: Packing, solver: str) -> highspy.Highs:
    """HiGHS with the program, as a minimisation, to be solved on one thread and without a word."""
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
    """Where the solver stands: both fields of a solution."""
    solution = highs.getSolution()
    return {
        "weights": np.asarray(solution.col_value, np.float64),
        "multipliers": np.maximum(0, -np.asarray(solution.row_dual, np.float64)),
    }
