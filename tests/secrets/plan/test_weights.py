"""The linear program: optima by another solver, certificates that hold exactly, both methods, odd programs."""

import math
import signal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from privctl.secrets.plan import highs
from privctl.secrets.plan.highs import pdlp
from privctl.secrets.plan.packing import Packing, certify, packing
from privctl.secrets.plan.weights import Solver, weights_for

Floats = NDArray[np.float64]


def instance(secrets: int, examples: int, seed: int, most: int = 12) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Secrets of 2 to ``most`` records each, some records in many of them."""
    rng = np.random.default_rng(seed)
    popular = rng.lognormal(0, 1, examples)
    members = [
        np.sort(rng.choice(examples, rng.integers(2, most + 1), replace=False, p=popular / popular.sum()))
        for _ in range(secrets)
    ]
    return np.cumsum([0, *map(len, members)]), np.concatenate(members)


def by_simplex(starts: NDArray[np.int64], records: NDArray[np.int64], examples: int, limits: Floats) -> float:
    matrix = sparse.csr_array((np.ones(len(records)), records, starts), (len(limits), examples))
    return float(-linprog(-np.ones(examples), A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs-ds").fun)


def exact_loads(starts: NDArray[np.int64], records: NDArray[np.int64], weights: Floats) -> list[Fraction]:
    return [sum(map(Fraction, weights[records[a:b]].tolist()), Fraction()) for a, b in pairwise(starts)]


@pytest.mark.parametrize("solver", [Solver.INTERIOR, Solver.FIRST_ORDER])
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_another_solvers(solver: Solver, seed: int) -> None:
    starts, records = instance(80, 300, seed)
    limits = np.random.default_rng(seed + 100).uniform(0.3, 4, 80)
    found = weights_for(starts, records, 300, limits, solver=solver, gap=1e-5)
    best = by_simplex(starts, records, 300, limits)
    assert found.gap <= 1.01e-5
    assert best * (1 - found.gap) - 1e-9 <= found.total <= best + 1e-9
    assert (found.weights >= 0).all()
    assert (found.weights <= 1).all()
    for load, limit in zip(exact_loads(starts, records, found.weights), limits.tolist(), strict=True):
        assert load <= Fraction(limit)


def test_known_optimum() -> None:
    """Two secrets share the record in the middle: w = (1, 0, 1) weighs 2; by hand, y = (1, 1) proves it."""
    found = weights_for(np.array([0, 2, 4]), np.array([0, 1, 1, 2]), 3, np.ones(2))
    assert found.total == pytest.approx(2, abs=1e-8)
    np.testing.assert_allclose(found.weights, [1, 0, 1], atol=1e-7)


@pytest.mark.parametrize("solver", [Solver.INTERIOR, Solver.FIRST_ORDER])
def test_records_that_are_alike_weigh_alike(solver: Solver) -> None:
    """A secret in every record: all ways to share its limit out are as good, and a corner would drop most records."""
    found = weights_for(np.array([0, 50]), np.arange(50), 50, np.array([1.5]), solver=solver)
    np.testing.assert_allclose(found.weights, 1.5 / 50, rtol=1e-4)


@pytest.mark.parametrize("scale", [2.0**-5, 1e-9, 1e-200])
def test_weights_scale_with_limits_too_small_to_reach_one(scale: float) -> None:
    starts, records = instance(50, 200, 4)
    limits = np.random.default_rng(5).uniform(0.3, 1, 50)
    free = np.setdiff1d(np.arange(200), records)
    whole, small = (weights_for(starts, records, 200, each) for each in (limits, limits * scale))
    assert small.gap <= 1e-6
    held = np.setdiff1d(np.arange(200), free)
    assert small.weights[held].sum() == pytest.approx(scale * whole.weights[held].sum(), rel=1e-6)
    assert (small.weights[free] == 1).all()
    for load, limit in zip(exact_loads(starts, records, small.weights), (limits * scale).tolist(), strict=True):
        assert load <= Fraction(limit)


def test_bad_multipliers_only_widen_the_gap() -> None:
    starts, records = instance(50, 200, 1)
    limits = np.full(50, 1.5)
    problem, best = packing(starts, records, 200, limits), by_simplex(starts, records, 200, limits)
    rng = np.random.default_rng(0)
    for multipliers in (np.zeros(50), np.ones(50), rng.exponential(1, 50), -rng.exponential(1, 50), np.full(50, 1e300)):
        for weights in (np.zeros(len(problem.free)), np.ones(len(problem.free)), rng.normal(0, 9, len(problem.free))):
            found = certify(problem, weights, multipliers[: len(problem.limits)])
            assert found.total <= best + 1e-9
            assert found.bound >= best - 1e-9


def test_the_bound_is_that_of_exact_arithmetic() -> None:
    starts, records = instance(30, 100, 2)
    problem = packing(starts, records, 100, np.full(30, 1.1))
    prices = np.random.default_rng(0).uniform(0, 1, len(problem.limits))
    paid = [Fraction(1)] * len(problem.free)
    value = Fraction(0)
    for j, (price, limit) in enumerate(zip(prices.tolist(), problem.limits.tolist(), strict=True)):
        price = Fraction(math.floor(price * 2**36), 2**36)
        value += price * Fraction(limit)
        for i in problem.matrix.indices[problem.matrix.indptr[j] : problem.matrix.indptr[j + 1]]:
            paid[i] -= price
    value += sum((left for left in paid if left > 0), Fraction(0)) + problem.fixed
    found = certify(problem, np.zeros(len(problem.free)), prices)
    assert value <= Fraction(found.bound) <= value + Fraction(1, 10**6)


def test_a_planted_excess_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the repair in floats wrong by far, the certificate would still hold exactly."""
    starts, records = instance(50, 200, 3)
    problem = packing(starts, records, 200, np.full(50, 1.3))
    monkeypatch.setattr(Packing, "repair", lambda self, weights: weights)
    found = certify(problem, np.ones(len(problem.free)), np.zeros(len(problem.limits)))
    for load in exact_loads(starts, records, found.weights):
        assert load <= Fraction(1.3)


