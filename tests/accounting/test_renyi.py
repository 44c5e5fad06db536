"""Renyi divergences against 40-digit integrals, and epsilons against dp-accounting."""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from privctl.accounting.gaussian import epsilon_at as exact_gaussian
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.renyi import ORDERS, epsilon_at, ledger_epsilon, renyi
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
)
from tests.accounting.integrals import gaussian_integral
from tests.few import few


def sampled(noise_multiplier: float, sample_rate: float, steps: int = 1) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)


def epsilon(*events: Event, delta: float = 1e-5) -> float:
    return ledger_epsilon(Ledger(events=events), delta)[0]


RATE = 1024 / 50_000
TWICE = 1 - (1 - RATE) ** 2
TRAINING = sampled(1, RATE, 2940)
# (events, delta, epsilon): dp-accounting 0.6.0. At fractional orders it adds the absolute values of a series whose
# signs alternate, so that it is up to 4e-3 too large; the exact values are slightly below.
EPSILONS = [
    ((sampled(1, 0.01, 1000),), 1e-5, 2.1013665),
    ((sampled(1, 0.005, 1000),), 1e-5, 1.2055011),
    ((sampled(0.8, 0.02, 500),), 1e-5, 5.3718632),
    ((sampled(2, 0.05, 2000),), 1e-6, 6.5403175),
    ((sampled(1.1, 256 / 60000, 14062),), 1e-5, 2.5965559),
    ((sampled(0.6, 0.001, 10000),), 1e-6, 3.9991859),
    ((TRAINING,), 1e-5, 7.77656021),
    ((TRAINING, sampled(0.5, 1 / 50_000, 30)), 1e-5, 7.77656145),
    ((TRAINING, sampled(0.5, 1 / 50_000, 60)), 1e-5, 7.77656270),
    ((TRAINING, sampled(0.5, RATE, 30)), 1e-5, 11.38911392),
    ((TRAINING, sampled(0.5, RATE, 60)), 1e-5, 12.74573653),
    ((TRAINING, sampled(1, RATE, 1260), sampled(0.5, RATE, 60)), 1e-5, 13.75641010),
    ((TRAINING, sampled(0.25, 1 / 50_000, 30)), 1e-5, 11.77254860),
    ((TRAINING, sampled(0.25, RATE, 30)), 1e-5, 49.02224322),
    ((TRAINING, sampled(0.25, TWICE, 30)), 1e-5, 64.12871467),
    ((TRAINING, sampled(1, RATE, 30)), 1e-5, 7.82056186),
    ((TRAINING, sampled(2, TWICE, 30)), 1e-5, 7.80300316),
    ((TRAINING, sampled(0.5, 1, 30)), 1e-5, 112.27277720),
    ((sampled(0.5, RATE, 1),), 1e-5, 5.164046798373828),
    ((sampled(0.5, RATE, 30),), 1e-5, 8.787369532256047),
    ((sampled(0.5, RATE, 60),), 1e-5, 10.27854365259642),
]
# (rate, steps, delta, epsilon, noise multiplier calibrated by dp-accounting)
CALIBRATED = [
    (0.01, 1000, 1e-5, 1, 1.513122),
    (0.01, 1000, 1e-5, 8, 0.615851),
    (0.005, 1000, 1e-5, 1, 1.088693),
    (0.05, 1000, 1e-5, 2, 3.526780),
    (0.005, 1000, 1e-5, 0.5, 1.527984),
    (0.005, 1000, 1e-5, 2, 0.824458),
    (0.005, 1000, 1e-5, 8, 0.527087),
]


@pytest.mark.parametrize(("events", "delta", "expected"), few(EPSILONS, *range(0, len(EPSILONS), 3)))
def test_epsilon_is_close_to_its_known_value(events: tuple[Event, ...], delta: float, expected: float) -> None:
    found = epsilon(*events, delta=delta)
    assert expected * (1 - 4e-3) < found <= expected + 6e-8


@pytest.mark.parametrize(("events", "delta"), [EPSILONS[k][:2] for k in (0, 2, 6, 9, 13, 17)])
def test_whole_orders_agree_with_dp_accounting(events: tuple[Event, ...], delta: float) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    dp_event = pytest.importorskip("dp_accounting.dp_event")
    whole = [order for order in ORDERS if order == int(order)]
    accountant = rdp.RdpAccountant([int(order) for order in whole])
    for event in events:
        assert isinstance(event, SampledGaussian)
        step = dp_event.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(dp_event.PoissonSampledDpEvent(event.sample_rate, step), event.steps)
    total = sum((renyi(event, whole) for event in events), np.zeros(len(whole)))
    reference, best = accountant.get_epsilon_and_optimal_order(delta)
    assert epsilon_at(whole, total, delta) == (pytest.approx(reference, rel=1e-11), best)


