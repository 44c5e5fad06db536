"""The least noise: against printed values, never above its target, and nearly the least."""

import importlib
import re

import pytest

from privctl.accounting import gaussian
from privctl.accounting.calibrate import LEAST, MOST, noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.published import clt_noise_multiplier
from privctl.domain.events import SAMPLED_BATCHES, Batches, Ledger, RandomizedResponse, SampledGaussian, SecretMixture
from tests.few import few

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
