"""Randomized response on sampled bits against exact enumeration and 50-digit sums."""

import math
from itertools import product

import mpmath as mp
import pytest

from privctl.accounting import three_point as pair
from privctl.accounting.randomized_response import three_point
from tests.accounting.theorems import exact_epsilon, most_steps, one_bit_epsilon
from tests.few import few

# (epsilon0, e1, w, epsilon of 1000 bits at delta 1e-5), sample rate 0.005, one bit a step.
ONE_BIT = [
    (0.5, 0.0032383572101194647, 0.7563059309083097, 0.30005029),
    (1, 0.008554713017922183, 0.5401934285262904, 0.72041534),
    (2, 0.0314456428771151, 0.2422138148240138, 1.94699496),
    (3, 0.09114486657005863, 0.09937748762335791, 3.93983818),
]

# The steps at epsilon0 0.5, 1, 2, 3, 5, found elsewhere to 2e-4 relative.
STEPS = {
    0.5: (2551, 512, 83, 19, 0),
    1: (9060, 1818, 298, 81, 1),
    2: (31716, 6364, 1048, 297, 18),
    8: (349952, 70208, 11586, 3351, 431),
}

# The bits a step, over 1000 steps, at epsilon0 0.1, 0.25, 0.5, 1, 2.
BITS = {0.5: (13, 4, 1, 0, 0), 1: (21, 7, 3, 1, 0), 2: (31, 11, 5, 2, 1), 8: (53, 20, 9, 4, 2)}

HOSTILE = [
    (1, 1, 1.0, 10**6, 1e-300),
    (800, 1, 0.01, 1000, 1e-5),
    (1e4, 3, 0.5, 10**6, 1e-5),
    (1e-6, 1, 1e-300, 10**6, 1e-300),
    (1e-310, 3, 1e-310, 10, 0.1),
    (0.1, 10**6, 1e-3, 1000, 1e-9),
]


def exact_log_delta(epsilon: float, loss: float, weight: float, steps: int) -> float:
    """By the three-term recurrence of a trinomial's powers, whose terms are all positive, at 50 digits."""
    with mp.workdps(50):
        e, w = mp.mpf(loss), mp.mpf(weight)
        plus, zero = w / (1 + mp.exp(-e)), 1 - w
        minus = w - plus
        masses = [plus**steps]
        for j in range(steps):
            before = minus * (2 * steps - j + 1) * masses[j - 1] if j else 0
            masses.append((zero * (steps - j) * masses[j] + before) / (plus * (j + 1)))
        losses = [(steps - j) * e for j in range(steps)]
        return float(
            mp.log(sum(p * (1 - mp.exp(epsilon - x)) for p, x in zip(masses, losses, strict=False) if x > epsilon))
        )


def hockey_stick(p: list[float], q: list[float], epsilon: float, steps: int) -> float:
    """Of the ``steps``-fold products of two distributions over the same outcomes."""
    total = 0.0
    for outcome in product(range(len(p)), repeat=steps):
        total += max(0.0, math.prod(p[i] for i in outcome) - math.exp(epsilon) * math.prod(q[i] for i in outcome))
    return total


def sampled_bits(epsilon0: float, bits: int, sample_rate: float) -> tuple[list[float], list[float]]:
    """The kept bits' distribution with and without the example."""
    a = 1 / (1 + math.exp(-epsilon0))
    kept = [math.comb(bits, j) * a**j * (1 - a) ** (bits - j) for j in range(bits + 1)]
    turned = kept[::-1]
    return [sample_rate * x + (1 - sample_rate) * y for x, y in zip(kept, turned, strict=True)], turned


@pytest.mark.parametrize(("epsilon0", "loss", "weight", "epsilon"), ONE_BIT)
def test_one_bit_a_step(epsilon0: float, loss: float, weight: float, epsilon: float) -> None:
    assert three_point(epsilon0, 1, 0.005) == pytest.approx((loss, weight), rel=1e-13)
    assert exact_epsilon(epsilon0, 1, 0.005, 1000, 1e-5) == pytest.approx(epsilon, abs=6e-9)


def test_strong_bits() -> None:
    assert exact_epsilon(4, 1, 0.005, 1000, 1e-5) == pytest.approx(7.28123429, abs=6e-9)


def test_probability_of_the_positive_loss() -> None:
    loss, weight = three_point(1, 1, 0.005)
    a = 1 / (1 + math.exp(-1))
    assert weight / (1 + math.exp(-loss)) == pytest.approx(0.27125200715629516, rel=1e-13)
    assert weight / (1 + math.exp(-loss)) == pytest.approx(0.005 * a + 0.995 * (1 - a), rel=1e-13)