def test_orders_are_those_of_dp_accounting() -> None:
    accountant = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    assert list(ORDERS) == [float(order) for order in accountant.DEFAULT_RDP_ORDERS]


@pytest.mark.parametrize(("rate", "steps", "delta", "target", "sigma"), few(CALIBRATED, 0, 2))
def test_calibrated_noise_meets_its_target_and_less_does_not(
    rate: float, steps: int, delta: float, target: float, sigma: float
) -> None:
    assert target * (1 - 4e-3) < epsilon(sampled(sigma, rate, steps), delta=delta) < target * (1 + 3e-6)
    assert epsilon(sampled(sigma / 2, rate, steps), delta=delta) > 2 * target


def exact_gaussian_divergence(q: float, sigma: float, order: float) -> float:
    with mpmath.workdps(40):
        rate, s, alpha = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(order)
        value = gaussian_integral(
            lambda x: mpmath.npdf(x, 0, s) * (1 - rate + rate * mpmath.exp((x - 0.5) / s**2)) ** alpha, order, sigma
        )
        return float(mpmath.log(value) / (alpha - 1))


@pytest.mark.parametrize(
    ("q", "sigma", "order"),
    [
        (0.01, 1, 1.1),
        (0.02, 0.8, 1.2),
        (RATE, 0.5, 2.4),
        (1e-9, 0.7, 1.5),
        (0.5, 3, 10.9),
        (0.1, 1, 5.0),
        (0.02, 1, 63.0),
    ],
)
def test_gaussian_against_40_digits(q: float, sigma: float, order: float) -> None:
    assert renyi(sampled(sigma, q), [order])[0] == pytest.approx(exact_gaussian_divergence(q, sigma, order), rel=1e-12)


def exact_laplace_divergences(q: float, scale: float, order: float) -> tuple[float, float]:
    """Of the pair in both orders, (with || without, without || with)."""
    with mpmath.workdps(30):
        rate, top = mpmath.mpf(q), 1 / mpmath.mpf(scale)

        def moment(power: mpmath.mpf) -> mpmath.mpf:
            def ratio(t: mpmath.mpf) -> mpmath.mpf:
                return (1 - rate + rate * mpmath.exp(t)) ** power

            ends = mpmath.linspace(-top, top, math.ceil(2 * top * max(order / 8, 1)) + 8)
            inside = mpmath.quad(
                lambda t: mpmath.exp(-(t + top) / 2) / 4 * ratio(t), ends, method="gauss-legendre", maxdegree=4
            )
            return mpmath.log(inside + ratio(-top) / 2 + mpmath.exp(-top) / 2 * ratio(top))

        alpha = mpmath.mpf(order)
        return float(moment(alpha) / (alpha - 1)), float(moment(1 - alpha) / (alpha - 1))


@pytest.mark.parametrize(
    ("q", "scale", "order"),
    [(0.01, 1, 1.1), (0.3, 0.05, 1.5), (1e-3, 0.1, 10.9), (0.5, 5, 64), (1, 0.3, 5.5), (0.999, 0.1, 1.05)],
)
def test_laplace_against_30_digits(q: float, scale: float, order: float) -> None:
    forward, backward = exact_laplace_divergences(q, scale, order)
    found = renyi(LaplaceNoise(scale=scale, sample_rate=q), [order])[0]
    assert found == pytest.approx(forward, rel=1e-12)
    assert found >= backward * (1 - 1e-12)


