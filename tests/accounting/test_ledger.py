"""The tight accountant against printed reference values, and what kinds of batches mean.

The references are dp-accounting's pessimistic distribution (connect the dots, interval 1e-4) and its optimistic one.
"""

import math

import pytest

from privctl.accounting import gaussian
from privctl.accounting.ledger import (
    composed,
    delta_bound,
    epsilon_bound,
    epsilon_floor,
    gaussian_shift,
)
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    ManyWayResponse,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
)
from privctl.domain.guarantee import Adjacency


def ledger(*events: Event) -> Ledger:
    return Ledger(events=events)


def sampled(noise: float, rate: float, steps: int, batches: Batches = Batches.POISSON) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches)


def agrees(book: Ledger, delta: float, printed: float, digits: float, *, most: float = 1e-4) -> None:
    """The bound is at most the printed pessimistic one, the floor too; and the bound is close to it."""
    high, low = epsilon_bound(book, delta), epsilon_floor(book, delta)
    assert high <= printed + max(digits, most * printed)
    assert low <= printed + digits
    assert low <= high
    # The reference's own grid, 1e-4 a step, adds about 1e-3 of epsilon at most.
    assert high >= printed * (1 - 5e-3)
    assert low >= high * (1 - 3e-3)


# noise, rate, steps, delta, pessimistic, optimistic
TRAINING = [
    (1, 0.01, 1000, 1e-5, 1.8282436, 1.7782397),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in ((1, 0.005, 1000, 1e-5, 0.86391067, 0.81390376), (0.8, 0.02, 500, 1e-5, 4.6680134, 4.6430123))
    ),
    (2, 0.05, 2000, 1e-6, 6.1065594, 6.0065547),
    pytest.param(1.1, 256 / 60000, 14062, 1e-5, 2.381686, 1.678537, marks=pytest.mark.slow),
    pytest.param(0.6, 0.001, 10000, 1e-6, 3.152227, 2.6818352, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "high", "low"), TRAINING)