@pytest.mark.parametrize("epsilon", STEPS)
def test_most_steps(epsilon: float) -> None:
    for epsilon0, expected in zip((0.5, 1, 2, 3, 5), STEPS[epsilon], strict=True):
        steps = most_steps(epsilon, 1e-5, epsilon0, 1, 0.005)
        assert steps == pytest.approx(expected, rel=2e-4)
        assert exact_epsilon(epsilon0, 1, 0.005, steps, 1e-5) <= epsilon if steps else True
        assert exact_epsilon(epsilon0, 1, 0.005, steps + 1, 1e-5) > epsilon


@pytest.mark.parametrize("epsilon", BITS)
def test_most_bits_a_step(epsilon: float) -> None:
    for epsilon0, bits in zip((0.1, 0.25, 0.5, 1, 2), BITS[epsilon], strict=True):
        assert bits == 0 or exact_epsilon(epsilon0, bits, 0.005, 1000, 1e-5) <= epsilon
        assert exact_epsilon(epsilon0, bits + 1, 0.005, 1000, 1e-5) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "loss", "weight", "steps"),
    [
        (0, 1, 0.5, 1),
        (0.5, 0.1, 0.3, 50),
        (4.9, 0.1, 0.3, 50),
        (4.99999, 0.1, 0.3, 50),
        (1, 0.01, 1e-3, 1000),
        (9.99999, 0.01, 0.9, 1000),
        (580, 30, 0.01, 20),
        (1000, 800, 0.01, 5),
        (1, 1, 1, 301),
        (2e-12, 1e-12, 1, 3),
        (0, 1e-9, 0.5, 100),
    ],
)
def test_delta_is_exact_and_never_below(epsilon: float, loss: float, weight: float, steps: int) -> None:
    found, expected = pair.log_delta(epsilon, loss, weight, steps), exact_log_delta(epsilon, loss, weight, steps)
    assert found == pytest.approx(expected, abs=2e-9)
    assert found >= expected * (1 + 1e-15)


