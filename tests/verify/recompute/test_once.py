"""One step from its definition in balls: against Balle and Wang, amplification, and finite sums."""

from __future__ import annotations

import math

import mpmath
import pytest

from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import (
    Batches,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    ReplacedGaussian,
    SampledGaussian,
    SecretMixture,
)
from verify.recompute import gaussian, ledger, risk
from verify.recompute.ledger import bounds, epsilon_of, single_step_epsilon


def sampled(noise: float, rate: float, steps: int = 1, batches: Batches = Batches.POISSON) -> Ledger:
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches)
    return Ledger(events=(event,))


@pytest.mark.parametrize(
    ("noise", "rate", "delta"),
    [
        (1.0, 1e-2, 1e-5),
        pytest.param(1.0, 1e-3, 1e-5, marks=pytest.mark.slow),
        (0.8, 0.5, 1e-8),
        (5.0, 0.1, 1e-30),
    ],
)
def test_a_sampled_gaussian_is_the_amplified_one(noise: float, rate: float, delta: float) -> None:
    found = single_step_epsilon(sampled(noise, rate), delta)
    base = gaussian.epsilon_at(delta / rate, 1 / noise)
    assert found is not None
    assert found.lower == pytest.approx(math.log1p(rate * math.expm1(base.upper)), rel=1e-11)
    assert found.upper <= found.lower * (1 + 1e-12)
    # The grids enclose it from both sides.
    around = bounds(sampled(noise, rate), math.log(delta), 1e-3).epsilon(delta)
    assert around.lower <= found.upper
    assert around.upper >= found.lower


def test_fixed_size_is_bounded_from_above_only() -> None:
    found = single_step_epsilon(sampled(2.0, 0.1, 1, Batches.FIXED_SIZE), 1e-6)
    twice = single_step_epsilon(sampled(1.0, 0.1), 1e-6)
    assert found is not None
    assert twice is not None
    assert (found.lower, found.upper) == (0.0, twice.upper)
    assert epsilon_of(sampled(2.0, 0.1, 1, Batches.FIXED_SIZE), 1e-6).lower > 0


@pytest.mark.parametrize(("noise", "rate", "delta"), [(1.0, 1e-4, 1e-15), (0.7, 0.3, 1e-6), (20.0, 0.9, 1e-3)])
def test_a_replaced_record_as_an_integral(noise: float, rate: float, delta: float) -> None:
    """The integral of what one density has above e^epsilon times the other, by mpmath, where they cross."""
    book = Ledger(events=(ReplacedGaussian(noise_multiplier=noise, sample_rate=rate),))
    found = single_step_epsilon(book, delta)
    assert found is not None
    with mpmath.workdps(40):

        def excess(x: mpmath.mpf, epsilon: float) -> mpmath.mpf:
            present, absent = (
                (1 - mpmath.mpf(rate)) * mpmath.npdf(x, 0, noise) + rate * mpmath.npdf(x, side, noise)
                for side in (1, -1)
            )
            return present - mpmath.exp(mpmath.mpf(epsilon)) * absent

        def delta_at(epsilon: float) -> mpmath.mpf:
            low, high = mpmath.mpf(0), mpmath.mpf(40 * noise)
            for _ in range(120):
                middle = (low + high) / 2
                low, high = (low, middle) if excess(middle, epsilon) > 0 else (middle, high)
            ends = [high + noise * k for k in range(0, 25, 2)]
            return mpmath.quad(lambda x: excess(x, epsilon), ends)

        assert delta_at(found.upper * (1 + 1e-9)) <= delta <= delta_at(found.lower * (1 - 1e-9))
    around = bounds(book, math.log(delta), 1e-3).epsilon(delta)
    assert around.lower <= found.upper
    assert around.upper >= found.lower


def test_cells_of_a_rarely_replaced_record_are_narrow_where_its_loss_changes() -> None:
    book = Ledger(events=(ReplacedGaussian(noise_multiplier=1.5, sample_rate=1e-5, steps=10_000),))
    stated = epsilon_bound(book, 1e-13)
    assert epsilon_of(book, 1e-13, (stated,)).at_most(stated) is True


@pytest.mark.parametrize(
    "event",
    [
        LaplaceNoise(scale=2.0, sample_rate=0.05),
        LaplaceNoise(scale=0.5),
        RandomizedResponse(epsilon=0.7, bits=5, sample_rate=0.3),
        RandomizedResponse(epsilon=2.0),
    ],
)
def test_pure_steps_lie_within_the_grids_and_below_their_largest_loss(
    event: LaplaceNoise | RandomizedResponse,
) -> None:
    book = Ledger(events=(event,))
    for delta in (1e-2, 1e-7):
        found = single_step_epsilon(book, delta)
        around = bounds(book, math.log(delta), 1e-3).epsilon(delta)
        assert found is not None
        assert around.lower * (1 - 1e-9) <= found.upper
        assert found.lower <= around.upper * (1 + 1e-9)
        assert found.upper <= ledger.pure_epsilon(book).upper


def test_anything_else_is_left_to_the_grids() -> None:
    secret = SecretMixture(probabilities=(0.1,), noise_multiplier=1.0)
    many = sampled(1.0, 0.1, 2)
    assert single_step_epsilon(many, 1e-5) is None
    assert single_step_epsilon(Ledger(events=(secret,)), 1e-5) is None
    assert single_step_epsilon(Ledger(events=(*many.events, *sampled(1.0, 0.0).events)), 1e-5) is None


def test_a_speck_of_mass_far_out_does_not_hide_a_large_delta() -> None:
    """Where delta is large the tail's last cell, tilted, used to be the whole law: nothing was known from above."""
    book = sampled(100.0, 0.1, 50)
    found = epsilon_of(book, 1e-3, [0.0050073])
    assert 0.005 < found.lower < found.upper < 0.0050073
    assert epsilon_of(book, 1e-2).upper == 0


def test_small_advantages_are_enclosed_as_closely_as_large_ones() -> None:
    for rate in (1e-4, 0.3):
        found = risk.advantage(sampled(3.0, rate, 5))
        assert found.upper <= found.lower * (1 + 1e-4)


def test_a_tiny_advantage_is_decided() -> None:
    """At an epsilon of 0.001 the loss of a step without the record lies thousands of deviations from all others."""
    noise, rate, steps = 422.1, 0.01, 300
    found = risk.advantage(sampled(noise, rate, steps))
    # So little a step is as good as Gaussian in all (Dong, Roth and Su 2022, corollary 5.4).
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    assert found.near(math.erf(mu / 2 / math.sqrt(2)), 2e-5)
    assert risk.advantage(sampled(noise, rate, steps), found.lower * 1.0001).at_most(found.lower * 1.0001) is True
