"""What a curve promises against attackers: closed forms, known examples, and attackers who try."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from privctl.accounting.ledger import composed, epsilon_bound
from privctl.accounting.risk import (
    EitherOrder,
    GaussianTradeOff,
    PiecewiseTradeOff,
    Tightest,
    TradeOff,
    line,
    risks,
    trade_off,
)
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
)
from privctl.domain.guarantee import RiskMeasure

RATES = [0.0, 1e-9, 1e-4, 0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0]


def ledger(*events: Event) -> Ledger:
    return Ledger(events=events)


def sampled(noise: float, rate: float, steps: int, batches: Batches = Batches.POISSON) -> Ledger:
    return ledger(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, batches=batches))


LEDGERS = {
    "sampled": sampled(1.0, 0.02, 200),
    "fixed": sampled(2.0, 0.02, 200, Batches.FIXED_SIZE),
    "faint": sampled(5.6, 1e-12, 1_000_000),
    "loud": sampled(0.05, 0.5, 40),
    "laplace": ledger(LaplaceNoise(scale=4.0, steps=5)),
    "response": ledger(RandomizedResponse(epsilon=0.4, bits=3, sample_rate=0.2, steps=20)),
    "secret": ledger(SecretMixture(probabilities=(0.1,) * 5, noise_multiplier=2.0, steps=20)),
    "gaussian": sampled(2.0, 1.0, 3),
}


@pytest.mark.parametrize("mu", [0.01, 0.4, 1.0, 3.0])
def test_lines_of_a_gaussian_meet_its_closed_form(mu: float) -> None:
    # The same mechanism in disguise, so that the distribution has to answer instead of the formula.
    book = ledger(SecretMixture(probabilities=(1.0,), noise_multiplier=1 / mu, steps=1))
    exact, found = GaussianTradeOff(mu), trade_off(book)
    assert isinstance(found, Tightest)
    for rate in RATES:
        wanted = exact.true_positive_rate(rate)
        assert wanted - 1e-12 <= found.true_positive_rate(rate) <= wanted + 1e-4
    assert exact.advantage() - 1e-12 <= found.advantage() <= exact.advantage() + 1e-4
    assert found.true_positive_rate(0.1) < GaussianTradeOff(1.1 * mu).true_positive_rate(0.1)


def test_gaussian_closed_forms() -> None:
    curve = trade_off(sampled(4.0, 1.0, 16))
    assert isinstance(curve, GaussianTradeOff)
    assert curve.mu == 1
    assert curve.advantage() == pytest.approx(2 * ndtr(0.5) - 1, rel=1e-14)
    assert curve.true_positive_rate(0.01) == pytest.approx(ndtr(ndtri(0.01) + 1), rel=1e-14)
    # The advantage is attained at Phi(-mu / 2).
    rate = float(ndtr(-0.5))
    assert curve.true_positive_rate(rate) - rate == pytest.approx(curve.advantage(), rel=1e-12)


def test_an_epsilon_and_delta_alone() -> None:
    # riskcal's example: epsilon 1, delta .001, false positive rate .8 leave a false negative rate of .073 at least.
    curve = line(1.0, 0.001)
    assert 1 - curve.true_positive_rate(0.8) == pytest.approx(0.0732078, abs=1e-6)
    assert curve.true_positive_rate(0.01) == pytest.approx(math.e * 0.01 + 0.001, rel=1e-12)
    assert curve.advantage() == pytest.approx((math.e - 1 + 0.002) / (math.e + 1), rel=1e-12)
    assert line(0.0, 0.2).advantage() == pytest.approx(0.2)
    assert line(1e4, 0.1).advantage() == pytest.approx(1.0)
    assert line(1e4, 0.1).true_positive_rate(0.5) == 1
    # Pure privacy bounds both errors; one that speaks of epsilon 2 instead leaves more.
    assert line(1.0, 0.0).true_positive_rate(0.5) == pytest.approx(1 - 0.5 / math.e)
    assert line(2.0, 0.0).true_positive_rate(0.5) > line(1.0, 0.0).true_positive_rate(0.5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "faint" else name for name in LEDGERS]
)
def test_curves_rise_bend_down_and_beat_guessing(name: str) -> None:
    curve = trade_off(LEDGERS[name])
    values = [curve.true_positive_rate(rate) for rate in RATES]
    assert all(0 <= value <= 1 for value in values)
    assert all(value >= rate - 1e-12 for value, rate in zip(values, RATES, strict=True))
    assert all(later >= earlier for earlier, later in itertools.pairwise(values))
    grid = np.linspace(0, 1, 101)
    heights = np.array([curve.true_positive_rate(x) for x in grid])
    orders = curve.curves[0] if isinstance(curve, Tightest) else curve
    if not isinstance(orders, EitherOrder) or len(orders.curves) == 1:
        assert np.all(np.diff(heights, 2) <= 1e-12)
    assert np.max(heights - grid) <= curve.advantage() + 1e-9
    assert np.max(heights - grid) >= curve.advantage() - 0.02
    for parts in orders.curves if isinstance(orders, EitherOrder) else ():
        assert np.all(np.diff([parts.true_positive_rate(x) for x in grid], 2) <= 1e-12)


@pytest.mark.parametrize("name", [name for name in LEDGERS if name not in {"faint", "loud"}])
def test_curves_are_what_epsilon_says_at_every_delta(name: str) -> None:
    curve = trade_off(LEDGERS[name])
    for delta in (1e-2, 1e-5):
        epsilon = epsilon_bound(LEDGERS[name], delta)
        for rate in (1e-4, 0.01, 0.2):
            assert curve.true_positive_rate(rate) <= math.exp(epsilon) * rate + delta + 1e-5


@pytest.mark.parametrize("name", ["sampled", "fixed", "secret", "laplace"])
def test_advantage_is_delta_at_epsilon_zero(name: str) -> None:
    book = LEDGERS[name]
    wanted = max(math.exp(found.log_delta(0.0)) for found in composed(book, None))
    assert trade_off(book).advantage() == pytest.approx(wanted, abs=1e-9)


def test_lines_read_between_grid_points() -> None:
    curve = PiecewiseTradeOff(np.array([-1.0, 1.0]), np.array([0.7, 0.1]))
    # Straight in e^epsilon: (1 - 1/e) / (e - 1/e) of the way.
    share = (1 - math.exp(-1)) / (math.e - math.exp(-1))
    assert curve.advantage() == pytest.approx(0.7 + share * (0.1 - 0.7), rel=1e-14)
    assert PiecewiseTradeOff(np.array([0.5, 1.0]), np.array([0.4, 0.1])).advantage() == 1
    assert PiecewiseTradeOff(np.array([-2.0, -1.0]), np.array([0.9, 0.8])).advantage() == 0.8
    assert PiecewiseTradeOff(np.array([-2000.0, 3000.0]), np.array([1.0, 0.0])).advantage() <= 1


def true_positives(noise: float, rate: float, steps: int, *, at: float, draws: int) -> float:
    """A likelihood-ratio attack on the worst case: one record worth a whole clip norm; its rate, less 4 deviations."""
    rng = np.random.default_rng(5)

    def scores(member: bool) -> np.ndarray:
        total = np.zeros(draws)
        for _ in range(steps):
            y = noise * rng.standard_normal(draws)
            if member:
                y += rng.random(draws) < rate
            total += np.log1p(rate * np.expm1((y - 0.5) / noise**2))
        return total

    threshold = np.quantile(scores(False), 1 - at)
    found = float(np.mean(scores(True) > threshold))
    # The threshold's own error moves the false positive rate by 4 deviations at most.
    return found - 4 * math.sqrt(0.25 / draws)


@pytest.mark.parametrize("at", [0.05, 0.3])
def test_the_best_attack_stays_below_the_curve(at: float) -> None:
    noise, rate, steps, draws = 0.8, 0.2, 12, 100_000
    found = true_positives(noise, rate, steps, at=at, draws=draws)
    slack = 4 * math.sqrt(at / draws)
    curve = trade_off(sampled(noise, rate, steps))
    assert found <= curve.true_positive_rate(at + slack)
    # It comes close, so claims of less loss are refuted: twice the noise, half the rate, a third of the steps missing.
    assert found >= curve.true_positive_rate(at) - 0.03
    for wrong in (sampled(2 * noise, rate, steps), sampled(noise, rate / 2, steps), sampled(noise, rate, 8)):
        assert found > trade_off(wrong).true_positive_rate(at + slack)


def test_what_a_report_states() -> None:
    curve: TradeOff = trade_off(LEDGERS["sampled"])
    found = risks(curve, priors=(0.001, 0.5))
    assert [risk.measure for risk in found] == [
        RiskMeasure.ADVANTAGE,
        RiskMeasure.TRUE_POSITIVE_RATE,
        RiskMeasure.TRUE_POSITIVE_RATE,
        RiskMeasure.POSTERIOR,
        RiskMeasure.POSTERIOR,
    ]
    # Raised by a ten-thousandth, which another grid may find.
    assert found[0].bound == pytest.approx(curve.advantage() * 1.0001, rel=1e-12)
    assert found[3].bound == pytest.approx(curve.true_positive_rate(0.001) * 1.0001, rel=1e-12)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_out_of_range(rate: float) -> None:
    for curve in (line(1.0, 0.0), GaussianTradeOff(1.0)):
        with pytest.raises(ValueError, match="false_positive_rate"):
            curve.true_positive_rate(rate)


def test_nobody_tells_more_than_whether_the_record_ever_took_part() -> None:
    """Rate 1e-7, ten steps: whatever the noise, an attacker wins nothing in all but one of a million runs."""
    for noise in (1.0, 1e-9):
        curve = trade_off(sampled(noise, 1e-7, 10))
        assert curve.advantage() <= 1.0000001e-6
        assert curve.true_positive_rate(0.001) <= 0.001 + 1.0000001e-6
    assert trade_off(sampled(1e-3, 0.1, 10)).advantage() == pytest.approx(1 - 0.9**10, rel=1e-3)


def test_what_is_known_sharpens_the_curve() -> None:
    book = sampled(1.0, 0.02, 200)
    assert trade_off(book, (0.0, 1e-4)).advantage() <= 1e-4 < trade_off(book).advantage()