def test_what_cannot_bind_is_settled() -> None:
    starts, records = np.array([0, 2, 4, 4]), np.array([0, 1, 1, 2])
    problem = packing(starts, records, 6, np.array([2.0, 1.0, 0.5]))
    assert problem.free.tolist() == [1, 2]
    assert problem.fixed == 4
    loose = weights_for(starts, records, 6, np.array([2.0, 2.0, 0.5]))
    assert loose.weights.tolist() == [1] * 6
    assert loose.gap == 0


@pytest.mark.parametrize("solver", [Solver.INTERIOR, Solver.FIRST_ORDER])
def test_a_secret_in_every_record(solver: Solver) -> None:
    found = weights_for(np.array([0, 50]), np.arange(50), 50, np.array([0.7]), solver=solver)
    assert found.total == pytest.approx(0.7, rel=1e-4)


def test_pdlp_tells_of_its_way() -> None:
    starts, records = instance(80, 300, 5)
    progress: list[float] = []
    solution = pdlp(packing(starts, records, 300, np.full(80, 1.2)), 1e-4, advance=progress.append)
    assert solution.iterations > 40
    assert all(step >= 0 for step in progress)
    assert sum(progress) <= 1


def test_pdlp_stops_where_iterations_are_spent() -> None:
    starts, records = instance(80, 300, 5)
    problem = packing(starts, records, 300, np.full(80, 1.2))
    solution = pdlp(problem, 1e-12, most_iterations=50)
    assert solution.iterations == 50
    assert certify(problem, solution.weights, solution.multipliers).gap < 0.5


def test_each_round_of_pdlp_continues_the_last() -> None:
    """A HiGHS that began anew would give the same point twice."""
    starts, records = instance(80, 300, 5)
    problem = packing(starts, records, 300, np.full(80, 1.2))
    solver = highs._load(problem, "pdlp")
    solver.setOptionValue("pdlp_iteration_limit", 50)
    gaps = []
    for _ in range(3):
        solver.run()
        gaps.append(certify(problem, **highs._point(solver)).gap)
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2] > 0


def test_pdlp_goes_on_where_its_own_criteria_are_met_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "_SHARE", 1e3)
    starts, records = instance(80, 300, 5)
    problem = packing(starts, records, 300, np.full(80, 1.2))
    solution = pdlp(problem, 1e-5)
    assert certify(problem, solution.weights, solution.multipliers).gap <= 1.01e-5


def test_pdlp_can_be_interrupted() -> None:
    """HiGHS holds Python back within a round, so a signal is seen after it: no round may be most of the work."""

    class Stopped(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stopped

    def interrupt(share: float) -> None:
        rounds.append(share)
        signal.raise_signal(signal.SIGALRM)

    rounds: list[float] = []
    starts, records = instance(80, 300, 5)
    problem = packing(starts, records, 300, np.full(80, 1.2))
    gaps: list[float] = []
    pdlp(problem, 1e-7, advance=gaps.append)
    assert len(gaps) >= 3
    assert max(gaps) < 0.7
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Stopped):
            pdlp(problem, 1e-7, advance=interrupt)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(rounds) == 1
