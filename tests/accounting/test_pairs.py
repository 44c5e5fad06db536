"""Every pair's cell masses against mpmath, and what the pairs must have in common."""

import math

import mpmath
import numpy as np
import pytest

from privctl.accounting.gaussian import log_delta
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

MIXTURE = GaussianMixture((0.0, 1.0, 2.0), (0.64, 0.32, 0.04), 0.9)

PAIRS: dict[str, Pair] = {
    "gaussian": Gaussian(0.7),
    "gaussian, small": Gaussian(1e-4),
    "gaussian, large": Gaussian(60.0),
    "laplace": Laplace(0.8),
    "laplace, wide": Laplace(900.0),
    "response": randomized_response(0.7, 3),
    "mixture": MIXTURE,
    "mixture, sure": GaussianMixture((3.0,), (1.0,), 0.05),
    "sampled gaussian": Sampled(Gaussian(0.7), 0.01),
    "sampled gaussian, rarely": Sampled(Gaussian(5.0), 1e-9),
    "sampled laplace": Sampled(Laplace(0.8), 0.3),
    "sampled response": Sampled(randomized_response(0.7, 3), 0.3),
    "symmetrized": Symmetrized(Sampled(Gaussian(1.4), 0.01)),
    "symmetrized, faint": Symmetrized(Sampled(Gaussian(1e-4), 0.5)),
}
PAIRS |= {f"{name}, reversed": Reversed(pair) for name, pair in PAIRS.items()}


def edges_of(pair: Pair, count: int = 4001) -> Array:
    span = pair.span(-60.0)
    low, high = min(span.p_low, span.q_low), max(span.p_high, span.q_high)
    return np.linspace(low - 1e-3 * (high - low), high + 1e-3 * (high - low), count)


def hockey_stick(pair: Pair, epsilon: float) -> float:
    log_p, log_q = pair.cells(np.array([epsilon]))
    return math.exp(log_p[1]) - math.exp(epsilon + log_q[1])


@pytest.mark.parametrize("name", PAIRS)
def test_masses_are_whole_and_their_ratio_lies_in_the_cell(name: str) -> None:
    pair = PAIRS[name]
    edges = edges_of(pair)
    log_p, log_q = pair.cells(edges)
    assert math.fsum(np.exp(log_p)) == pytest.approx(1, abs=1e-13)
    assert math.fsum(np.exp(log_q)) == pytest.approx(1, abs=1e-13)
    inside = np.isfinite(log_p[1:-1]) & np.isfinite(log_q[1:-1])
    loss = log_p[1:-1][inside] - log_q[1:-1][inside]
    slack = 1e-11 * (1 + np.abs(edges[:-1]) + np.abs(log_p[1:-1]))[inside]
    assert np.all(loss >= edges[:-1][inside] - slack)
    assert np.all(loss <= edges[1:][inside] + slack)


@pytest.mark.parametrize("name", PAIRS)
def test_finer_cells_add_up_to_coarser_ones(name: str) -> None:
    # Steps of 11 edges: no edge lies on an atom in both.
    pair = PAIRS[name]
    edges = edges_of(pair, 1101)
    fine, coarse = pair.cells(edges), pair.cells(edges[::11])
    for one, other in zip(fine, coarse, strict=True):
        joined = np.logaddexp.reduceat(one, np.concatenate([[0], np.arange(1, len(edges) + 1, 11)]))
        assert np.exp(joined) == pytest.approx(np.exp(other), abs=1e-14)


