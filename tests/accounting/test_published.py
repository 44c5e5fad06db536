"""Published numbers are reproduced as published, and shown not to be bounds."""

import math

import mpmath as mp
import pytest

from privctl.accounting import composition, gaussian
from privctl.accounting.published import (
    clt_epsilon,
    clt_noise_multiplier,
    clt_shift,
    poster_advanced_epsilon,
    poster_advanced_epsilon_as_printed,
    poster_advanced_noise_multiplier,
    poster_advanced_noise_multiplier_as_printed,
    poster_naive_epsilon,
    poster_naive_holds,
    poster_naive_noise_multiplier,
)
from tests.accounting.theorems import classical_noise_multiplier, optimal

# (sigma, rate, steps, delta, epsilon of the central limit)
CLT_EPSILONS = [
    (1, 0.01, 1000, 1e-5, 1.6177118),
    (1, 0.005, 1000, 1e-5, 0.75437716),
    (0.8, 0.02, 500, 1e-5, 3.7203809),
    (2, 0.05, 2000, 1e-6, 5.9733375),
    (1.1, 256 / 60000, 14062, 1e-5, 2.3242689),
    (0.6, 0.001, 10000, 1e-6, 1.7097653),
]

# (rate, steps, delta, epsilon, the poster's naive sigma, sigma of the central limit)
SIGMAS = [
    (0.01, 1000, 1e-5, 1, 52.988025, 1.358992),
    (0.01, 1000, 1e-5, 8, 6.623503, 0.545637),
    (0.005, 1000, 1e-5, 1, 25.831673, 0.859295),
    (0.05, 1000, 1e-5, 2, 139.857481, 3.229587),
]

# (rate, steps, delta, epsilon) -> sigma by the central limit
CLT_SIGMAS = [(0.005, 1000, 1e-5, 0.5, 1.298867), (0.005, 1000, 1e-5, 2, 0.645023), (0.005, 1000, 1e-5, 8, 0.460349)]

PAIRS = [
    (poster_naive_noise_multiplier, poster_naive_epsilon),
    (poster_advanced_noise_multiplier, poster_advanced_epsilon),
    (poster_advanced_noise_multiplier_as_printed, poster_advanced_epsilon_as_printed),
    (clt_noise_multiplier, clt_epsilon),
]


def test_classical_noise() -> None:
    sigma = classical_noise_multiplier(0.5, 1e-5)
    assert gaussian.delta_at(0.5, 1 / sigma) <= 1e-5 < gaussian.delta_at(0.5, 2 / sigma)


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta", "epsilon"), CLT_EPSILONS)
def test_central_limit_epsilon(sigma: float, rate: float, steps: int, delta: float, epsilon: float) -> None:
    assert clt_epsilon(sigma, rate, steps, delta) == pytest.approx(epsilon, abs=6e-8)
    with mp.workdps(50):
        shift = mp.mpf(rate) * mp.sqrt(steps * mp.expm1(1 / mp.mpf(sigma) ** 2))
    assert clt_shift(sigma, rate, steps) == pytest.approx(float(shift), rel=1e-14)
    assert clt_epsilon(sigma, rate / 2, steps, delta) < epsilon * 0.6


@pytest.mark.parametrize(("rate", "steps", "delta", "epsilon", "poster", "clt"), SIGMAS)
def test_sigma_for_epsilon(rate: float, steps: int, delta: float, epsilon: float, poster: float, clt: float) -> None:
    assert poster_naive_noise_multiplier(epsilon, rate, steps, delta) == pytest.approx(poster, abs=6e-7)
    assert clt_noise_multiplier(epsilon, rate, steps, delta) == pytest.approx(clt, abs=6e-7)


@pytest.mark.parametrize(("rate", "steps", "delta", "epsilon", "sigma"), CLT_SIGMAS)
def test_central_limit_sigma(rate: float, steps: int, delta: float, epsilon: float, sigma: float) -> None:
    assert clt_noise_multiplier(epsilon, rate, steps, delta) == pytest.approx(sigma, abs=6e-7)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 30, 1e4])
