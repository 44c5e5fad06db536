"""Composed privacy losses against exact enumeration, the exact Gaussian and quadrature, at delta down to 1e-300."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest

from privctl.accounting import gaussian
from privctl.accounting.pld.compose import COARSE, compose
from privctl.accounting.pld.grid import connect, grid_edges, merge
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import (
    Array,
    Atoms,
    Gaussian,
    GaussianMixture,
    Laplace,
    Pair,
    Reversed,
    Sampled,
    Symmetrized,
    randomized_response,
)
from tests.few import few

DELTAS = [1e-3, 1e-12, 1e-300]


def bounds(steps: list[RepeatedPair], delta: float) -> tuple[float, float]:
    """Lower and upper epsilon."""
    low, high = (compose(steps, log_delta=math.log(delta), lower=lower).epsilon(delta) for lower in (True, False))
    return low, high


@pytest.mark.parametrize("delta", few(DELTAS, 2))
@pytest.mark.parametrize(("mu", "count"), few([(1.0, 1), (0.3, 7), (0.02, 1000), (0.004, 100_000), (12.0, 4)], 0, 3))
def test_gaussians_compose_to_the_exact_one(mu: float, count: int, delta: float) -> None:
    exact = gaussian.epsilon_at(delta, mu * math.sqrt(count))
    low, high = bounds([RepeatedPair(Gaussian(mu), count)], delta)
    assert low <= exact <= high
    assert high <= exact * (1 + 5e-5)
    assert low >= exact * (1 - 2e-3)
    # One step fewer, or a little more noise, gives another bound.
    assert bounds([RepeatedPair(Gaussian(mu), count + 1 + count // 500)], delta)[0] > exact
    assert bounds([RepeatedPair(Gaussian(mu * 0.999), count)], delta)[1] < exact


@pytest.mark.parametrize("order", [lambda pair: pair, Reversed])
def test_a_certain_record_is_the_gaussian_however_it_is_written(order: type[Reversed]) -> None:
    exact = gaussian.epsilon_at(1e-7, 0.25 * math.sqrt(50))
    for pair in (Sampled(Gaussian(0.25), 1.0), GaussianMixture((2.0,), (1.0,), 8.0)):
        low, high = bounds([RepeatedPair(order(pair), 50)], 1e-7)
        assert exact * (1 - 1e-4) <= low <= exact <= high <= exact * (1 + 5e-5)
    low, high = bounds([RepeatedPair(order(Sampled(Gaussian(0.25), 1.0)), 20), RepeatedPair(Gaussian(0.25), 30)], 1e-7)
    assert exact * (1 - 1e-4) <= low <= exact <= high <= exact * (1 + 5e-5)


def enumerated(pair: Atoms, count: int, delta: float) -> float:
    """Epsilon of ``count`` uses of a two-atom pair, exactly: the composed loss has count + 1 atoms."""
    with mpmath.workdps(60):
        (low, high), p = pair.losses, mpmath.exp(mpmath.mpf(pair.log_p[1]))
        atoms = [
            (
                mpmath.mpf(low) * (count - k) + mpmath.mpf(high) * k,
                mpmath.binomial(count, k) * p**k * (1 - p) ** (count - k),
            )
            for k in range(count + 1)
        ]

        def excess(epsilon: mpmath.mpf) -> mpmath.mpf:
            return sum(m * -mpmath.expm1(epsilon - loss) for loss, m in atoms if loss > epsilon) - mpmath.mpf(delta)

        if excess(mpmath.mpf(0)) <= 0:
            return 0.0
        left, right = mpmath.mpf(0), mpmath.mpf(high) * count
        for _ in range(120):
            middle = (left + right) / 2
            left, right = (middle, right) if excess(middle) > 0 else (left, middle)
        return float(left)


@pytest.mark.parametrize("delta", few([1e-3, 1e-9, 1e-40], 0, 2))
@pytest.mark.parametrize(("epsilon", "count"), few([(0.1, 100), (1.0, 60), (5.0, 3), (0.01, 400)], 1, 2))
def test_randomized_response_enumerated(epsilon: float, count: int, delta: float) -> None:
    pair = randomized_response(epsilon, 1)
    exact = enumerated(pair, count, delta)
    low, high = bounds([RepeatedPair(pair, count)], delta)
    # Where delta is out of reach of all bits together the answer is their whole loss: rounded, not cut.
    assert low <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= high <= exact * (1 + 3e-4) + 1e-12
    assert enumerated(randomized_response(epsilon * 1.02, 1), count, delta) > high or high == 0


def test_atoms_that_are_not_symmetric() -> None:
    p, q = 0.3, 0.2
    pair = Atoms((math.log((1 - p) / (1 - q)), math.log(p / q)), (math.log(1 - p), math.log(p)))
    for delta in (1e-3, 1e-8):
        exact = enumerated(pair, 50, delta)
        low, high = bounds([RepeatedPair(pair, 50)], delta)
        assert low <= exact <= high <= exact * (1 + 3e-4)
        other = compose([RepeatedPair(Reversed(pair), 50)], log_delta=math.log(delta)).epsilon(delta)
        assert abs(other - high) > 1e-3 * high


def test_laplace_once_and_as_pure_privacy() -> None:
    # delta(e) = 1 - exp((e - 1/scale) / 2) for one use; at delta 1e-300 many uses lose their sum.
    for delta in (1e-2, 1e-6):
        exact = 1 / 0.7 + 2 * math.log1p(-delta)
        low, high = bounds([RepeatedPair(Laplace(0.7), 1)], delta)
        assert low <= exact <= high <= exact * (1 + 1e-4)
    _, high = bounds([RepeatedPair(Laplace(0.7), 30)], 1e-300)
    assert 30 / 0.7 * 0.999 < high <= 30 / 0.7 * (1 + 1e-4)


def once(mu: float, rate: float, delta: float, *, reverse: bool) -> float:
    """Epsilon of one sampled Gaussian, by amplification (exact for its pair) or its mirror."""
    if not reverse:
        return math.log1p(rate * math.expm1(gaussian.epsilon_at(delta / rate, mu)))
    with mpmath.workdps(30):
        m, q = mpmath.mpf(mu), mpmath.mpf(rate)

        def missing(epsilon: mpmath.mpf) -> mpmath.mpf:
            # H(N(0,1), mixture): the loss exceeds epsilon where the mixture's ratio is below exp(-epsilon).
            x = mpmath.log((mpmath.exp(-epsilon) - 1 + q) / q) / m + m / 2
            mixture = (1 - q) * mpmath.ncdf(x) + q * mpmath.ncdf(x - m)
            return mpmath.ncdf(x) - mpmath.exp(epsilon) * mixture - mpmath.mpf(delta)

        left, right = mpmath.mpf(0), -mpmath.log1p(-q) * (1 - mpmath.mpf(10) ** -25)
        for _ in range(60):
            middle = (left + right) / 2
            left, right = (middle, right) if missing(middle) > 0 else (left, middle)
        return float(left)


@pytest.mark.parametrize("delta", [1e-4, 1e-12, 1e-300])
@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.01), (0.5, 0.3)])
@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_sampled_gaussian(mu: float, rate: float, delta: float, reverse: bool) -> None:
    exact = once(mu, rate, delta, reverse=reverse)
    pair: Pair = Reversed(Sampled(Gaussian(mu), rate)) if reverse else Sampled(Gaussian(mu), rate)
    low, high = bounds([RepeatedPair(pair, 1)], delta)
    assert low <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= high <= exact * (1 + 2e-3) + 1e-12
    assert once(mu, rate * 1.01, delta, reverse=reverse) > high
    assert low == 0 or once(mu, rate * 0.97, delta, reverse=reverse) < low


def twice(mu: float, rate: float, epsilon: float) -> float:
    """Log delta of two sampled Gaussians at ``epsilon``: the second's exact delta, integrated over the first output."""
    x, weights = np.polynomial.legendre.leggauss(60)
    total = -math.inf
    panels = np.linspace(-14, 14 + 2 * mu, 401)
    for a, b in itertools.pairwise(panels):
        y = (a + b) / 2 + (b - a) / 2 * x
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * y - mu * mu / 2)
        log_p = log_ratio - y * y / 2 - math.log(2 * math.pi) / 2
        left = np.array([_log_delta_of_one_step(mu, rate, epsilon - float(loss)) for loss in log_ratio])
        total = float(np.logaddexp(total, np.logaddexp.reduce(log_p + left + np.log(weights * (b - a) / 2))))
    return total