@pytest.mark.parametrize("edge", [-700.0, -30.0, -1.0, 0.3, 6.0, 40.0, 900.0])
def test_gaussian_tails_are_exact_relative_to_themselves(edge: float) -> None:
    mu, width = 0.9, 1e-3
    log_p, log_q = Gaussian(mu).cells(np.array([edge, edge + width]))
    with mpmath.workdps(40):
        x, y = (mpmath.mpf(float(e)) / mpmath.mpf(mu) + mpmath.mpf(mu) / 2 for e in (edge, edge + width))
        for found, shift in ((log_p, mpmath.mpf(mu)), (log_q, mpmath.mpf(0))):
            a, b = x - shift, y - shift
            mass = mpmath.quad(mpmath.npdf, mpmath.linspace(a, b, 5))
            below, above = mpmath.erfc(-a / mpmath.sqrt(2)) / 2, mpmath.erfc(b / mpmath.sqrt(2)) / 2
            wanted = [float(mpmath.log(m)) for m in (below, mass, above)]
            assert found.tolist() == pytest.approx(wanted, rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("edges", few([(-0.44, -0.4), (-0.1, 0.2), (2.0, 2.5), (150.0, 151.0)], 0, 3, whole=True))
def test_mixture_cells(edges: tuple[float, float]) -> None:
    log_p, log_q = MIXTURE.cells(np.array(edges))
    with mpmath.workdps(40):
        s = mpmath.mpf(MIXTURE.stddev)

        def density(x: mpmath.mpf) -> mpmath.mpf:
            parts = zip(MIXTURE.shifts, MIXTURE.weights, strict=True)
            return sum(mpmath.mpf(w) * mpmath.npdf(x, k, s) for k, w in parts)

        roots = [
            mpmath.findroot(
                lambda x, e=e: mpmath.log(density(x) / mpmath.npdf(x, 0, s)) - mpmath.mpf(e),
                (-8, 150),
                solver="bisect",
                maxsteps=200,
                verify=False,
            )
            for e in edges
        ]
        grid = mpmath.linspace(*roots, 9)
        assert log_p[1] == pytest.approx(float(mpmath.log(mpmath.quad(density, grid))), rel=1e-11)
        q = mpmath.quad(lambda x: mpmath.npdf(x, 0, s), grid)
        assert log_q[1] == pytest.approx(float(mpmath.log(q)), rel=1e-11)


@pytest.mark.parametrize(
    "pair",
    [
        MIXTURE,
        GaussianMixture((1.0, 2.0), (0.3, 0.7), 0.2),
        GaussianMixture((0.0, 1.0), (1 - 1e-9, 1e-9), 0.3),
        GaussianMixture(tuple(range(60)), (1 / 60,) * 60, 7.0),
        GaussianMixture((48.0,), (1.0,), 0.35),
    ],
)
def test_mixture_inverse(pair: GaussianMixture) -> None:
    x = np.linspace(-30, 60, 1000) * pair.stddev
    losses = pair._loss(x)
    losses = losses[losses > losses[0] + 1e-9]
    assert pair._loss(pair._inverse(losses)) == pytest.approx(losses, abs=1e-12, rel=1e-12)


def test_mixture_losses_below_the_least_are_out_of_reach() -> None:
    log_p, log_q = MIXTURE.cells(np.array([math.log(0.64) - 1e-3, math.log(0.64) + 1e-3]))
    assert (log_p[0], log_q[0]) == (-math.inf, -math.inf)
    # Without weight on 0 no loss is out of reach, however low: here its mass under Q is nearly all.
    sure = GaussianMixture((48.0,), (1.0,), 0.35)
    assert sure.cells(np.array([-2000.0]))[1][0] == pytest.approx(0, abs=1e-12)


def test_lost_mass_has_an_infinite_loss() -> None:
    pair = GaussianMixture((0.0, 1.0), (0.9, 0.1), 1.0, lost=1e-7)
    log_p, log_q = pair.cells(np.array([60.0]))
    assert math.exp(log_p[1]) == pytest.approx(1e-7, rel=1e-9)
    assert log_q[1] < -1000


@pytest.mark.parametrize("mu", [1e-3, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("epsilon", [-2.0, 0.0, 0.7, 5.0])
def test_hockey_stick_of_the_gaussian(mu: float, epsilon: float) -> None:
    wanted = math.exp(log_delta(abs(epsilon), mu))
    # delta(-e) = 1 - exp(-e) + exp(-e) delta(e) for a symmetric pair.
    wanted = wanted if epsilon >= 0 else -math.expm1(epsilon) + math.exp(epsilon) * wanted
    assert hockey_stick(Gaussian(mu), epsilon) == pytest.approx(wanted, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_hockey_stick_of_laplace(scale: float) -> None:
    for share in (0.0, 0.3, 0.99, 1.0, 1.5):
        epsilon = share / scale
        wanted = max(0.0, -math.expm1((epsilon - 1 / scale) / 2))
        assert hockey_stick(Laplace(scale), epsilon) == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("base", [Gaussian(0.8), Laplace(0.6), randomized_response(1.1, 2)])
@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.7, 1.0])
def test_sampling_multiplies_delta_by_the_rate(base: Pair, rate: float) -> None:
    # Theorem 9 of Balle, Barthe and Gaboardi 2018 holds with equality for the pair itself.
    for epsilon in (0.0, 0.1, 0.9):
        sampled = math.log1p(rate * math.expm1(epsilon))
        wanted = rate * hockey_stick(base, epsilon)
        assert hockey_stick(Sampled(base, rate), sampled) == pytest.approx(wanted, rel=1e-9, abs=2e-16)
    # Half the rate is another pair.
    wrong = hockey_stick(Sampled(base, rate / 2), math.log1p(rate * math.expm1(0.1)))
    assert wrong < 0.9 * rate * hockey_stick(base, 0.1)


@pytest.mark.parametrize("name", ["gaussian", "mixture", "sampled gaussian", "sampled laplace", "symmetrized"])
def test_a_reversed_pair_swaps_the_two_distributions(name: str) -> None:
    pair, turned = PAIRS[name], Reversed(PAIRS[name])
    for epsilon in (-0.2, 0.0, 0.003):
        # H(Q, P; e) = 1 - exp(e) + exp(e) H(P, Q; -e), whatever the pair.
        wanted = -math.expm1(epsilon) + math.exp(epsilon) * hockey_stick(pair, -epsilon)
        assert hockey_stick(turned, epsilon) == pytest.approx(wanted, abs=1e-14)
    edges = edges_of(pair, 101)
    for one, other in zip(Reversed(turned).cells(edges), pair.cells(edges), strict=True):
        assert np.exp(one) == pytest.approx(np.exp(other), abs=1e-15)


@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_symmetrized_is_the_worse_order_everywhere(rate: float) -> None:
    # Dong, Roth and Su 2022, C_p(f) = min(f_p, f_p^-1)**: its delta is the larger of both orders' at every epsilon.
    pair = Sampled(Gaussian(1.6), rate)
    both = Symmetrized(pair)
    for epsilon in np.linspace(-1.5, 1.5, 31):
        wanted = max(hockey_stick(pair, epsilon), hockey_stick(Reversed(pair), epsilon))
        assert hockey_stick(both, epsilon) == pytest.approx(wanted, abs=1e-14)
    # It is its own reverse.
    assert hockey_stick(Reversed(both), 0.3) == pytest.approx(hockey_stick(both, 0.3), rel=1e-12)


def test_randomized_response_of_several_bits() -> None:
    pair = randomized_response(0.9, 5)
    a = 1 / (1 + math.exp(-0.9))
    for k, loss, log_p in zip(range(6), pair.losses, pair.log_p, strict=True):
        assert math.exp(log_p) == pytest.approx(math.comb(5, k) * a**k * (1 - a) ** (5 - k), rel=1e-13)
        assert loss == pytest.approx(0.9 * (2 * k - 5))


def test_an_atom_counts_below_its_edge_and_above_it_when_reversed() -> None:
    pair = Atoms((-1.0, 1.0), (math.log(1 / (1 + math.e)), math.log(math.e / (1 + math.e))))
    edges = np.array([-1.0, 0.0, 1.0])
    assert np.isfinite(pair.cells(edges)[0]).tolist() == [True, False, True, False]
    assert np.isfinite(Reversed(pair).cells(edges)[0]).tolist() == [False, True, False, True]
