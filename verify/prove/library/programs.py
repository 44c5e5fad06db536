"""Linear programs with rational certificates of optimality (Hush's weights)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from verify.prove.terms import real
from verify.prove.theorem import Theorem


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProgram:
    """Maximise the sum of w in [0, 1]^``examples`` with sum_{i in sets[j]} w_i <= budgets[j] for every secret j."""

    examples: int
    sets: tuple[tuple[int, ...], ...]
    budgets: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DualCertificate:
    """A feasible ``value`` and a ``bound`` on all feasible values."""

    value: Fraction
    bound: Fraction


def dual_bound(program: WeightProgram, prices: Sequence[Fraction]) -> Fraction:
    """B'y + sum_i max(0, 1 - sum_{j with i} y_j), a bound on every feasible sum for any y >= 0 by weak duality."""
    if any(price < 0 for price in prices):
        raise ValueError("prices holds a number below 0; a dual point has none")
    covered = [Fraction(0)] * program.examples
    for members, price in zip(program.sets, prices, strict=True):
        for i in members:
            covered[i] += price
    paid = sum((b * y for b, y in zip(program.budgets, prices, strict=True)), Fraction(0))
    return paid + sum((max(Fraction(0), 1 - share) for share in covered), Fraction(0))


def solve(program: WeightProgram) -> DualCertificate:
    """A feasible point and a dual bound in exact arithmetic, from the solution of a floating-point solver."""
    import numpy as np
    from scipy.optimize import linprog

    rows = np.zeros((len(program.sets), program.examples))
    for j, members in enumerate(program.sets):
        rows[j, list(members)] = 1
    solution = linprog(-np.ones(program.examples), A_ub=rows, b_ub=[float(b) for b in program.budgets], bounds=(0, 1))
    assert solution.x is not None
    weights = [min(max(_short(w), Fraction(0)), Fraction(1)) for w in solution.x]
    prices = tuple(max(_short(-y), Fraction(0)) for y in solution.ineqlin.marginals)
    loads = [sum((weights[i] for i in members), Fraction(0)) for members in program.sets]
    scale = min((b / load for b, load in zip(program.budgets, loads, strict=True) if load > b), default=Fraction(1))
    return DualCertificate(value=sum(weights, Fraction(0)) * scale, bound=dual_bound(program, prices))


def no_better(program: WeightProgram, bound: Fraction, name: str = "weights-program") -> Theorem:
    """The theorem that no feasible point has a sum above ``bound``."""
    weights = [f"w{i}" for i in range(program.examples)]
    limits = (
        f"(<= (+ 0.0 {' '.join(weights[i] for i in members)}) {real(budget)})"
        for members, budget in zip(program.sets, program.budgets, strict=True)
    )
    return Theorem(
        name=name,
        statement=f"No weights within the {len(program.sets)} budgets sum to more than the dual bound.",
        assumptions=(*(f"(and (<= 0.0 {w}) (<= {w} 1.0))" for w in weights), *limits),
        claim=f"(<= (+ {' '.join(weights)}) {real(bound)})",
    )


def _short(value: float) -> Fraction:
    """A float rounded to a multiple of 2^-40."""
    return Fraction(round(value * 2**40), 2**40)