def _log_delta_of_one_step(mu: float, rate: float, epsilon: float) -> float:
    """Log delta of one sampled Gaussian at any real epsilon."""
    inside = math.expm1(epsilon) / rate
    if inside <= -1:
        return math.log(-math.expm1(epsilon))
    base = math.log1p(inside)
    if base >= 0:
        return math.log(rate) + gaussian.log_delta(base, mu)
    return math.log(rate * (-math.expm1(base) + math.exp(base + gaussian.log_delta(-base, mu))))


@pytest.mark.parametrize(("mu", "rate", "delta"), few([(1.0, 0.05, 1e-5), (0.8, 0.3, 1e-10), (1.5, 0.01, 1e-3)], 0))
def test_two_sampled_gaussians(mu: float, rate: float, delta: float) -> None:
    low, high = bounds([RepeatedPair(Sampled(Gaussian(mu), rate), 2)], delta)
    # Upper bound on epsilon: true delta there is at most the target; on the other side of the lower one it is above.
    assert twice(mu, rate, high) <= math.log(delta) + 1e-9
    assert twice(mu, rate, high * (1 - 1e-3)) > math.log(delta)
    assert twice(mu, rate, low) >= math.log(delta) - 1e-9
    assert low >= high * (1 - 2e-3)
    # Had a step been forgotten, the bound would not hold.
    _, forgotten = bounds([RepeatedPair(Sampled(Gaussian(mu), rate), 1)], delta)
    assert twice(mu, rate, forgotten) > math.log(delta) + 0.1


