"""The least noise: against printed values, never above its target, and nearly the least."""

import importlib
import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from privctl.accounting import gaussian
from privctl.accounting.calibrate import LEAST, MOST, noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.published import clt_noise_multiplier
from privctl.domain.events import (
    SAMPLED_BATCHES,
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
    ZeroConcentratedDp,
)
from tests.few import few
from verify.recompute.ledger import epsilon_of

# rate, steps, delta, epsilon, noise by dp-accounting's pessimistic distribution, by the central limit theorem
TABLE = [
    (0.01, 1000, 1e-5, 1.0, 1.414631, 1.358992),
    (0.01, 1000, 1e-5, 8.0, 0.586260, 0.545637),
    (0.005, 1000, 1e-5, 1.0, 0.939293, 0.859295),
    (0.05, 1000, 1e-5, 2.0, 3.277663, 3.229587),
]


def training(noise: float, rate: float, steps: int, batches: Batches = Batches.POISSON) -> Ledger:
    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches),))


@pytest.mark.parametrize(("rate", "steps", "delta", "epsilon", "printed"), few([row[:5] for row in TABLE], 1))
def test_printed_noise(rate: float, steps: int, delta: float, epsilon: float, printed: float) -> None:
    found = noise_multiplier_for(epsilon, delta, lambda noise: training(noise, rate, steps))
    assert printed * (1 - 1e-3) <= found <= printed + max(1e-6, 1e-4 * printed)
    assert epsilon_bound(training(found, rate, steps), delta) <= epsilon
    # Nearly the least there is: a little less certainly violates, or at least cannot be shown to hold.
    assert epsilon_bound(training(found * (1 - 2e-4), rate, steps), delta) > epsilon
    assert epsilon_floor(training(found * (1 - 2e-3), rate, steps), delta) > epsilon
    # Half the noise is far outside.
    assert epsilon_floor(training(found / 2, rate, steps), delta) > 1.5 * epsilon


def test_the_central_limit_theorem_is_certainly_violated() -> None:
    violated = 0
    for rate, steps, delta, epsilon, _, clt in TABLE:
        noise = clt_noise_multiplier(epsilon, rate, steps, delta)
        assert noise == pytest.approx(clt, abs=2e-6)
        violated += epsilon_floor(training(noise, rate, steps), delta) > epsilon
    assert violated >= 3


@pytest.mark.parametrize("row", [pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_another_accountant_agrees_that_the_target_is_met(row: int) -> None:
    module = pytest.importorskip("dp_accounting").__name__ + ".pld.privacy_loss_distribution"
    distribution = importlib.import_module(module).from_gaussian_mechanism
    rate, steps, delta, epsilon, _, _ = TABLE[row]
    noise = noise_multiplier_for(epsilon, delta, lambda noise: training(noise, rate, steps))

    def theirs(noise: float, *, above: bool) -> float:
        one = distribution(noise, sampling_prob=rate, value_discretization_interval=1e-4, pessimistic_estimate=above)
        return float(one.self_compose(steps).get_epsilon_for_delta(delta))

    # Their grid adds about 1e-5 of epsilon to a pessimistic estimate; their optimistic one is below the truth.
    assert theirs(noise, above=True) <= epsilon * (1 + 2e-4)
    assert theirs(noise, above=False) <= epsilon
    assert theirs(noise / 2, above=False) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (1e-6, 1e-5, 0.01, 100),
        pytest.param(1e4, 1e-5, 0.01, 100, marks=pytest.mark.slow),
        pytest.param(1.0, 1e-300, 0.01, 100, marks=pytest.mark.slow),
        pytest.param(1.0, 1e-6, 1e-4, 1_000_000, marks=pytest.mark.slow),
        (0.1, 1e-9, 0.5, 10),
        (3.0, 0.1, 0.02, 1000),
        (2.0, 1e-10, 1 - 1e-12, 30),
        pytest.param(50.0, 1e-12, 1e-3, 5, marks=pytest.mark.slow),
    ],
)
def test_hostile_targets(epsilon: float, delta: float, rate: float, steps: int) -> None:
    found = noise_multiplier_for(epsilon, delta, lambda noise: training(noise, rate, steps))
    assert epsilon_bound(training(found, rate, steps), delta) <= epsilon
    assert epsilon_bound(training(found * (1 - 2e-4), rate, steps), delta) > epsilon
    assert epsilon_floor(training(found / 2, rate, steps), delta) > epsilon


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(batch, marks=pytest.mark.slow if batch is Batches.BALLS_AND_BINS else ())
        for batch in SAMPLED_BATCHES
    ],
)
@pytest.mark.parametrize(("epsilon", "delta"), few([(1.0, 1e-5), (8.0, 1e-6)], 0))
def test_every_kind_of_batch(batches: Batches, epsilon: float, delta: float) -> None:
    def book(noise: float) -> Ledger:
        return training(noise, 0.02, 120, batches)

    found = noise_multiplier_for(epsilon, delta, book)
    assert epsilon_bound(book(found), delta) <= epsilon < epsilon_bound(book(found * (1 - 2e-4)), delta)


