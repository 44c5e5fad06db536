"""The exact Gaussian mechanism against 50-digit reference values."""

import math
import random
from itertools import pairwise

import pytest

from privctl.accounting.gaussian import (
    delta_at,
    epsilon_at,
    epsilon_floor_at,
    gaussian_guarantee,
    log_delta,
    noise_multiplier_for,
    shift_at,
)
from privctl.domain.guarantee import Adjacency, Status
from verify.recompute import gaussian as ball

# (epsilon, mu, delta), mpmath at 50 digits.
DELTAS = [
    (1, 1, 0.1269367375066439458),
    (0.5, 0.1, 6.8565824558387265598e-9),
    (8, 2, 0.00049540173893874536098),
    (0, 1, 0.38292492254802620728),
    (10, 0.5, 9.8551206108501658811e-89),
    # sensitivity 1, sigma 4.225; and 1000 fold at sigma 5, by ball arithmetic.
    (1, 1 / 4.225, 9.98436381160e-7),
    (50, math.sqrt(1000) / 5, 5.85610378206e-7),
    (8, math.sqrt(1000) / 5, 0.956880730956),
]

# (delta, mu, epsilon)
EPSILONS = [
    (1e-6, 0.5, 2.254084650219740935),
    (1e-6, 1, 4.8865541174622119964),
    (1e-5, 1, 4.3771780956812246277),
    (1e-5, 2, 9.9972561464343003965),
    (1e-6, 0.02, 0.070960682985433157372),
    (1e-9, 0.3, 1.6912523121961991527),
]

# (epsilon, delta, noise multiplier)
MULTIPLIERS = [
    (0.1, 1e-5, 30.74956613197731),
    (1, 1e-5, 3.7306316348159374),
    (1, 1e-6, 4.224678889326841),
    (2, 1e-5, 1.9938124456435367),
    (8, 1e-5, 0.6002290721989519),
    (1, 1e-9, 5.4952661572383015),
]


@pytest.mark.parametrize(("epsilon", "mu", "delta"), DELTAS)
def test_delta_has_its_known_value(epsilon: float, mu: float, delta: float) -> None:
    assert delta_at(epsilon, mu) == pytest.approx(delta, rel=2e-11)


@pytest.mark.parametrize(("delta", "mu", "epsilon"), EPSILONS)
def test_epsilon_has_its_known_value(delta: float, mu: float, epsilon: float) -> None:
    assert epsilon_at(delta, mu) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta", "multiplier"), MULTIPLIERS)
def test_noise_multiplier(epsilon: float, delta: float, multiplier: float) -> None:
    assert noise_multiplier_for(epsilon, delta) == pytest.approx(multiplier, rel=1e-11)


@pytest.mark.parametrize(("epsilon", "delta"), [(e, d) for e, d, _ in MULTIPLIERS])
def test_calibrated_noise_never_exceeds_its_target(epsilon: float, delta: float) -> None:
    assert log_delta(epsilon, shift_at(epsilon, delta)) <= math.log(delta)


def test_classical_formula_violates_its_claim_at_epsilon_10() -> None:
    # sqrt(2 ln(1.25/delta))/eps is a theorem below epsilon 1 only; at 10 its true delta is 1.902e-6, above 1e-6.
    sigma = math.sqrt(2 * math.log(1.25 / 1e-6)) / 10
    assert delta_at(10, 1 / sigma) == pytest.approx(1.902e-6, rel=1e-3)


@pytest.mark.parametrize("mu", [1e-3, 1e-2, 1, 40, 1e3, 1.2e6])
@pytest.mark.parametrize("delta", [1e-3, 1e-10, 1e-100])
def test_epsilon_inverts_delta_at_every_scale(mu: float, delta: float) -> None:
    epsilon = epsilon_at(delta, mu)
    if epsilon:
        # one rounding of epsilon moves log delta by about epsilon * 1e-16 * (slope ~ a few / mu); a few are kept clear
        slack = 1e-9 + 30 * epsilon * 2.3e-16 * (10 + math.sqrt(-math.log(delta))) / mu
        assert log_delta(epsilon, mu) == pytest.approx(math.log(delta), abs=slack)


def test_more_shift_is_never_more_private() -> None:
    shifts = [10 ** (k / 4) for k in range(-16, 12)]
    for epsilon in (0, 0.1, 1, 30):
        found = [log_delta(epsilon, mu) for mu in shifts]
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(found))


def test_no_shift_leaks_nothing() -> None:
    assert delta_at(0, 0) == 0
    assert epsilon_at(1e-6, 0) == 0
    assert epsilon_at(0.5, 1) == 0  # delta(0, 1) is 0.383


@pytest.mark.parametrize("bad", [{"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}])
def test_delta_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon_at(bad["delta"], 1)


@pytest.mark.parametrize("sensitivity", [1e200, math.inf])
def test_a_hopeless_shift_has_no_finite_bound(sensitivity: float) -> None:
    g = gaussian_guarantee(
        name="x",
        sensitivity=sensitivity,
        noise_stddev=0.1,
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
        status=Status.PROVED,
        assumptions=(),
    )
    assert g.epsilon is None


def test_guarantee_carries_its_terms() -> None:
    g = gaussian_guarantee(
        name="x",
        sensitivity=0.2,
        noise_stddev=0.1,
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
        status=Status.PROVED,
        assumptions=(),
    )
    assert g.epsilon == pytest.approx(9.9972561464343003965, rel=1e-12)
    assert (g.noise_multiplier, g.sensitivity, g.adjacency) == (0.5, 0.2, Adjacency.ZERO_OUT)


def test_what_is_stated_is_on_the_safe_side_by_ball_arithmetic() -> None:
    drawn = random.Random(3)
    for _ in range(300):
        mu, delta = math.exp(drawn.uniform(math.log(1e-6), math.log(2e5))), 10 ** drawn.uniform(-14, -0.5)
        epsilon = epsilon_at(delta, mu)
        assert ball.delta_at(epsilon, math.nextafter(mu, math.inf)).upper <= delta
        floor = epsilon_floor_at(delta, mu)
        assert floor <= epsilon
        assert floor == 0 or ball.delta_at(math.nextafter(floor, 0), mu).lower >= delta * (1 - 1e-15)
        if epsilon > 0:
            noise = noise_multiplier_for(epsilon, delta)
            assert ball.delta_at(epsilon, 1 / noise).upper <= delta
            sensitivity = 0.0123456789  # two roundings more
            assert epsilon_at(delta, sensitivity / (sensitivity * noise)) <= epsilon