def test_directions_are_inverse(pair: tuple, epsilon: float) -> None:  # type: ignore[type-arg]
    sigma_of, epsilon_of = pair
    sigma = sigma_of(epsilon, 0.01, 1000, 1e-5)
    assert epsilon_of(sigma, 0.01, 1000, 1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_the_posters_naive_formula_is_basic_composition_of_the_classical_gaussian() -> None:
    # 10 participations, each (epsilon / 10, delta / 10).
    expected = classical_noise_multiplier(0.4 / 10, 1e-5 / 10)
    assert poster_naive_noise_multiplier(0.4, 0.01, 1000, 1e-5) == pytest.approx(expected, rel=1e-14)


def test_where_the_posters_naive_formula_holds() -> None:
    assert poster_naive_holds(8, 0.01, 1000)
    assert not poster_naive_holds(10, 0.01, 1000)
    assert not poster_naive_holds(1, 0.015, 100)  # one participation and a half
    # Far outside, ten participations have a delta of 0.03 where 1e-5 is claimed.
    sigma = poster_naive_noise_multiplier(500, 0.01, 1000, 1e-5)
    assert gaussian.delta_at(500, math.sqrt(10) / sigma) == pytest.approx(0.0308, rel=1e-2)


def test_the_literal_advanced_formula_is_upside_down() -> None:
    rate, steps, delta, epsilon = 0.01, 1000, 1e-5, 1.0
    factor = 2 * math.sqrt(2 * 10 * math.log(2 / delta))
    printed = poster_advanced_noise_multiplier_as_printed(epsilon, rate, steps, delta)
    right = poster_advanced_noise_multiplier(epsilon, rate, steps, delta)
    assert printed == pytest.approx(classical_noise_multiplier(epsilon * factor, delta / 20), rel=1e-13)
    assert right == pytest.approx(classical_noise_multiplier(epsilon / factor, delta / 20), rel=1e-13)
    # Ten exact Gaussians on fixed batches: the literal reading is far from private, the other wasteful.
    assert gaussian.delta_at(epsilon, math.sqrt(10) / printed) > 0.99
    assert gaussian.delta_at(epsilon, math.sqrt(10) / right) < delta
    # More participations, less noise: what gives the inversion away.
    assert poster_advanced_noise_multiplier_as_printed(epsilon, rate, 100 * steps, delta) < printed


def test_the_advanced_simplification_is_no_bound_above_epsilon_1() -> None:
    # What it allows a participation, composed as it says, with all that composition needs.
    epsilon, participations, slack = 3000.0, 10, 5e-6
    step = epsilon / (2 * math.sqrt(2 * participations * math.log(1 / slack)))
    assert optimal(step, 0, participations, slack) < epsilon  # basic composition saves it here
    assert composition.advanced(step, participations, slack) > epsilon
    participations = 10**4
    step = epsilon / (2 * math.sqrt(2 * participations * math.log(1 / slack)))
    assert optimal(step, 0, participations, slack) > epsilon


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sigma", [1e-300, 1e-160, 1e-3, 1, 1e160, 1e300])
@pytest.mark.parametrize("rate", [1e-300, 0.01, 1])
def test_hostile_parameters(sigma: float, rate: float) -> None:
    for _, epsilon_of in PAIRS[3:] if rate < 1e-200 else PAIRS:
        for steps in (1, 10**6):
            for delta in (1e-300, 0.4):
                try:
                    assert epsilon_of(sigma, rate, steps, delta) >= 0
                except ValueError as error:
                    assert "so few participations" in str(error)


@pytest.mark.filterwarnings("error")
def test_little_noise_overflows_to_infinity_or_not_at_all() -> None:
    assert clt_shift(0.04, 1e-3, 100) == pytest.approx(1e-2 * math.exp(0.5 / 0.04**2), rel=1e-12)
    assert clt_epsilon(1e-3, 0.01, 100, 1e-5) == math.inf
    assert clt_noise_multiplier(1e4, 1e-300, 1, 1e-300) > 0
    assert clt_shift(1e200, 0.5, 4) == pytest.approx(1e-200, rel=1e-14)


def test_nothing_sampled() -> None:
    assert clt_epsilon(1, 0, 10, 1e-5) == 0
    with pytest.raises(ValueError, match="sample_rate is 0"):
        clt_noise_multiplier(1, 0, 10, 1e-5)
    for sigma_of, epsilon_of in PAIRS[:3]:
        for f in (sigma_of, epsilon_of):
            with pytest.raises(ValueError, match="so few participations"):
                f(1, 0, 10, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 0.1, 10, 1e-5), "is 0"),
        ((math.inf, 0.1, 10, 1e-5), "inf"),
        ((1, -0.1, 10, 1e-5), "sample_rate"),
        ((1, 0.1, 0, 1e-5), "steps"),
        ((1, 0.1, 10, 0), "delta"),
    ],
)
def test_arguments_out_of_range(arguments: tuple[float, float, int, float], named: str) -> None:
    for functions in PAIRS:
        for f in functions:
            with pytest.raises(ValueError, match=named):
                f(*arguments)
