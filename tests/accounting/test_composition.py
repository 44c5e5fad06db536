"""Composition theorems against 50-digit sums and independent figures."""

import math

import mpmath as mp
import pytest

from privctl.accounting import composition, gaussian
from privctl.accounting.composition import (
    LEAST_NOISE,
    advanced,
    advanced_as_printed,
    advanced_epsilon,
    advanced_noise_multiplier,
    amplified_epsilon,
    naive_epsilon,
    naive_noise_multiplier,
    optimal_epsilon,
    optimal_noise_multiplier,
)
from tests.accounting.theorems import advanced_tanh, optimal
from tests.few import few

# (sigma, rate, steps, delta, naive, advanced at its printed digits, the share of delta it was computed at)
EPSILONS = [
    (1, 0.01, 1000, 1e-5, 839.4, 840.6, 0.99),
    (1, 0.005, 1000, 1e-5, 448.8, 336.0, 0.99),
    (0.8, 0.02, 500, 1e-5, 1243, 1244, 0.99),
    (2, 0.05, 2000, 1e-6, 1061, 887.6, 0.99),
    (1.1, 256 / 60000, 14062, 1e-5, 5446, 2845, 0.99),
    (0.6, 0.001, 10000, 1e-6, 27599, 27629, 0.99),
]

# (rate, steps, delta, epsilon, naive sigma, advanced sigma at a share of 0.7)
SIGMAS = [
    (0.01, 1000, 1e-5, 1, 37.953152, 8.634290),
    (0.01, 1000, 1e-5, 8, 6.908482, 2.742210),
    (0.005, 1000, 1e-5, 1, 19.839208, 5.147132),
    (0.05, 1000, 1e-5, 2, 96.176718, 20.038809),
]

EPSILON_OF = (naive_epsilon, advanced_epsilon, optimal_epsilon)
SIGMA_OF = (naive_noise_multiplier, advanced_noise_multiplier, optimal_noise_multiplier)


def exact_optimal(epsilon0: float, delta0: float, steps: int, delta: float) -> float:
    """Kairouz, Oh and Viswanath, theorem 3.3, at 50 digits."""
    with mp.workdps(50):
        e = mp.mpf(epsilon0)
        slack = 1 - (1 - mp.mpf(delta)) / (1 - mp.mpf(delta0)) ** steps
        scale = (1 + mp.exp(e)) ** steps
        terms = [(mp.binomial(steps, j) * mp.exp((steps - j) * e) / scale, (steps - 2 * j) * e) for j in range(steps)]
        low, high = mp.mpf(0), steps * e
        for _ in range(60):
            middle = (low + high) / 2
            fits = sum(p * (1 - mp.exp(middle - x)) for p, x in terms if x > middle) <= slack
            low, high = (low, middle) if fits else (middle, high)
        return float(high)


def test_a_thousand_steps_of_epsilon_1() -> None:
    assert advanced_as_printed(1, 1000, 1e-8) == pytest.approx(191.94103648752323, rel=1e-14)
    assert advanced(1, 1000, 1e-8) == pytest.approx(1910.2228649465683, rel=1e-14)
    assert advanced_tanh(1, 1000, 1e-8) == pytest.approx(654.058193747533, rel=1e-14)
    # The slack left, 1e-8 of 1.001e-5, must not be found by subtraction: 613.53130 is what floats make of that.
    assert optimal(1, 1e-8, 1000, 1.001e-5) == pytest.approx(613.53128406466, rel=1e-12)
    assert optimal(1, 1e-8, 1000, 2e-5) == pytest.approx(577.83316552129, rel=1e-12)
    # For Gaussians calibrated to (1, 1e-8) the truth is far below what their epsilon and delta alone can tell.
    shift = gaussian.shift_at(1, 1e-8)
    assert shift == pytest.approx(0.1960665602139555, rel=1e-12)
    assert gaussian.epsilon_at(1.001e-5, math.sqrt(1000) * shift) == pytest.approx(44.9037382683936, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon0", "delta0", "steps", "delta"),
    [(1, 1e-8, 300, 1e-5), (0.01, 0, 500, 1e-9), (3, 1e-12, 20, 1e-3), (0.2, 0, 1, 1e-6), (0.1, 1e-20, 400, 1e-15)],
)
def test_optimal_is_exact_and_never_below(epsilon0: float, delta0: float, steps: int, delta: float) -> None:
    found, expected = optimal(epsilon0, delta0, steps, delta), exact_optimal(epsilon0, delta0, steps, delta)
    assert found == pytest.approx(expected, rel=1e-10)
    assert found >= expected
    assert optimal(epsilon0 / 2, delta0, steps, delta) < expected  # what half the loss a step would give