@pytest.mark.parametrize("order", [1.1, 2.0, 17.0, 1024.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_laplace_without_sampling(scale: float, order: float) -> None:
    with mpmath.workdps(40):
        a, e = mpmath.mpf(order), 1 / mpmath.mpf(scale)
        moment = a / (2 * a - 1) * mpmath.exp(e * (a - 1)) + (a - 1) / (2 * a - 1) * mpmath.exp(-e * a)
        expected = float(mpmath.log(moment) / (a - 1))
    assert renyi(LaplaceNoise(scale=scale), [order])[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("epsilon0", "bits", "rate"), [(1.0, 1, 0.005), (0.01, 3, 0.2), (20.0, 2, 0.5)])
@pytest.mark.parametrize("order", [1.1, 3.0, 200.5])
def test_randomized_response_bounds_both_orders_of_the_truth(
    epsilon0: float, bits: int, rate: float, order: float
) -> None:
    event = RandomizedResponse(epsilon=epsilon0, bits=bits, sample_rate=rate)
    found = float(renyi(event, [order])[0])
    with mpmath.workdps(60):
        a = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon0)))
        with_ = [mpmath.binomial(bits, k) * a**k * (1 - a) ** (bits - k) for k in range(bits + 1)]
        without = with_[::-1]
        with_ = [rate * p + (1 - mpmath.mpf(rate)) * q for p, q in zip(with_, without, strict=True)]

        def divergence(p: Sequence[mpmath.mpf], q: Sequence[mpmath.mpf]) -> mpmath.mpf:
            alpha = mpmath.mpf(order)
            return mpmath.log(mpmath.fsum(x**alpha * y ** (1 - alpha) for x, y in zip(p, q, strict=True))) / (alpha - 1)

        truth = float(max(divergence(with_, without), divergence(without, with_)))
        largest = float(mpmath.log(1 + rate * mpmath.expm1(mpmath.mpf(bits) * epsilon0)))
    assert truth * (1 - 1e-12) <= found <= largest * (1 + 1e-12)
    assert found / 2 < truth or bits * epsilon0 > 10  # half of it would not do


def test_randomized_response_epsilon_is_above_the_exact_one() -> None:
    exact = {0.5: 0.30005029, 1: 0.72041534, 2: 1.94699496, 3: 3.93983818, 4: 7.28123429}
    for epsilon0, least in exact.items():
        found = epsilon(RandomizedResponse(epsilon=epsilon0, sample_rate=0.005, steps=1000))
        assert least < found < 1.25 * least


def test_one_record_is_the_sampled_gaussian() -> None:
    secret = SecretMixture(probabilities=(0.02,), noise_multiplier=0.9, steps=7)
    assert renyi(secret).tolist() == pytest.approx(renyi(sampled(0.9, 0.02, 7)).tolist(), rel=1e-11)


def test_what_the_law_cuts_off_counts_at_high_orders() -> None:
    # All 75 records at once have probability 1e-225, and even so decide the divergence of order 64 at sigma 1.2.
    event = SecretMixture(probabilities=(0.001,) * 75, noise_multiplier=1.2)
    least = 64 / 63 * 75 * math.log(0.001) + 64 * 75**2 / 2 / 1.2**2
    assert least * (1 - 1e-12) <= renyi(event, [64.0])[0] <= least * 1.002


@pytest.mark.parametrize("q", [0.0, 1e-9, 0.01, 0.5, 1 - 1e-16, 1.0])
@pytest.mark.parametrize("scale", [1e-200, 1e-3, 0.3, 1.0, 1e3])
def test_hostile_parameters(q: float, scale: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        events: list[Event] = [
            sampled(scale, q, 10**6),
            LaplaceNoise(scale=scale, sample_rate=q, steps=10**6),
            SecretMixture(probabilities=(q, q / 3), noise_multiplier=scale, steps=10**6),
        ]
        if scale > 1e-100:
            events.append(RandomizedResponse(epsilon=1 / scale, bits=5, sample_rate=q, steps=10**6))
        for event in events:
            orders = [1.001, 1.5, 2.0, 11.5, 1024.0]
            values = renyi(event, orders)
            assert not np.isnan(values).any()
            assert (values >= 0).all()
            assert q > 0 or not values.any()
            # Renyi divergences rise with the order.
            assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(values.tolist()))
            found, _ = epsilon_at(orders, values, 1e-300)
            assert found >= 0
            assert q > 0 or found == 0


@pytest.mark.parametrize("sigma", [1e-6, 1e-12, 1e-14, 1e-17, 1e-100])
def test_bells_too_far_apart_for_floats_are_not_missed(sigma: float) -> None:
    orders = [1.1, 2.0, 9.5, 1024.0]
    found = renyi(sampled(sigma, 0.001), orders)
    least = [a / (a - 1) * math.log(0.001) + a / 2 / sigma / sigma for a in orders]  # of the record's own bell
    assert (found >= np.array(least) * (1 - 1e-9)).all()
    whole = Ledger(events=(sampled(sigma, 0.001, 20_000_000),))
    assert epsilon_bound(whole, 1e-6) > 1e10