def test_epsilon_of_a_training_is_enclosed_and_planted_faults_are_not(
    noise: float, rate: float, steps: int, delta: float, high: float, low: float
) -> None:
    book = ledger(sampled(noise, rate, steps))
    agrees(book, delta, high, 1e-7)
    # Both enclosures hold the truth, so they meet; and ours is the narrower.
    assert epsilon_bound(book, delta) >= low
    assert epsilon_floor(book, delta) >= low
    # Planted faults are outside it: half the noise, twice the rate, a tenth of the steps missing.
    floor, bound = epsilon_floor(book, delta), epsilon_bound(book, delta)
    assert epsilon_floor(ledger(sampled(noise / 2, rate, steps)), delta) > bound
    assert epsilon_floor(ledger(sampled(noise, 2 * rate, steps)), delta) > bound
    assert epsilon_bound(ledger(sampled(noise, rate, steps * 9 // 10)), delta) < floor


# Epsilon for noise and 1000 steps at rate .005, delta 1e-5: the noise was calibrated to the target by dp-accounting.
@pytest.mark.parametrize(("noise", "epsilon", "digits"), [(1.355794, 0.5, 1e-6), (0.939293, 1.0, 3e-6)])
def test_noisy_projections(noise: float, epsilon: float, digits: float) -> None:
    agrees(ledger(sampled(noise, 0.005, 1000)), 1e-5, epsilon, digits)


# The same, calibrated on an interval of 1e-3, which is ten times as loose.
@pytest.mark.parametrize(("noise", "epsilon"), [(0.748035, 2.0), (0.498760, 8.0)])
def test_noisy_projections_coarse(noise: float, epsilon: float) -> None:
    high = epsilon_bound(ledger(sampled(noise, 0.005, 1000)), 1e-5)
    assert epsilon * (1 - 5e-3) <= high <= epsilon * (1 + 1e-5)


RATE = 1024 / 50000
TRAIN = sampled(1.0, RATE, 2940)
TWICE = 1 - (1 - RATE) ** 2

MEASURED: list[tuple[tuple[Event, ...], float, float]] = [
    ((), 7.13684524, 1e-8),
    ((sampled(0.5, 1 / 50000, 30),), 7.13684647, 1e-8),
    ((sampled(0.5, 1 / 50000, 60),), 7.13684769, 1e-8),
    ((sampled(0.5, RATE, 30),), 9.73455927, 1e-8),
    ((sampled(0.5, RATE, 60),), 10.92435871, 1e-8),
    ((sampled(1.0, RATE, 1260), sampled(0.5, RATE, 60)), 11.95592042, 1e-8),
    ((sampled(0.5, 1.0, 30),), 107.30148963, 1e-8),
]

# On an interval of 1e-3.
MEASURED_COARSELY: list[tuple[tuple[Event, ...], float]] = [
    ((sampled(0.25, 1 / 50000, 30),), 7.44495374),
    ((sampled(0.25, RATE, 30),), 40.75949423),
    ((sampled(0.25, TWICE, 30),), 54.83192384),
    ((sampled(1.0, RATE, 30),), 7.17844759),
    ((sampled(2.0, TWICE, 30),), 7.16262543),
]


@pytest.mark.slow
@pytest.mark.parametrize(("events", "epsilon", "digits"), MEASURED)
def test_training_with_measurements(events: tuple[Event, ...], epsilon: float, digits: float) -> None:
    agrees(ledger(TRAIN, *events), 1e-5, epsilon, digits)


@pytest.mark.parametrize(("events", "epsilon"), MEASURED_COARSELY)
def test_training_with_measurements_coarse(events: tuple[Event, ...], epsilon: float) -> None:
    high = epsilon_bound(ledger(TRAIN, *events), 1e-5)
    assert epsilon * (1 - 2e-2) <= high <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize(
    ("steps", "epsilon"), [(1, 4.135867596788341), (30, 7.118060593195596), (60, 8.481144665698292)]
)
def test_measurements_alone(steps: int, epsilon: float) -> None:
    agrees(ledger(sampled(0.5, RATE, steps)), 1e-5, epsilon, 1e-12)


def test_the_order_of_events_and_how_they_are_split_do_not_matter() -> None:
    parts = (sampled(1.0, 0.01, 300), LaplaceNoise(scale=20.0, steps=4), RandomizedResponse(epsilon=0.1, bits=2))
    one, other = (epsilon_bound(ledger(*events), 1e-6) for events in (parts, parts[::-1]))
    assert one == pytest.approx(other, rel=1e-9)
    split = (sampled(1.0, 0.01, 100), *parts[1:], sampled(1.0, 0.01, 200))
    assert epsilon_bound(ledger(*split), 1e-6) == pytest.approx(one, rel=1e-4)
    assert epsilon_floor(ledger(*split), 1e-6) <= one
    assert epsilon_bound(ledger(*parts[1:]), 1e-6) < epsilon_floor(ledger(*parts), 1e-6)


# dp-accounting's distribution of dominating three-point pairs gave .30005, .72042, 1.94699, 3.93984.
@pytest.mark.parametrize(
    ("bit", "epsilon", "chord"),
    [
        (0.5, 0.26896, 0.30005029),
        (1.0, 0.59794, 0.72041534),
        (2.0, 1.49381, 1.94699496),
        (3.0, 2.98409, 3.93983818),
    ],
)
def test_sampled_randomized_response(bit: float, epsilon: float, chord: float) -> None:
    book = ledger(RandomizedResponse(epsilon=bit, sample_rate=0.005, steps=1000))
    found = epsilon_bound(book, 1e-5)
    assert epsilon - 6e-6 <= found <= epsilon * (1 + 1e-4)
    assert found < chord
    assert epsilon_floor(book, 1e-5) <= found
    # Half the rate gives another bound.
    assert epsilon_bound(ledger(RandomizedResponse(epsilon=bit, sample_rate=0.0025, steps=1000)), 1e-5) < 0.7 * epsilon


def test_no_one_takes_part() -> None:
    nothing = ledger(
        sampled(1.0, 0.0, 100),
        LaplaceNoise(scale=1.0, sample_rate=0.0),
        RandomizedResponse(epsilon=1.0, sample_rate=0.0),
        SecretMixture(probabilities=(0.0, 0.0), noise_multiplier=1.0),
    )
    assert (epsilon_bound(nothing, 1e-5), epsilon_floor(nothing, 1e-5), gaussian_shift(nothing)) == (0, 0, 0)
    assert delta_bound(nothing, 0.0, near=1e-5) == 0
    assert epsilon_bound(ledger(*nothing.events, sampled(1.0, 1.0, 4)), 1e-5) == gaussian.epsilon_at(1e-5, 2.0)


def test_everyone_takes_part() -> None:
    book = ledger(sampled(3.0, 1.0, 9), sampled(4.0, 1.0, 16))
    assert epsilon_bound(book, 1e-6) == gaussian.epsilon_at(1e-6, math.sqrt(2))
    assert epsilon_floor(book, 1e-6) == pytest.approx(epsilon_bound(book, 1e-6), rel=1e-9)
    assert epsilon_floor(book, 1e-6) < epsilon_bound(book, 1e-6)
    assert delta_bound(book, 1.0, near=1e-6) == gaussian.delta_at(1.0, math.sqrt(2))
    # All but certain sampling is as good as certain.
    nearly = epsilon_bound(ledger(sampled(3.0, 1 - 1e-12, 9)), 1e-6)
    assert nearly == pytest.approx(gaussian.epsilon_at(1e-6, 1.0), rel=1e-4)


def test_one_sure_record_of_a_secret_is_a_gaussian() -> None:
    book = ledger(SecretMixture(probabilities=(1.0,), noise_multiplier=2.0, steps=4))
    assert epsilon_bound(book, 1e-6) == pytest.approx(gaussian.epsilon_at(1e-6, 1.0), rel=1e-4)
    # And one that may take part a sampled Gaussian.
    one = epsilon_bound(ledger(SecretMixture(probabilities=(0.02, 0.0), noise_multiplier=0.9, steps=50)), 1e-6)
    assert one == pytest.approx(epsilon_bound(ledger(sampled(0.9, 0.02, 50)), 1e-6), rel=1e-4)
    two = epsilon_floor(ledger(SecretMixture(probabilities=(0.02, 0.02), noise_multiplier=0.9, steps=50)), 1e-6)
    assert two > one


def test_a_truncated_mixture_does_not_lift_the_floor() -> None:
    # What is cut off a Poisson-binomial law is an infinite loss to an upper bound and nothing to a lower one.
    book = ledger(SecretMixture(probabilities=(0.01,) * 800, noise_multiplier=800.0, steps=15))
    assert epsilon_floor(book, 1e-300) < epsilon_bound(book, 1e-300)
    assert epsilon_floor(book, 1e-300) < gaussian.epsilon_at(1e-300, math.sqrt(15))


@pytest.mark.parametrize(
    ("rate", "steps", "passes"),
    [(0.01, 100, 1), (0.01, 101, 2), (1e-12, 1, 1), (256 / 60000, 14062, 61), (1 / 3, 3, 1), (1e-9, 1_000_000_001, 2)],
)
def test_shuffled_passes_count_whole(rate: float, steps: int, passes: int) -> None:
    book = ledger(sampled(2.0, rate, steps, Batches.SHUFFLED))
    assert gaussian_shift(book) == pytest.approx(math.sqrt(passes) / 2, rel=1e-15)
    # The order hides nothing that is proved: Poisson sampling would claim far less.
    if passes > 2:
        assert epsilon_bound(ledger(sampled(2.0, rate, steps)), 1e-5) < 0.5 * epsilon_bound(book, 1e-5)


def test_fixed_size_batches() -> None:
    # Replacing one record moves a batch that holds it by two clip norms: never below Poisson batches at half the noise.
    for rate, steps in ((0.01, 500), (0.3, 10)):
        fixed = ledger(sampled(2.0, rate, steps, Batches.FIXED_SIZE))
        found = epsilon_bound(fixed, 1e-6)
        poisson = ledger(sampled(1.0, rate, steps))
        assert found >= epsilon_floor(poisson, 1e-6) * (1 - 1e-4)
        assert found <= epsilon_bound(ledger(sampled(0.5, rate, steps)), 1e-6)
        assert epsilon_floor(fixed, 1e-6) <= found
    # One step: exactly amplified.
    once = epsilon_bound(ledger(sampled(2.0, 0.1, 1, Batches.FIXED_SIZE)), 1e-6)
    exact = math.log1p(0.1 * math.expm1(gaussian.epsilon_at(1e-5, 1.0)))
    assert exact <= once <= exact * (1 + 1e-3)
    whole = epsilon_bound(ledger(sampled(2.0, 1.0, 9, Batches.FIXED_SIZE)), 1e-6)
    assert whole == gaussian.epsilon_at(1e-6, 3.0)


def test_adjacency_follows_from_the_kinds_of_batches() -> None:
    poisson, fixed, shuffled, in_bins = (
        sampled(1.0, 0.1, 5, batches)
        for batches in (Batches.POISSON, Batches.FIXED_SIZE, Batches.SHUFFLED, Batches.BALLS_AND_BINS)
    )
    assert ledger(poisson, in_bins).adjacency is Adjacency.ADD_OR_REMOVE
    assert ledger(poisson).adjacency is Adjacency.ADD_OR_REMOVE
    assert ledger(poisson, LaplaceNoise(scale=1.0)).adjacency is Adjacency.ADD_OR_REMOVE
    assert ledger(fixed, fixed).adjacency is Adjacency.REPLACE_ONE
    assert ledger(shuffled, poisson).adjacency is Adjacency.ZERO_OUT
    for other in (poisson, shuffled, LaplaceNoise(scale=1.0)):
        with pytest.raises(ValueError, match="fixed-size"):
            epsilon_bound(ledger(fixed, other), 1e-5)


def test_both_orders_are_counted() -> None:
    book = ledger(sampled(1.0, 0.01, 1000))
    values = [found.epsilon(1e-5) for found in composed(book, 1e-5)]
    assert len(values) == 2
    assert epsilon_bound(book, 1e-5) == max(values) > min(values)
    assert composed(book, 1e-5, order=1)[0].epsilon(1e-5) == values[1]
    assert len(composed(ledger(LaplaceNoise(scale=3.0, steps=2)), 1e-5)) == 1


def test_delta_and_epsilon_are_inverse() -> None:
    book = ledger(sampled(1.0, 0.01, 1000), LaplaceNoise(scale=30.0))
    epsilon = epsilon_bound(book, 1e-6)
    assert delta_bound(book, epsilon, near=1e-6) == pytest.approx(1e-6, rel=1e-6)
    assert delta_bound(book, 2 * epsilon, near=1e-6) < 1e-8
    assert delta_bound(book, 0.9 * epsilon, near=1e-6) > 1.2e-6


@pytest.mark.parametrize("delta", [1.0, -1e-5, math.nan])
def test_delta_out_of_range(delta: float) -> None:
    for bound in (epsilon_bound, epsilon_floor):
        with pytest.raises(ValueError, match="delta"):
            bound(ledger(sampled(1.0, 0.1, 5)), delta)


def test_gaussian_noise_bounds_no_loss_at_delta_0() -> None:
    assert epsilon_bound(ledger(sampled(1.0, 0.1, 5)), 0.0) == math.inf


def test_delta_near_the_largest_loss_is_exact() -> None:
    """Of one answer among 4 it is e / (e + 3) times 1 - e^(epsilon - 1), which is 0 from the largest loss on."""
    answers = ledger(ManyWayResponse(epsilon=1.0, answers=4))
    assert delta_bound(answers, 1.0, near=1e-6) < 1e-8
    assert delta_bound(answers, 1.1, near=1e-6) == 0
    assert 0.4 * 1e-3 < delta_bound(answers, 0.999, near=1e-6) < 1.1e-3
    laplace = ledger(LaplaceNoise(scale=1.0, steps=3), LaplaceNoise(scale=2.0, steps=2))
    assert delta_bound(laplace, 4.0, near=1e-10) < 1e-8
    assert delta_bound(laplace, 3.0, near=1e-6) > 1e-3