def test_optimal_is_no_worse_than_any_other_theorem() -> None:
    for epsilon0 in (1e-3, 0.1, 1, 5):
        for steps in (1, 10, 1000, 10**5):
            best = optimal(epsilon0, 0, steps, 1e-6)
            assert best <= min(steps * epsilon0, *(f(epsilon0, steps, 1e-6) for f in (advanced, advanced_tanh)))


def test_the_printed_advanced_formula_is_refuted() -> None:
    assert advanced_as_printed(1, 1000, 1e-8) < optimal(1, 1e-8, 1000, 1.001e-5)


@pytest.mark.filterwarnings("error")
def test_a_million_steps() -> None:
    assert optimal(1, 1e-20, 10**6, 1e-12) == pytest.approx(470160, rel=1e-2)
    assert optimal(1e-3, 0, 10**6, 1e-300) < advanced_tanh(1e-3, 10**6, 1e-300)
    assert optimal(1e4, 0, 10**6, 1e-300) == pytest.approx(1e10)
    assert optimal(1e-6, 0, 10**6, 0.5) == 0


def test_steps_whose_deltas_exceed_the_total() -> None:
    with pytest.raises(ValueError, match="no epsilon holds"):
        optimal(1, 1e-6, 1000, 1e-4)


def test_amplification_by_sampling() -> None:
    assert amplified_epsilon(1, 0.01) == pytest.approx(math.log1p(0.01 * math.expm1(1)), rel=1e-15)
    assert amplified_epsilon(1, 1) == 1
    assert amplified_epsilon(1e4, 0) == 0
    assert amplified_epsilon(1e4, 0.01) == pytest.approx(1e4 + math.log(0.01), rel=1e-15)
    assert amplified_epsilon(1e-300, 0.5) == pytest.approx(5e-301, rel=1e-15)
    with mp.workdps(400):
        for epsilon0, rate in ((699.9, 0.3), (700.1, 0.3), (720, 1e-320), (701, 1e-300)):
            expected = mp.log(1 + mp.mpf(rate) * mp.expm1(mp.mpf(epsilon0)))
            assert amplified_epsilon(epsilon0, rate) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta", "naive", "by_advanced", "share"), few(EPSILONS, 0, 3))
def test_epsilon_of_a_sampled_gaussian(
    sigma: float, rate: float, steps: int, delta: float, naive: float, by_advanced: float, share: float
) -> None:
    found = [f(sigma, rate, steps, delta) for f in EPSILON_OF]
    digits = 0.051 if naive < 1000 else 0.51
    assert found[0] == pytest.approx(naive, abs=digits)
    step = amplified_epsilon(gaussian.epsilon_at(delta * share / steps / rate, 1 / sigma), rate)
    at_share = min(steps * step, advanced(step, steps, delta * (1 - share)))
    assert at_share == pytest.approx(by_advanced, abs=0.051 if by_advanced < 1000 else 0.51)
    assert at_share * 0.995 < found[1] <= min(at_share, found[0])
    assert found[2] <= found[1]
    assert naive_epsilon(sigma, rate / 2, steps, delta) < naive - digits


