"""The formulas of privacy against numbers from elsewhere: mpmath at 50 digits, dp-accounting, published tables."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest

from tests.few import few
from verify.prove.enclosures import composition, gaussian, information
from verify.prove.enclosures.composition import RepeatedRelease
from verify.prove.enclosures.enclosure import Interval
from verify.prove.enclosures.mixture import mixture_divergence, two_contents_advantage
from verify.prove.enclosures.sampled import gaussian_ceiling, gaussian_floor, laplace_floor

mpmath.mp.dps = 50

#: (epsilon, mu, delta), mpmath at 50 digits.
DELTAS = [
    ("1", "1", "0.1269367375066439458"),
    ("0.5", "0.1", "6.8565824558387265598e-9"),
    ("8", "2", "0.00049540173893874536098"),
    ("0", "1", "0.38292492254802620728"),
    ("10", "0.5", "9.8551206108501658811e-89"),
]
EPSILONS = [
    ("1e-6", "0.5", "2.254084650219740935"),
    ("1e-6", "1", "4.8865541174622119964"),
    ("1e-5", "1", "4.3771780956812246277"),
    ("1e-5", "2", "9.9972561464343003965"),
    ("1e-6", "0.02", "0.070960682985433157372"),
    ("1e-9", "0.3", "1.6912523121961991527"),
]
MULTIPLIERS = [
    ("0.1", "1e-5", 30.74956613197731),
    ("1", "1e-5", 3.7306316348159374),
    ("1", "1e-6", 4.224678889326841),
    ("2", "1e-5", 1.9938124456435367),
    ("8", "1e-5", 0.6002290721989519),
    ("1", "1e-9", 5.4952661572383015),
]
THOUSAND = RepeatedRelease(epsilon=Fraction(1), delta=Fraction(1, 10**8), count=1000)


def near(box: Interval, value: float | str, relative: float) -> bool:
    target = Fraction(value)
    return abs((box.low + box.high) / 2 - target) <= abs(target) * Fraction(relative)


@pytest.mark.parametrize(("epsilon", "shift", "delta"), DELTAS)
def test_gaussian_delta(epsilon: str, shift: str, delta: str) -> None:
    assert near(gaussian.delta(Fraction(epsilon), Fraction(shift) ** 2), delta, 1e-18)


@pytest.mark.parametrize(("delta", "shift", "epsilon"), EPSILONS)
def test_gaussian_epsilon(delta: str, shift: str, epsilon: str) -> None:
    found = gaussian.epsilon(Fraction(delta), Fraction(shift) ** 2)
    assert found.low <= Fraction(epsilon) <= found.high
    assert found.high - found.low < Fraction(2, 10**14)


@pytest.mark.parametrize(("epsilon", "delta", "multiplier"), MULTIPLIERS)
def test_least_noise_is_certified_from_both_sides(epsilon: str, delta: str, multiplier: float) -> None:
    found = gaussian.minimal_multiplier(Fraction(epsilon), Fraction(delta))
    assert near(found, multiplier, 1e-13)
    assert gaussian.delta(Fraction(epsilon), 1 / found.high**2).high <= Fraction(delta)
    assert gaussian.delta(Fraction(epsilon), 1 / found.low**2).low > Fraction(delta)


def test_composition_is_one_gaussian() -> None:
    assert near(gaussian.delta(50, Fraction(1000, 25)), "5.85610378206e-7", 1e-11)
    assert near(gaussian.delta(8, Fraction(1000, 25)), "0.956880730956", 1e-11)
    assert not near(gaussian.delta(8, Fraction(1001, 25)), "0.956880730956", 1e-11)


def test_a_gaussian_bit_is_bounded() -> None:
    """A Gaussian at (0.5, 1e-5) tells 0.0025216111 nats of a fair bit, by numerical integration."""
    noise = gaussian.minimal_multiplier(Fraction(1, 2), Fraction(1, 10**5))
    bound = gaussian.flipped_bit_information(1 / noise.low**2)
    assert Fraction("0.0025216111") < bound.low < Fraction("0.00253")


def test_published_composition_numbers() -> None:
    assert near(composition.as_printed(THOUSAND), "191.94103648752323", 1e-16)
    assert THOUSAND.total_delta == Fraction("1.001e-5")
    assert near(composition.advanced(THOUSAND), 1910.2228649465683, 1e-14)
    assert near(composition.advanced_mean(THOUSAND), 654.058193747533, 1e-14)


def kov(k: int, delta: str, total: str) -> mpmath.mpf:
    """Theorem 3.3 of Kairouz, Oh and Viswanath 2015 at any epsilon, at 50 digits, by bisection."""
    agree = [mpmath.binomial(k, flips) * mpmath.e ** (k - flips) / (1 + mpmath.e) ** k for flips in range(k // 2 + 1)]
    differ = [mpmath.binomial(k, flips) * mpmath.e**flips / (1 + mpmath.e) ** k for flips in range(k // 2 + 1)]

    def needed(epsilon: mpmath.mpf) -> mpmath.mpf:
        kept = [flips for flips in range(k // 2 + 1) if k - 2 * flips > epsilon]
        tilde = mpmath.fsum(agree[f] - mpmath.exp(epsilon) * differ[f] for f in kept)
        return 1 - (1 - mpmath.mpf(delta)) ** k * (1 - tilde)

    low, high = mpmath.mpf(0), mpmath.mpf(k)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > mpmath.mpf(total) else (low, middle)
    return high


@pytest.mark.parametrize(("total", "double"), few([("1.001e-5", 613.5312994522207), ("2e-5", 577.8331655350944)], 0))
def test_worst_composition(total: str, double: float) -> None:
    found = composition.worst_case_epsilon(THOUSAND, Fraction(total))
    # In doubles (1 - 1e-8)^1000 loses what delta is made of: the reference of that kind has seven digits.
    assert near(found, double, 1e-7)
    assert near(found, str(kov(1000, "1e-8", total)), 1e-13)


def test_worst_composition_has_no_answer_below_its_own_deltas() -> None:
    with pytest.raises(ValueError, match="add up to more"):
        composition.worst_case_epsilon(THOUSAND, Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("p", "r", "nats"),
    [
        ("0.1", "0.001", 0.366593004807),
        ("0.5", "0.001", 2.761230709098),
        ("0.02", "0.001", 0.041096482627),
        ("0.9", "0.1", 1.757779661869),
        ("0.9", "1e-6", 12.108876628776),
    ],
)
def test_binary_divergence_and_its_inverse(p: str, r: str, nats: float) -> None:
    found = information.divergence(Fraction(p), Fraction(r))
    assert near(found, nats, 1e-11)
    assert near(information.posterior(found.high, Fraction(r)), p, 1e-13)


def test_posteriors_are_enclosed_tightly() -> None:
    assert near(information.posterior(Fraction(1, 10), Fraction(1, 10)), 0.256866401710, 1e-11)
    assert near(information.posterior(Fraction(1), Fraction(1, 1000)), 0.221137660466, 1e-11)
    assert information.posterior(Fraction(1), Fraction(1, 2)).high == 1  # a fair bit has no more than ln 2


@pytest.mark.parametrize(
    ("nats", "advantage"), [("0.01", 0.1411851405), ("0.1", 0.4395892523), ("0.5", 0.9036225083), ("0.6", 0.9624931562)]
)
def test_advantage_that_a_budget_allows(nats: str, advantage: float) -> None:
    assert near(information.advantage_allowed(Fraction(nats)), advantage, 1e-9)


@pytest.mark.parametrize(("nats", "chance"), [("0.01", 0.0269502194), ("0.25", 0.5471508572), ("0.6", 0.9539083629)])
def test_revealing_channel(nats: str, chance: float) -> None:
    assert near(information.revealing_channel(Fraction(chance)), nats, 1e-8)


@pytest.mark.parametrize(
    ("groups", "nats", "poisson"), [(2, "0.1", 0.13345313), (2, "0.5", 0.50121107), (148, "0.5", 0.48944574)]
)
def test_sign_bits_give_a_record_away(groups: int, nats: str, poisson: float) -> None:
    chance = information.fire_probability(Fraction(nats), groups, 1000, Fraction(5, 1000)).high
    assert near(information.reveal(groups, 1000, Fraction(5, 1000), chance), poisson, 1e-7)


def test_sign_bits_budget() -> None:
    assert near(information.sign_bits(2, 1000, Fraction(5, 1000), 1), 6.931471805599453, 1e-15)
    assert near(
        information.fire_probability(Fraction(1, 2), 148, 1000, Fraction(5, 1000)), 0.0009747939465465969, 1e-15
    )


@pytest.mark.parametrize(
    ("chances", "noise", "nats"),
    [
        (["0.01"], "1", 8.38122076508e-05),
        (["0.1"] * 3, "1", 0.0623886341498),
        (["0.005"] * 8, "0.5", 0.0150818087223),
        (["0.02", "0.05", "0.1", "0.2"], "0.8", 0.158499178449),
        (["0.001"] * 50, "1", 0.00206370743118),
        (["0.3"] * 10, "5", 0.181674018239),
        (["1"], "1", 0.5),
        (["0.0001"], "0.7", 3.34134725726e-08),
    ],
)
def test_divergence_of_a_secret(chances: list[str], noise: str, nats: float) -> None:
    assert near(mixture_divergence([Fraction(p) for p in chances], Fraction(noise)), nats, 1e-11)


@pytest.mark.parametrize(
    ("chances", "noise", "success"),
    [
        (["1"], "1", 0.8413447461),
        (["0.3"], "0.7", 0.6270308822),
        (["0.3"] * 3, "1", 0.7541968105),
        (["0.01"], "0.5", 0.5047724987),
    ],
)
def test_best_guess_between_two_contents(chances: list[str], noise: str, success: float) -> None:
    advantage = two_contents_advantage([Fraction(p) for p in chances], Fraction(noise))
    assert near(Interval(low=(1 + advantage.low) / 2, high=(1 + advantage.high) / 2), success, 1e-9)


#: Noise multiplier, rate, steps, delta; a certified lower and upper bound of dp-accounting's distributions.
SAMPLED = [
    ("1.358992", "0.01", 1000, "1e-5", 1.012647, 1.062653),
    ("0.6", "0.001", 10000, "1e-6", 2.6818352, 3.152227),
    # The last two rows are the first with other noise multipliers.
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ("0.8", "0.02", 500, "1e-5", 4.6430123, 4.6680134),
            ("1", "0.01", 1000, "1e-5", 1.7782397, 1.8282436),
            ("0.545637", "0.01", 1000, "1e-5", 10.017233, 10.067406),
        )
    ),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "lower", "upper"), few(SAMPLED, 0))
def test_floors_of_sampled_gaussians(noise: str, rate: str, steps: int, delta: str, lower: float, upper: float) -> None:
    floor = gaussian_floor(Fraction(noise), Fraction(rate), steps, Fraction(delta))
    assert floor is not None
    assert lower < floor.epsilon < upper
    assert math.log((floor.p - Fraction(delta)) / floor.q) == pytest.approx(float(floor.epsilon))
    assert gaussian_ceiling(Fraction(noise), Fraction(rate), steps, Fraction(delta)).high > upper


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "epsilon"),
    [
        ("1", "0.01", 1000, "1e-5", 2.1013665),
        ("2", "0.05", 2000, "1e-6", 6.5403175),
        ("0.8", "0.02", 500, "1e-5", 5.3718632),
    ],
)
def test_ceilings_of_sampled_gaussians(noise: str, rate: str, steps: int, delta: str, epsilon: float) -> None:
    """dp-accounting tries fractional orders too, so whole ones may be a little above it and not below."""
    assert (
        1 - 1e-6
        <= float(gaussian_ceiling(Fraction(noise), Fraction(rate), steps, Fraction(delta)).high) / epsilon
        < 1.006
    )


def test_a_floor_is_that_of_its_own_event() -> None:
    """One full-batch step, whose best event is known: the floor comes close to it and not above."""
    floor = gaussian_floor(Fraction(1), Fraction(999_999, 10**6), 1, Fraction(1, 10**5))
    assert floor is not None
    assert 4.36 < floor.epsilon < Fraction("4.3771780956812246277")


def test_floors_of_laplace_noise() -> None:
    floor = laplace_floor(Fraction(1), 1, 10, Fraction(1, 10**5))
    assert floor is not None
    assert 9.98 < floor.epsilon < 10
    # One use needs delta 1 - e^((epsilon - 1)/2): 0.0487705755 at epsilon 0.9.
    single = laplace_floor(Fraction(1), 1, 1, Fraction("0.0487705755"))
    assert single is not None
    assert 0.88 < single.epsilon < Fraction("0.90000001")
    assert laplace_floor(Fraction(10**6), 1, 1, Fraction(1, 10)) is None


@pytest.mark.parametrize("noise", ["0.00001", pytest.param("0.01", marks=pytest.mark.slow)])
def test_hardly_any_noise_overflows_nothing(noise: str) -> None:
    for floor in (gaussian_floor, laplace_floor):
        found = floor(Fraction(noise), Fraction(1, 1000), 1000, Fraction(1, 10**5))
        assert found is not None
        assert found.epsilon > 5
