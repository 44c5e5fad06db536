"""Where grids used to be too coarse: one step, few steps, small epsilons, records that rarely take part."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.stats import laplace, norm

from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.pld.extremes import floor_by_one_loss, largest_loss
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian, Laplace, Reversed, Sampled, randomized_response
from privctl.accounting.pld.single_step import single_step_epsilon
from privctl.accounting.pld.spectrum import StepSpectrum, power
from privctl.domain.events import (
    Batches,
    Event,
    GroupGaussian,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
)
from verify.recompute.ledger import epsilon_of


def gaussian(noise: float, rate: float, steps: int = 1, batches: Batches = Batches.POISSON) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches)


def by_quadrature(event: SampledGaussian | LaplaceNoise, epsilon: float) -> float:
    """Delta of one step, from the densities themselves, in the worse order."""
    q, e = event.sample_rate, math.exp(epsilon)
    if isinstance(event, LaplaceNoise):
        law, shift, reach = laplace(scale=event.scale), 1, 80 * event.scale
    else:
        law = norm(scale=event.noise_multiplier)
        shift, reach = (2 if event.batches is Batches.FIXED_SIZE else 1), 14 * event.noise_multiplier

    def excess(x: np.ndarray, order: int) -> np.ndarray:
        without = law.pdf(x)
        present = (1 - q) * without + q * law.pdf(x - shift)
        return np.maximum(0, present - e * without if order == 0 else without - e * present)

    # The excess has two kinks at most: on a fine grid of Simpson's rule they cost less than the margins of the test.
    x = np.linspace(-reach, 2 + reach, 200_001)
    return float(max(simpson(excess(x, order), x=x) for order in (0, 1)))


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (gaussian(1.0, 1e-3), 1e-5),
        (gaussian(5.0, 0.1), 1e-4),
        (gaussian(0.8, 0.5), 1e-6),
        (gaussian(2.0, 0.1, 1, Batches.FIXED_SIZE), 1e-5),
        (LaplaceNoise(scale=2.0, sample_rate=0.05), 1e-4),
        (LaplaceNoise(scale=0.7), 1e-3),
    ],
)
def test_one_step_is_exact(event: SampledGaussian | LaplaceNoise, delta: float) -> None:
    book = Ledger(events=(event,))
    bound, floor = epsilon_bound(book, delta), epsilon_floor(book, delta)
    assert 0 < floor <= bound <= floor * (1 + 1e-8)
    assert by_quadrature(event, bound * 1.0003) < delta < by_quadrature(event, floor * 0.9997)


def test_one_step_at_a_small_epsilon_is_no_longer_the_grids() -> None:
    # mpmath, 30 digits: q delta(ln(1 + (e^epsilon - 1) / q)) = 1e-5. A grid gave 0.0093600.
    assert epsilon_bound(Ledger(events=(gaussian(1.0, 1e-3),)), 1e-5) == pytest.approx(0.0091115645, rel=1e-8)


def test_bits_of_one_step_in_both_orders() -> None:
    pair = Sampled(randomized_response(1.5, 3), 0.2)
    found = single_step_epsilon(pair, 1e-2)
    assert found is not None
    with mpmath.workdps(30):
        a = 1 / (1 + mpmath.exp(-1.5))
        certain = [mpmath.binomial(3, k) * a**k * (1 - a) ** (3 - k) for k in range(4)]
        without = certain[::-1]
        present = [0.8 * w + 0.2 * c for w, c in zip(without, certain, strict=True)]

        def delta(epsilon: float) -> float:
            e = mpmath.exp(epsilon)
            return float(
                max(
                    sum(max(p - e * w, 0) for p, w in zip(first, second, strict=True))
                    for first, second in ((present, without), (without, present))
                )
            )

        assert delta(found[1]) <= 1e-2 * (1 + 1e-9)
        assert delta(found[0] * (1 - 1e-6)) > 1e-2


# noise, rate, steps, delta, and certified ends of the truth by verify at its finest.
RARE = [
    (1.0, 1e-3, 2, 1e-5, 0.0124450, 0.0124453),
    (1.0, 1e-3, 10, 1e-5, 0.0235128, 0.0235133),
    (1.0, 1e-4, 1000, 1e-5, 0.0111840, 0.0111861),
    (1.0, 1e-5, 1000, 1e-5, 0.00070179, 0.00070186),
    (0.05, 1e-6, 1000, 1e-5, 232.14101, 232.14107),
    (0.03, 1e-7, 10_000, 1e-5, 616.6413, 616.6417),
    (0.036, 1e-7, 1000, 5e-5, 368.68469, 368.68472),
]


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "low", "high"),
    [pytest.param(*row, marks=[] if i == 6 else pytest.mark.slow) for i, row in enumerate(RARE)],
)
def test_few_steps_and_rare_records(
    noise: float, rate: float, steps: int, delta: float, low: float, high: float
) -> None:
    book = Ledger(events=(gaussian(noise, rate, steps),))
    bound, floor = epsilon_bound(book, delta), epsilon_floor(book, delta)
    assert low <= bound <= high * 1.004
    assert low * 0.95 <= floor <= high


@pytest.mark.parametrize(
    "event",
    [
        gaussian(10.0, 1e-3, 100),
        LaplaceNoise(scale=100.0, sample_rate=0.1, steps=10),
        RandomizedResponse(epsilon=0.1, sample_rate=0.01, steps=10),
    ],
)
def test_the_largest_loss_bounds_every_order(event: Event) -> None:
    rate = event.sample_rate  # type: ignore[union-attr]
    base = {SampledGaussian: Gaussian(0.1), LaplaceNoise: Laplace(100.0)}.get(type(event), randomized_response(0.1, 1))
    steps = [RepeatedPair(Reversed(Sampled(base, rate)), event.steps)]
    most = largest_loss(steps)
    # With the record absent a step's likelihood rises by 1 / (1 - rate) at most.
    assert 0 < most <= -math.log1p(-rate) * event.steps * (1 + 1e-8)
    assert (largest_loss([RepeatedPair(Sampled(base, rate), 1)]) == math.inf) == isinstance(event, SampledGaussian)


def test_one_loss_alone_never_shows_more_than_all() -> None:
    for noise, rate, steps, delta, _, high in RARE:
        found = floor_by_one_loss([RepeatedPair(Sampled(Gaussian(1 / noise), rate), steps)], math.log(delta))
        assert found <= high
    # Where a record takes part once at most it is all there is to see.
    assert found > 0.99 * high


@pytest.mark.parametrize("rest", [1e-14, 1e-6, 0.1, 0.6])
def test_a_power_keeps_the_precision_of_what_is_rare(rest: float) -> None:
    masses = np.array([0.3 * rest, 0.0, 1 - rest, 0.5 * rest, 0.2 * rest])
    count, size = 6, 64
    found = power([StepSpectrum(masses, -2, count)], size)
    exact = [mpmath.mpf(0)] * 25
    with mpmath.workdps(50):
        exact = [mpmath.mpf(1)]
        for _ in range(count):
            longer = [mpmath.mpf(0)] * (len(exact) + 4)
            for i, value in enumerate(exact):
                for j, mass in enumerate(masses.tolist()):
                    longer[i + j] += value * mpmath.mpf(mass)
            exact = longer
    got = np.roll(found.masses, (found.offset + 2 * count) % size)[: len(exact)] * math.exp(found.log_factor)
    assert np.max(np.abs(got - np.array([float(value) for value in exact]))) <= found.margin + 4e-16 * count
    if rest < 0.25:
        beside = [i for i in range(len(exact)) if i != 2 * count]
        assert np.max(np.abs(got[beside] - np.array([float(exact[i]) for i in beside]))) <= found.margin
        assert found.margin < 1e-12 * rest


@pytest.mark.parametrize(
    ("event", "delta", "least"),
    [
        (GroupGaussian(noise_multiplier=220.0, group_size=9, sample_rate=4e-4, steps=250), 1e-15, 1.699e-3),
        (GroupGaussian(noise_multiplier=2.85, group_size=40, sample_rate=8e-7, steps=360_000), 1e-11, 0.03927),
    ],
    ids=["faint", "rare"],
)
def test_losses_that_count_as_infinite_do_not_decide_on_the_tilt(event: Event, delta: float, least: float) -> None:
    """Under the tilt they outweighed the others, and the bound was 26 and 3 times as large."""
    book = Ledger(events=(event,))
    assert least < epsilon_bound(book, delta) <= epsilon_of(book, delta).upper * (1 + 1e-3)