@pytest.mark.parametrize(
    ("rate", "steps", "delta", "epsilon", "naive", "by_advanced"),
    [SIGMAS[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in SIGMAS[1:])],
)
def test_noise_for_a_sampled_gaussian(
    rate: float, steps: int, delta: float, epsilon: float, naive: float, by_advanced: float
) -> None:
    found = [f(epsilon, rate, steps, delta) for f in SIGMA_OF]
    assert found[0] == pytest.approx(naive, abs=6e-7)
    at_share = composition._noise_by(lambda e, slack: advanced(e, steps, slack) <= epsilon, epsilon, rate, steps, delta)
    assert at_share(0.7, 0.3) == pytest.approx(by_advanced, abs=6e-7)
    assert by_advanced * 0.998 < found[1] <= by_advanced
    assert found[2] < found[1]
    for epsilon_of, sigma in zip(EPSILON_OF, found, strict=True):
        assert epsilon_of(sigma, rate, steps, delta) <= epsilon
        assert epsilon_of(sigma * (1 - 1e-4), rate, steps, delta) > epsilon
        assert epsilon_of(sigma / 2, rate, steps, delta) > epsilon


def test_optimal_composition_of_a_sampled_gaussian_holds_at_50_digits() -> None:
    # With the split that was chosen unknown, the truth is bounded by the best over a fine grid at 50 digits.
    sigma, rate, steps, delta = 1.0, 0.01, 50, 1e-5
    grid = []
    for share in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97):
        step = delta * share / steps
        epsilon1 = amplified_epsilon(gaussian.epsilon_at(step / rate, 1 / sigma), rate)
        grid.append(exact_optimal(epsilon1, step, steps, delta))
    assert optimal_epsilon(sigma, rate, steps, delta) == pytest.approx(min(grid), rel=2e-3)
    assert optimal_epsilon(sigma, rate, steps, delta) <= min(grid) * (1 + 1e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (1e-3, 0.01, 10**6, 1e-300),
        (1e-3, 1, 10**6, 1e-5),
        (1, 1, 1, 1e-300),
        (1e9, 1e-3, 10, 1e-5),
        (1, 1e-7, 1000, 1e-5),
        (1e-160, 0.5, 10, 1e-5),
    ],
)
def test_hostile_parameters(sigma: float, rate: float, steps: int, delta: float) -> None:
    by_naive, by_advanced, by_optimal = (f(sigma, rate, steps, delta) for f in EPSILON_OF)
    assert 0 <= by_optimal <= by_advanced <= by_naive


def test_delta_that_covers_every_participation() -> None:
    for f in EPSILON_OF:
        assert f(1e-3, 0, 10, 1e-300) == 0
        assert f(1e-3, 1e-7, 10, 1e-5) == 0
    for g in SIGMA_OF:
        assert g(1e-6, 0, 10, 1e-300) == LEAST_NOISE
        assert g(1e-6, 1e-7, 10, 1e-5) == LEAST_NOISE


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("index", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_hostile_targets(index: int) -> None:
    sigma_of, epsilon_of = SIGMA_OF[index], EPSILON_OF[index]
    for epsilon, rate, steps, delta in [(1e4, 1, 1, 1e-5), (1e4, 0.01, 1000, 1e-300), (1e-6, 0.001, 10, 1e-5)]:
        assert epsilon_of(sigma_of(epsilon, rate, steps, delta), rate, steps, delta) <= epsilon
    with pytest.raises(ValueError, match="noise multiplier above 1e"):
        sigma_of(1e-6, 1, 10**6, 1e-12)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 0.1, 10, 1e-5), "is 0"),
        ((math.nan, 0.1, 10, 1e-5), "nan"),
        ((1, 1.5, 10, 1e-5), "sample_rate"),
        ((1, 0.1, 0, 1e-5), "steps"),
        ((1, 0.1, 10, 0), "delta"),
        ((1, 0.1, 10, 1), "delta"),
        ((1, 0.1, 10**9, 1e-300), "too small for floating point"),
    ],
)
def test_arguments_out_of_range(arguments: tuple[float, float, int, float], named: str) -> None:
    for f in EPSILON_OF + SIGMA_OF:
        with pytest.raises(ValueError, match=named):
            f(*arguments)
