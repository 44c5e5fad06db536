"""Ledgers again: enclosures that hold the numbers of others, at every kind of event, and refute what lies outside."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from privctl.domain.events import (
    Batches,
    DiscreteGaussianNoise,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    ReplacedGaussian,
    SampledGaussian,
    SecretMixture,
)
from tests.few import few
from verify.events import randomized_response
from verify.losses import cells
from verify.losses.bound_pair import BoundPair
from verify.recompute import gaussian, ledger, risk
from verify.recompute.ledger import NoBoundError, bounds, epsilon_of


def poisson(noise: float, rate: float, steps: int) -> Ledger:
    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps),))


# docs/theory.md#epsilon-of-sampled-gaussians: dp_accounting's upper bound at an interval of 1e-4, and its lower one.
KNOWN = [
    (1, 0.01, 1000, 1e-5, 1.8282436, 1.7782397),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in ((1, 0.005, 1000, 1e-5, 0.86391067, 0.81390376), (0.8, 0.02, 500, 1e-5, 4.6680134, 4.6430123))
    ),
    (2, 0.05, 2000, 1e-6, 6.1065594, 6.0065547),
    pytest.param(1.1, 256 / 60000, 14062, 1e-5, 2.381686, 1.678537, marks=pytest.mark.slow),
    pytest.param(0.6, 0.001, 10000, 1e-6, 3.152227, 2.6818352, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "above", "below"), few(KNOWN, 0))
def test_known_epsilons_of_dp_sgd(
    noise: float, rate: float, steps: int, delta: float, above: float, below: float
) -> None:
    # Asked about numbers a hair to both sides, it must decide, for one and against the other.
    claims = (above * (1 - 1e-3), above * (1 + 1e-4))
    found = epsilon_of(poisson(noise, rate, steps), delta, claims)
    assert below < found.lower <= found.upper < above * (1 + 1e-4)
    assert [found.at_most(claim) for claim in claims] == [False, True]
    assert found.upper - found.lower < 2e-3 * above


@pytest.mark.parametrize("rate", few([0.002, 0.3], 1))
@pytest.mark.parametrize("noise", few([0.7, 1.5, 6.0], 0, 2))
@pytest.mark.parametrize("steps", few([1, 30], 1))
def test_a_grid_of_cases_agrees_with_dp_accounting(noise: float, rate: float, steps: int) -> None:
    delta = 1e-6
    other, lower = (
        dp_pld.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-3, pessimistic_estimate=pessimistic
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (True, False)
    )
    found = bounds(poisson(noise, rate, steps), math.log(delta), 1e-4, other or None).epsilon(delta)
    assert found.lower <= other * (1 + 1e-9) + 1e-9
    assert found.upper >= lower * (1 - 1e-9)
    assert found.upper - found.lower <= 1e-3 * found.upper + 1e-5


def numerically(events: tuple[Event, ...], epsilon: float) -> float:
    """Delta of one step by brute force on a fine grid of outputs."""
    (event,) = events
    assert isinstance(event, SampledGaussian)
    x = np.linspace(-25, 25, 400_001)
    without = np.exp(-((x / event.noise_multiplier) ** 2) / 2)
    moved = np.exp(-(((x - 1) / event.noise_multiplier) ** 2) / 2)
    rate = event.sample_rate
    present = (1 - rate) * without + rate * moved
    scale = (x[1] - x[0]) / (event.noise_multiplier * math.sqrt(2 * math.pi))
    both = (
        np.maximum(present - math.exp(epsilon) * without, 0).sum(),
        np.maximum(without - math.exp(epsilon) * present, 0).sum(),
    )
    return float(max(both) * scale)


@pytest.mark.parametrize(("noise", "rate", "epsilon"), [(1, 0.2, 0.5), (0.5, 0.01, 1.0), (3, 0.9, 0.2)])
def test_one_step_is_what_its_definition_says(noise: float, rate: float, epsilon: float) -> None:
    whole = poisson(noise, rate, 1)
    delta = numerically(whole.events, epsilon)
    found = bounds(whole, math.log(delta), 1e-5, epsilon).delta(epsilon)
    assert found.lower <= delta * (1 + 1e-7)
    assert found.upper >= delta * (1 - 1e-7)
    assert found.upper - found.lower < 1e-3 * delta


def test_without_sampling_it_is_the_exact_gaussian() -> None:
    # The grid knows nothing of the closed formula: a rate of 1 - 1e-12 is composed as any other.
    whole = poisson(5, 1 - 1e-12, 25)
    found, exact = epsilon_of(whole, 1e-6, (4.9,)), 4.8865541174622119964
    assert found.lower <= exact <= found.upper
    mixed = Ledger(events=(*poisson(2, 1, 2).events, LaplaceNoise(scale=1e6)))
    found = epsilon_of(mixed, 1e-5, (3.0,))
    assert found.near(gaussian.epsilon_at(1e-5, math.sqrt(0.5)).upper, 1e-3)


def test_pure_losses_are_exact() -> None:
    # 5 uses of Laplace noise of scale 3: epsilon 5/3 at delta 0, and all but that at a tiny delta.
    whole = Ledger(events=(LaplaceNoise(scale=3, steps=5),))
    assert ledger.pure_epsilon(whole).near(5 / 3)
    assert epsilon_of(whole, 1e-12, (1.6667,)).near(5 / 3, 1e-3)
    assert math.isinf(ledger.pure_epsilon(poisson(1, 0.1, 1)).lower)
    # e^800 is no float.
    rare = ledger.pure_epsilon(Ledger(events=(LaplaceNoise(scale=1 / 800, sample_rate=0.01),)))
    assert rare.near(800 + math.log(0.01))


def test_randomized_response_is_a_binomial() -> None:
    # 40 bits kept with log-odds 0.5, everybody in every batch: delta by summing binomial probabilities.
    chance, epsilon = 1 / (1 + math.exp(-0.5)), 4.0
    delta = 0.0
    for kept in range(41):
        p = math.comb(40, kept) * chance**kept * (1 - chance) ** (40 - kept)
        delta += max(0.0, p * -math.expm1(min(0.0, epsilon - (2 * kept - 40) * 0.5)))
    found = epsilon_of(Ledger(events=(RandomizedResponse(epsilon=0.5, steps=40),)), delta)
    assert found.near(epsilon, 1e-4)


def test_a_bit_that_is_hardly_ever_flipped() -> None:
    """With log-odds 40, a bit is kept with a probability that a float rounds to 1."""
    cells = randomized_response._cells_of(RandomizedResponse(epsilon=40))
    assert cells.p.tolist() == [pytest.approx(math.exp(-40)), 1]
    assert cells.q.tolist() == [1, pytest.approx(math.exp(-40))]


def test_two_kinds_compose() -> None:
    """Bits kept with log-odds 1 and 2: only where both are kept is the loss beyond 2, which delta counts there."""
    whole = Ledger(events=(RandomizedResponse(epsilon=1), RandomizedResponse(epsilon=2)))
    both = 1 / (1 + math.exp(-1)) / (1 + math.exp(-2))
    found = bounds(whole, math.log(1e-3), 1e-3).delta(2.0)
    assert found.lower <= both * -math.expm1(-1) <= found.upper
    assert found.near(both * -math.expm1(-1), 1e-3)
    assert ledger.pure_epsilon(whole).near(3)


def test_shares_of_bits_at_small_rates() -> None:
    # docs/papers.md#sound-releases: e1 of one bit at rate 0.005 and log-odds 1 is the largest loss of a step.
    whole = Ledger(events=(RandomizedResponse(epsilon=1, sample_rate=0.005, steps=1),))
    assert ledger.pure_epsilon(whole).near(0.008554713017922183)


@pytest.mark.slow
def test_events_of_different_kinds_compose() -> None:
    # 300 and 200 steps of one kind are 500 of it, however they are listed.
    parts = (*poisson(1, 0.01, 300).events, *poisson(1, 0.01, 200).events)
    apart, together = (epsilon_of(w, 1e-5, (1.3,)) for w in (Ledger(events=parts), poisson(1, 0.01, 500)))
    assert apart.near(together.upper, 1e-3)
    more = Ledger(events=(*parts, LaplaceNoise(scale=3)))
    assert epsilon_of(more, 1e-5).lower > together.upper


def test_fixed_batches_lie_between_a_real_case_and_the_theorem() -> None:
    event = SampledGaussian(noise_multiplier=2, sample_rate=0.01, steps=1, batches=Batches.FIXED_SIZE)
    found = bounds(Ledger(events=(event,)), math.log(1e-5), 1e-5).delta(0.3)
    # Balle, Barthe and Gaboardi 2018: delta(ln(1 + q (e^eps - 1))) = q delta(eps) of noise 2 / 2.
    inner = math.log1p(math.expm1(0.3) / 0.01)
    assert found.upper == pytest.approx(0.01 * gaussian.delta_at(inner, 1).upper, rel=1e-3)
    assert 0 < found.lower < found.upper


def test_opposite_records_show_nearly_all_that_fixed_batches_may() -> None:
    """They are Poisson steps of noise 1, of epsilon 3.5908 by dp_accounting 0.6.0; fixed-size ones have 3.7433."""
    event = SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=20, batches=Batches.FIXED_SIZE)
    whole = Ledger(events=(event,))
    assert epsilon_of(whole, 1e-5, (3.59,)).at_most(3.59) is False
    assert epsilon_of(whole, 1e-5, (3.744,)).at_most(3.744) is True


@pytest.mark.parametrize(("noise", "rate", "steps"), [(10.0, 0.999999, 100), (400.0, 0.99, 200)])
def test_fixed_batches_of_nearly_all_records_cost_no_more_than_whole_ones(
    noise: float, rate: float, steps: int
) -> None:
    """Without sampling it is one Gaussian; and losing some of the records in each step gains hardly anything."""
    event = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=Batches.FIXED_SIZE)
    found = epsilon_of(Ledger(events=(event,)), 1e-6)
    assert found.upper <= gaussian.epsilon_at(1e-6, 2 * math.sqrt(steps) / noise).upper
    assert found.lower <= found.upper <= found.lower * (1 + 2e-4)


def test_a_step_with_two_records_of_a_secret_is_a_mixture_of_three_normals() -> None:
    """Drawn with probabilities 0.1 and 0.2; the hockey-stick divergence where the ratio of densities is e^epsilon."""
    event = SecretMixture(probabilities=(0.1, 0.2), noise_multiplier=2, steps=1)
    found = epsilon_of(Ledger(events=(event,)), 1e-3)
    weights, means = np.array([0.72, 0.26, 0.02]), np.arange(3)

    def delta(epsilon: float) -> float:
        at = brentq(lambda x: weights @ np.exp((means * x - means**2 / 2) / 4) - math.exp(epsilon), -50, 50)
        return float(weights @ ndtr((means - at) / 2) - math.exp(epsilon) * ndtr(-at / 2))

    assert delta(found.upper) <= 1e-3 <= delta(found.lower)
    assert found.upper - found.lower < 1e-5


@pytest.mark.slow
def test_secrets_in_several_records() -> None:
    event = SecretMixture(probabilities=(0.01,), noise_multiplier=1, steps=1000)
    assert epsilon_of(Ledger(events=(event,)), 1e-5).near(1.82824, 1e-4)  # as a record sampled at that rate
    many = SecretMixture(probabilities=(0.02, 0.05, 0.1, 0.2), noise_multiplier=2, steps=50)
    found = epsilon_of(Ledger(events=(many,)), 1e-5)
    assert found.lower > epsilon_of(poisson(2, 0.2, 50), 1e-5).upper


def test_an_attacker_s_chances() -> None:
    # One exact Gaussian, by its formula and by the grid: 2 Phi(1/2) - 1 and Phi(Phi^-1(0.01) + 1).
    by_formula, by_grid = poisson(1, 1, 1), Ledger(events=(*poisson(1, 1, 1).events, LaplaceNoise(scale=1e7)))
    for whole in (by_formula, by_grid):
        assert risk.advantage(whole).near(0.38292492254802620728, 1e-4)
        assert risk.power(whole, 0.01).near(0.0923622481, 1e-4)
    rare = poisson(0.3, 1e-3, 10)
    assert risk.advantage(rare).upper <= 1 - 0.999**10 + 1e-15


def test_what_hardly_ever_takes_part_needs_no_epsilon() -> None:
    """A record that is in no batch with probability 1 - delta or more changes nothing beyond delta."""
    assert epsilon_of(poisson(100, 1e-9, 1000), 1e-5) == BoundPair(0.0, 0.0)
    assert epsilon_of(poisson(0.5, 1e-9, 1000), 1.0001e-6) == BoundPair(0.0, 0.0)
    together = Ledger(events=(*poisson(1, 4e-7, 1).events, LaplaceNoise(scale=0.1, sample_rate=4e-7)))
    assert epsilon_of(together, 1e-6) == BoundPair(0.0, 0.0)
    # At half of that chance there is an epsilon.
    assert epsilon_of(poisson(0.5, 1e-6, 1), 5e-7).lower > 1e-7


def test_a_witness_is_an_event_that_can_be_checked() -> None:
    whole = poisson(1, 0.01, 1000)
    found = bounds(whole, math.log(1e-5), 1e-3, 1.83)
    gain, _, present, log_absent = max(bound.event(1.5) for bound in found.below)
    assert gain == pytest.approx(present - math.exp(1.5 + log_absent))
    assert gain > 1e-5
    assert "the event 'their sum exceeds" in str(found.witness(1.5, 1e-5))
    # At an epsilon that holds no event refutes it.
    assert found.witness(2.0, 1e-5) is None
    # A loss of 30,000 whenever the record is drawn: no float holds the event's probability without the record.
    little_noise = bounds(poisson(0.004, 0.01, 1), math.log(1e-5), 1e-3, 3e4)
    assert "or more with the record present and e^-1" in str(little_noise.witness(1000.0, 1e-5))


@pytest.mark.parametrize("delta", [1e-3, pytest.param(1e-10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.5, 0.01, 10), (1, 1e-4, 1000), (20, 0.5, 1000)])
def test_the_bound_from_above_is_never_below_the_one_from_below(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    found = bounds(poisson(noise, rate, steps), math.log(delta), 1e-3)
    for epsilon in (0.0, 0.1, 1.0, 10.0):
        assert found.delta(epsilon).lower <= found.delta(epsilon).upper


def test_what_is_not_bounded_says_so() -> None:
    passes = SampledGaussian(noise_multiplier=1, sample_rate=0.1, steps=10, batches=Batches.SHUFFLED)
    with pytest.raises(NoBoundError, match="records in turn"):
        epsilon_of(Ledger(events=(passes, *poisson(1, 0.1, 5).events)), 1e-5)


def test_a_delta_near_1_counts_the_losses_that_are_left_out() -> None:
    """A record that is nearly always drawn, under next to no noise: almost all losses are of thousands."""
    found = epsilon_of(poisson(0.01, 0.99999, 1), 0.9995, [12.0])
    assert found.at_most(12.0) is not True


@pytest.mark.slow
def test_epsilons_beyond_the_floats_exponents_are_not_refuted() -> None:
    """e^epsilon is no float from 710 on. Four releases whose losses are 300 at most, each with probability 1/2."""
    found = bounds(Ledger(events=(LaplaceNoise(scale=1 / 300, steps=4),)), math.log(1e-6), 1e-3)
    assert found.delta(1200.001).lower == 0
    assert found.epsilon(1e-6).lower <= 1200 < found.epsilon(1e-6).upper < 1200.01
    # A record drawn once in a hundred times, under next to no noise: 1398.943 by privctl's accountant.
    rare_batch = bounds(poisson(0.02, 0.01, 1), math.log(1e-5), 1e-3).epsilon(1e-5)
    assert rare_batch.lower <= 1398.944 <= rare_batch.upper


def test_next_to_no_noise_in_many_steps_counts_how_often_a_record_is_drawn() -> None:
    """By the binomial law of how often: given k draws, the sum of the losses is normal but for terms below 1e-200."""
    noise, rate, steps, delta = 0.0156619, 64 / 391, 123, 1e-5
    drawn, shift = np.arange(steps + 1), 1 / noise
    chances = binom.pmf(drawn, steps, rate)
    mean = drawn * (math.log(rate) + shift**2 / 2) + (steps - drawn) * math.log1p(-rate)

    def above(loss: float) -> float:
        return float(chances[1:] @ ndtr((mean[1:] - loss) / (shift * np.sqrt(drawn[1:]))))

    by_law = brentq(lambda loss: above(loss) - delta, 1e4, 2e5)
    # P(loss > epsilon + 30) (1 - e^-30) <= delta(epsilon) <= P(loss > epsilon).
    found = epsilon_of(poisson(noise, rate, steps), delta, [by_law * (1 - 1e-3), by_law * (1 + 1e-3)])
    assert found.lower <= by_law
    assert by_law - 30 <= found.upper <= by_law * (1 + 1e-3)
    assert found.lower >= by_law * (1 - 1e-3)
    # The probability without the record is no float.
    witness = bounds(poisson(noise, rate, steps), math.log(delta), 1e-3, by_law).witness(7e4, delta)
    assert "or more with the record present and e^-7" in str(witness)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("event", "delta", "epsilon"),
    [
        (DiscreteGaussianNoise(stddev=0.1, sample_rate=1e-5, steps=1000), 1e-15, 229.577738),
        (ReplacedGaussian(noise_multiplier=0.025, sample_rate=0.1, steps=1), 1e-5, 945.633287),
    ],
)
def test_losses_of_next_to_no_noise(event: Event, delta: float, epsilon: float) -> None:
    """They are few and far apart, which must take no memory, or beyond the floats. By privctl's accountant."""
    found = bounds(Ledger(events=(event,)), math.log(delta), 1e-3).epsilon(delta)
    assert found.lower - 1e-6 < epsilon < found.upper + 1e-6 < epsilon * 1.001