@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-200])
def test_epsilon_is_on_the_safe_side(delta: float) -> None:
    loss, weight = three_point(1, 2, 0.1)
    epsilon = pair.epsilon_at(delta, loss, weight, 400)
    assert exact_log_delta(epsilon, loss, weight, 400) <= math.log(delta)
    assert exact_log_delta(epsilon * (1 - 1e-6), loss, weight, 400) > math.log(delta)


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("sample_rate", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_pair_dominates_both_orders(bits: int, sample_rate: float, steps: int) -> None:
    loss, weight = three_point(0.7, bits, sample_rate)
    present, absent = sampled_bits(0.7, bits, sample_rate)
    for part in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        epsilon = part * steps * loss
        bound = math.exp(pair.log_delta(epsilon, loss, weight, steps))
        assert hockey_stick(present, absent, epsilon, steps) <= bound + 1e-15
        assert hockey_stick(absent, present, epsilon, steps) <= bound + 1e-15


@pytest.mark.parametrize("part", [0, 0.2, 0.6, 0.95])
def test_the_pair_is_attained_by_one_bit(part: float) -> None:
    loss, weight = three_point(0.7, 1, 0.3)
    present, absent = sampled_bits(0.7, 1, 0.3)
    bound = math.exp(pair.log_delta(part * loss, loss, weight, 1))
    assert bound == pytest.approx(hockey_stick(present, absent, part * loss, 1), rel=1e-10)


def test_a_smaller_rate_would_not_dominate() -> None:
    loss, weight = three_point(0.7, 2, 0.25)
    present, absent = sampled_bits(0.7, 2, 0.3)
    assert hockey_stick(present, absent, 0.05, 4) > math.exp(pair.log_delta(0.05, loss, weight, 4))


def exact_one_bit(epsilon0: float, sample_rate: float, steps: int, delta: float) -> float:
    """The larger epsilon of the two orders, from binomial sums at 50 digits."""
    with mp.workdps(50):
        a, s = 1 / (1 + mp.exp(-mp.mpf(epsilon0))), mp.mpf(sample_rate)
        absent = (1 - a, a)
        present = (s * a + (1 - s) * (1 - a), s * (1 - a) + (1 - s) * a)
        found = []
        for p, q in ((present, absent), (absent, present)):
            gain, loss = mp.log(p[0] / q[0]), mp.log(p[1] / q[1])
            mass = [mp.binomial(steps, j) * p[0] ** j * p[1] ** (steps - j) for j in range(steps + 1)]
            rows = [(m, j * gain + (steps - j) * loss) for j, m in enumerate(mass)]
            low, high = mp.mpf(0), max(x for _, x in rows)
            for _ in range(45):
                middle = (low + high) / 2
                fits = sum(m * (1 - mp.exp(middle - x)) for m, x in rows if x > middle) <= delta
                low, high = (low, middle) if fits else (middle, high)
            found.append(float(high))
        return max(found)


@pytest.mark.parametrize(
    ("epsilon0", "sample_rate", "steps", "delta"),
    [(1, 0.005, 200, 1e-5), (3, 0.2, 50, 1e-9), (0.1, 0.9, 100, 1e-12), (6, 1e-4, 100, 1e-6), (2, 0.3, 1, 1e-3)],
)
def test_one_bit_exactly(epsilon0: float, sample_rate: float, steps: int, delta: float) -> None:
    found, expected = (
        one_bit_epsilon(epsilon0, sample_rate, steps, delta),
        exact_one_bit(epsilon0, sample_rate, steps, delta),
    )
    assert found == pytest.approx(expected, rel=1e-9)
    assert found >= expected * (1 - 1e-15)
    assert found <= exact_epsilon(epsilon0, 1, sample_rate, steps, delta)
    assert one_bit_epsilon(epsilon0 / 2, sample_rate, steps, delta) < expected


def test_treating_orders_alike_costs_a_fifth() -> None:
    for epsilon0, expected in ((0.5, 0.26896177), (1, 0.59794354), (2, 1.49380928), (3, 2.98409269)):
        assert one_bit_epsilon(epsilon0, 0.005, 1000, 1e-5) == pytest.approx(expected, abs=6e-9)


@pytest.mark.parametrize("bits", [2, 7, 50, 1001])
@pytest.mark.parametrize("epsilon0", [1e-6, 0.3, 20])
def test_weight_of_many_bits(bits: int, epsilon0: float) -> None:
    loss, weight = three_point(epsilon0, bits, 0.01)
    with mp.workdps(50):
        a = 1 / (1 + mp.exp(-mp.mpf(epsilon0)))
        rows = range(bits // 2 + 1, bits + 1)
        tv = sum(mp.binomial(bits, j) * (a**j * (1 - a) ** (bits - j) - a ** (bits - j) * (1 - a) ** j) for j in rows)
        e1 = mp.log1p(mp.mpf(0.01) * mp.expm1(bits * mp.mpf(epsilon0)))
        expected = mp.mpf(0.01) * tv / mp.tanh(e1 / 2)
    assert loss == pytest.approx(float(e1), rel=1e-13)
    assert weight == pytest.approx(float(expected), rel=1e-10)
    assert weight >= float(expected) * (1 - 2e-16)


@pytest.mark.parametrize("case", few(HOSTILE, 0, 1, 2, 4, 5, whole=True))
@pytest.mark.filterwarnings("error")
def test_hostile_parameters(case: tuple[float, int, float, int, float]) -> None:
    epsilon0, bits, sample_rate, steps, delta = case
    epsilon = exact_epsilon(epsilon0, bits, sample_rate, steps, delta)
    loss, _ = three_point(epsilon0, bits, sample_rate)
    assert 0 <= epsilon <= steps * loss
    assert most_steps(1e-6, delta, epsilon0, bits, sample_rate) >= 0
    alone = one_bit_epsilon(epsilon0, sample_rate, steps, delta)
    assert 0 <= alone <= exact_epsilon(epsilon0, 1, sample_rate, steps, delta)


def test_nothing_sampled_costs_nothing() -> None:
    assert three_point(1, 1, 0.0)[0] == 0
    assert exact_epsilon(1, 1, 0.0, 10**6, 1e-300) == 0
    assert most_steps(0, 1e-300, 1, 1, 0.0) == pair.MOST_STEPS


def test_everything_sampled_is_randomized_response() -> None:
    assert three_point(1.3, 1, 1.0) == (1.3, 1.0)
    assert exact_epsilon(1.3, 1, 1.0, 1, 1e-12) == pytest.approx(1.3, rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1, 0.1, 10, 1e-5), "epsilon0"),
        ((1, 0, 0.1, 10, 1e-5), "bits"),
        ((1, 10**7, 0.1, 10, 1e-5), "bits"),
        ((1e308, 10, 0.1, 10, 1e-5), "bits"),
        ((1, 1, 1.1, 10, 1e-5), "sample_rate"),
        ((1, 1, 0.1, 0, 1e-5), "steps"),
        ((1, 1, 0.1, 10**10, 1e-5), "steps"),
        ((1, 1, 0.1, 10, 0.0), "delta"),
        ((math.nan, 1, 0.1, 10, 1e-5), "epsilon0"),
    ],
)
def test_arguments_out_of_range(arguments: tuple[float, int, float, int, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        exact_epsilon(*arguments)