PAIRS: list[Any] = [
    (Sampled(Gaussian(1.0), 0.01), 1000),
    (Reversed(Sampled(Gaussian(1.0), 0.01)), 1000),
    pytest.param(Sampled(Gaussian(0.2), 1e-3), 1_000_000, marks=pytest.mark.slow),
    (Symmetrized(Sampled(Gaussian(2.0), 0.01)), 300),
    (GaussianMixture((0.0, 1.0, 2.0), (0.9, 0.09, 0.01), 2.0), 100),
    (Reversed(GaussianMixture((0.0, 1.0, 2.0), (0.9, 0.09, 0.01), 2.0)), 100),
]


@pytest.mark.parametrize(("pair", "count"), few(PAIRS, 1, 3))
def test_enclosures_are_narrow_and_coarse_ones_contain_fine_ones(pair: Pair, count: int) -> None:
    for delta in (1e-3, 1e-8, 1e-100):
        low, high = bounds([RepeatedPair(pair, count)], delta)
        assert high * (1 - 5e-3) <= low <= high
        coarse = compose([RepeatedPair(pair, count)], log_delta=math.log(delta), precision=COARSE).epsilon(delta)
        assert low <= coarse <= high * (1 + 5e-3)


@pytest.mark.parametrize(("pair", "count"), PAIRS[:4])
def test_delta_falls_and_is_the_inverse_of_epsilon(pair: Pair, count: int) -> None:
    found = compose([RepeatedPair(pair, count)], log_delta=math.log(1e-6))
    epsilon = found.epsilon(1e-6)
    assert found.log_delta(epsilon) == pytest.approx(math.log(1e-6), abs=1e-6)
    logs = [found.log_delta(e) for e in np.linspace(-2 * epsilon, 3 * epsilon, 200)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(logs))
    assert found.log_delta(1e300) <= math.log(1e-6)
    assert found.log_delta(-1e300) <= 0


def hockey_sticks(log_p: Array, losses: Array, log_infinity: float, at: Array) -> Array:
    excess = np.clip(-np.expm1(np.minimum(at[:, None] - losses, 0.0)), 0, 1)
    return np.asarray(excess @ np.exp(log_p) + math.exp(log_infinity))


@pytest.mark.parametrize("h", few([1e-3, 0.05, 0.7, 4.0], 1, 2))
@pytest.mark.parametrize(
    "pair",
    few(
        [
            Gaussian(1.3),
            Laplace(0.4),
            randomized_response(0.9, 4),
            Sampled(Gaussian(2.0), 0.1),
            Reversed(Sampled(Laplace(0.5), 0.2)),
            Symmetrized(Sampled(Gaussian(1.5), 0.3)),
            GaussianMixture((0.0, 1.0, 2.0), (0.5, 0.4, 0.1), 0.7, lost=1e-4),
        ],
        0,
        3,
        4,
        6,
    ),
)
def test_grids_enclose_the_pair_at_every_epsilon(pair: Pair, h: float) -> None:
    span = pair.span(-30.0)
    edges = grid_edges((span.p_low, span.p_high), h)
    at = np.linspace(span.p_low - 1, span.p_high + 1, 301)
    truth = []
    for e in at:
        log_p, log_q = pair.cells(np.array([e]))
        truth.append(math.exp(log_p[1]) - math.exp(e + log_q[1]))
    upper, lower = connect(pair, edges), merge(pair, edges)
    above = hockey_sticks(upper.log_p, edges, upper.log_infinity, at)
    below = hockey_sticks(lower.log_p, edges, lower.log_infinity, at)
    assert np.all(above >= np.array(truth) - 1e-12)
    assert np.all(below <= np.array(truth) + 1e-12)
    assert math.fsum(np.exp(upper.log_p)) + math.exp(upper.log_infinity) == pytest.approx(
        math.exp(np.logaddexp.reduce(pair.cells(edges)[0])), abs=1e-13
    )
    if h < 0.01:
        assert np.max(above - below) < 5e-3


def test_a_bound_always_exists_where_the_distribution_is_lost_in_rounding() -> None:
    # Ten million steps that all but never see the record: delta is below the rounding of a transform.
    steps = [RepeatedPair(Sampled(Gaussian(0.18), 1e-12), 10_000_000)]
    assert compose(steps, log_delta=math.log(1e-5)).epsilon(1e-5) == 0
    assert compose(steps, log_delta=math.log(1e-300)).epsilon(1e-300) < 1
    assert compose(steps, log_delta=math.log(1e-320)).epsilon(1e-320) < 1  # so small that products with it are 0
    # A bounded loss is never infinite.
    wide = compose([RepeatedPair(Laplace(1.2e-3), 300_000)], log_delta=math.log(1e-5)).epsilon(1e-5)
    assert 0.99 * 300_000 / 1.2e-3 < wide < 300_000 / 1.2e-3 * 1.001