def test_a_pass_that_has_hardly_begun_counts() -> None:
    event = SampledGaussian(noise_multiplier=2, sample_rate=1e-10, steps=3, batches=Batches.SHUFFLED)
    assert ledger.exact_shift(Ledger(events=(event,))) == 0.5


def test_a_large_tilt_is_rounded_in_the_safe_direction() -> None:
    """Delta far below the largest loss's mass: masses are tilted by e^90000, which costs eleven digits."""
    event = RandomizedResponse(epsilon=0.11284259754382552, bits=8, sample_rate=0.999999980804947)
    # By mpmath at 40 digits, the worse order.
    assert bounds(Ledger(events=(event,)), math.log(1e-5), 1e-3).epsilon(1e-5).lower <= 0.90108843361401194
    found = epsilon_of(Ledger(events=(event,)), 1e-5, [0.9010884336])
    assert found.lower <= 0.90108843361401194 <= found.upper


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
def test_the_epsilon_from_below_is_where_its_delta_is_reached(delta: float) -> None:
    below = bounds(poisson(1, 0.05, 40), math.log(1e-5), 1e-3).below
    found = max(bound.epsilon(delta) for bound in below)
    assert found > 0
    assert max(bound.delta(found * (1 - 1e-9)) for bound in below) > delta
    assert max(bound.delta(found * (1 + 1e-9)) for bound in below) <= delta + 1e-300
    assert all(bound.epsilon(0.999) == 0 for bound in below)


@pytest.mark.parametrize(("most", "fits"), [(28_000, True), (40_000, True), (16_000, False)])
def test_next_to_no_noise_takes_a_grid_that_is_widened_again(
    monkeypatch: pytest.MonkeyPatch, most: int, fits: bool
) -> None:
    """The first wider grid still has 1.14 and 1.05 times as many cells as fit: density decides, not the grid alone."""
    monkeypatch.setattr(cells, "MOST_CELLS", most)
    target = (-16.0, 1e-4, None)
    if not fits:
        with pytest.raises(cells.TooFineError):
            ledger._orders(poisson(0.02, 0.1, 3), -60.0, target, attained_only=False)
        return
    for fine, _ in ledger._orders(poisson(0.02, 0.1, 3), -60.0, target, attained_only=False):
        assert 10_000 < len(fine[0][0].p) <= most + 3