def test_a_ledger_of_several_events_shares_one_noise() -> None:
    def book(noise: float) -> Ledger:
        return Ledger(
            events=(
                SampledGaussian(noise_multiplier=noise, sample_rate=0.01, steps=200),
                SampledGaussian(noise_multiplier=2 * noise, sample_rate=0.1, steps=5),
                RandomizedResponse(epsilon=0.05, sample_rate=0.1, steps=3),
            )
        )

    found = noise_multiplier_for(2.0, 1e-6, book)
    assert epsilon_bound(book(found), 1e-6) <= 2.0 < epsilon_bound(book(found * (1 - 2e-4)), 1e-6)


def test_a_secret_in_several_records() -> None:
    def book(noise: float) -> Ledger:
        return Ledger(events=(SecretMixture(probabilities=(0.01, 0.02, 0.02), noise_multiplier=noise, steps=100),))

    found = noise_multiplier_for(1.0, 1e-5, book)
    assert epsilon_bound(book(found), 1e-5) <= 1.0 < epsilon_bound(book(found * (1 - 2e-4)), 1e-5)
    assert found > noise_multiplier_for(1.0, 1e-5, lambda noise: training(noise, 0.02, 100))


def test_without_sampling_the_answer_is_exact() -> None:
    found = noise_multiplier_for(1.0, 1e-6, lambda noise: training(noise, 1.0, 16))
    assert found == pytest.approx(4 * 4.224678889326841, rel=1e-11)
    assert gaussian.epsilon_at(1e-6, 4 / found) <= 1.0


def test_targets_out_of_reach() -> None:
    with pytest.raises(ValueError, match=f"below {LEAST}"):
        noise_multiplier_for(1.0, 0.1, lambda noise: training(noise, 1e-6, 10))
    with pytest.raises(ValueError, match=re.escape(f"up to {MOST:g}")):
        noise_multiplier_for(1e-9, 1e-300, lambda noise: training(noise, 1.0, 10**9))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_bad_targets(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="epsilon|delta"):
        noise_multiplier_for(epsilon, delta, lambda noise: training(noise, 0.1, 10))


def met_by(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The least noise, which meets the target, though a thousandth less does not."""
    found = noise_multiplier_for(epsilon, delta, lambda noise: Ledger(events=(event_of(noise),)))
    assert epsilon_bound(Ledger(events=(event_of(found),)), delta) <= epsilon
    assert epsilon_bound(Ledger(events=(event_of(found * 0.999),)), delta) > epsilon
    return found


def test_the_other_order_of_the_neighbours_is_searched_where_it_is_the_worse_one() -> None:
    """With a removed record at the first noise that is tried, with an added one at the last."""

    def event_of(noise: float) -> Event:
        return LaplaceNoise(scale=noise, sample_rate=0.0122, steps=3)

    found = met_by(event_of, 0.00324, 5e-4)
    assert epsilon_of(Ledger(events=(event_of(found * 0.999),)), 5e-4).lower > 0.00324


def test_a_target_above_the_largest_epsilon_of_a_profile() -> None:
    """Total rho by the formula of Canonne, Kamath and Steinke 2020, proposition 12, at the best order."""
    noise = met_by(lambda noise: ZeroConcentratedDp(rho=1 / (2 * noise * noise), steps=10), 800.0, 1e-9)
    rho = 5 / noise**2
    above = np.geomspace(1e-4, 10, 200_000)
    least = rho * (1 + above) + np.log(above / (1 + above)) - (math.log(1e-9) + np.log1p(above)) / above
    assert least.min() == pytest.approx(800, rel=1e-3)


def test_so_little_noise_that_sampling_is_ignored() -> None:
    """As one Gaussian for each pass, two of them here."""
    noise = met_by(
        lambda noise: SampledGaussian(
            noise_multiplier=noise, sample_rate=0.1, steps=20, batches=Batches.BALLS_AND_BINS
        ), 1000.0, 1e-6,
    )  # fmt: skip
    assert noise == pytest.approx(math.sqrt(2) * gaussian.noise_multiplier_for(1000, 1e-6), rel=1e-4)