def test_more_noise_more_sampling_more_steps() -> None:
    by_noise = [epsilon(sampled(s, 0.01, 1000)) for s in (0.1, 0.5, 1, 2, 50)]
    by_rate = [epsilon(sampled(1, q, 1000)) for q in (1e-6, 1e-3, 0.1, 0.9, 1)]
    by_steps = [epsilon(sampled(1, 0.01, n)) for n in (1, 10, 10**3, 10**6)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_rate == sorted(by_rate)
    assert by_steps == sorted(by_steps)


def test_never_below_the_exact_gaussian() -> None:
    for steps in (1, 100):
        exact = exact_gaussian(1e-5, math.sqrt(steps) / 5)
        assert exact < epsilon(sampled(5, 1, steps)) < 1.1 * exact
        assert epsilon(sampled(10, 1, steps)) < exact  # twice the noise gives a smaller bound


@pytest.mark.parametrize("batches", [Batches.SHUFFLED, Batches.FIXED_SIZE])
def test_no_amplification_by_other_batches(batches: Batches) -> None:
    with pytest.raises(ValueError, match="Poisson"):
        renyi(SampledGaussian(noise_multiplier=1, sample_rate=0.5, batches=batches))
    whole = SampledGaussian(noise_multiplier=2, sample_rate=1, batches=batches)
    assert renyi(whole, [8.0]).tolist() == [1.0]


def test_conversion_agrees_with_the_formula_by_hand() -> None:
    # Canonne, Kamath and Steinke, proposition 12, by hand at order 2: D - log 2 - log delta - log 2.
    assert epsilon_at([2.0], [3.0], 0.01)[0] == pytest.approx(3 - 2 * math.log(2) - math.log(0.01), rel=1e-15)
    assert epsilon_at([math.inf, 2.0], [0.3, 0.2], 1e-300) == (0.3, math.inf)
    assert epsilon_at([2.0, 3.0], [1.0, 1.0], 0.5)[0] < epsilon_at([2.0, 3.0], [1.0, 1.0], 1e-5)[0]
    # sqrt(1 - exp(-D)) below delta: nothing is left to bound, whatever the order.
    assert epsilon_at([1.1], [1e-5], 0.01) == (0.0, 1.1)
    assert epsilon_at([1.1], [1e-3], 0.01)[0] > 0


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 1 - 1e-16])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1.0, 1e300, math.inf])
def test_conversion_of_hostile_values(value: float, delta: float) -> None:
    orders = [1 + 2.0**-50, 2.0, 1024.0, 1e12, math.inf]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, best = epsilon_at(orders, [value] * len(orders), delta)
    assert 0 <= found <= value
    assert best in orders
    assert value < math.inf or found == math.inf


@pytest.mark.parametrize(
    ("orders", "values", "delta", "named"),
    [
        ([2.0], [1.0], 0.0, "delta"),
        ([1.0], [1.0], 0.1, "orders"),
        ([2.0], [-1.0], 0.1, "values"),
        ([2.0], [math.nan], 0.1, "values"),
        ([2.0, 3.0], [1.0], 0.1, "length"),
        ([], [], 0.1, "length"),
    ],
)
def test_conversion_refuses(orders: list[float], values: list[float], delta: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        epsilon_at(orders, values, delta)


def test_the_divergence_of_infinite_order_is_the_largest_loss() -> None:
    assert renyi(LaplaceNoise(scale=2.0, steps=3), [math.inf, 1e10, 1e5]) == pytest.approx([1.5] * 3, rel=1e-4)
    assert renyi(sampled(1, 0.1), [math.inf])[0] == math.inf
    assert ledger_epsilon(Ledger(events=(LaplaceNoise(scale=2.0),)), 1e-12) == (pytest.approx(0.5), math.inf)


def test_the_divergence_of_order_1_is_kullback_and_leiblers() -> None:
    assert renyi(LaplaceNoise(scale=2.0), [1.0])[0] == pytest.approx(0.5 + math.expm1(-0.5), rel=1e-6)
    assert renyi(sampled(2, 1.0), [1.0])[0] == pytest.approx(1 / 8, rel=1e-6)


@pytest.mark.parametrize("order", [0.9, math.nan, -1.0])
def test_orders_out_of_range(order: float) -> None:
    with pytest.raises(ValueError, match="orders"):
        renyi(sampled(1, 0.1), [order])
