"""Nats of published signs and what they imply, against 50-digit values and simulation."""

import math

import mpmath as mp
import numpy as np
import pytest

from privctl.accounting.mutual_information import (
    auc,
    ceiling,
    fire_probability_for,
    nats,
    pinsker_total_variation,
    total_variation,
    worst_case_delta_poisson,
    worst_case_delta_shuffled,
)
from privctl.domain.events import SignBits
from tests.accounting.theorems import catastrophic_delta

# (groups, ceiling, {nats: fire probability}); 1000 steps at rate 0.005.
SETTINGS = [
    (2, 6.931471805599453, {0.1: 0.014426950408889635, 0.5: 0.07213475204444816, 2: 0.28853900817779266}),
    (2, 6.931471805599453, {1: 0.14426950408889633}),
    (8, 27.725887222397812, {0.5: 0.01803368801111204}),
    (19, 65.8489821531948, {0.5: 0.007593131794152}),
    (148, 512.9289136143595, {0.5: 0.0009747939465465969}),
]

# (nats, Pinsker, exact total variation, AUC, delta of the catastrophic event)
IMPLIED = [
    (0.01, 0.1414213562, 0.1411851405, 0.6312185186, 0.0269502194),
    (0.1, 0.4472135955, 0.4395892523, 0.8429698969, 0.2493862669),
    (0.25, 0.7071067812, 0.6757861557, 0.9474426916, 0.5471508572),
    (0.5, 1, 0.9036225083, 0.9953556895, 0.8742050845),
    (0.6, 1, 0.9624931562, 0.9992966183, 0.9539083629),
    (1, 1, 1, 1, 1),
    (2, 1, 1, 1, 1),
]

# (groups, nats, Poisson, shuffled, limit of many steps)
WORST_CASES = [
    (2, 0.1, 0.13345313, 0.13525474, 0.13434558),
    (2, 0.5, 0.50121107, 0.52701312, 0.51390321),
    (2, 1, 0.73802949, 0.78944280, 0.76370991),
    (2, 2, 0.91559846, 0.96677148, 0.94416699),
    (148, 0.5, 0.48944574, 0.51407420, 0.51390321),
]


def signs(groups: int, epsilon: float) -> SignBits:
    probability = fire_probability_for(epsilon, groups, 1000, 0.005)
    return SignBits(groups=groups, fire_probability=probability, sample_rate=0.005, steps=1000)


@pytest.mark.parametrize(("groups", "most", "probabilities"), SETTINGS)
def test_fire_probability(groups: int, most: float, probabilities: dict[float, float]) -> None:
    assert ceiling(groups, 1000, 0.005) == pytest.approx(most, rel=1e-14)
    for epsilon, probability in probabilities.items():
        event = signs(groups, epsilon)
        assert event.fire_probability == pytest.approx(probability, rel=1e-12)
        assert epsilon * (1 - 1e-14) <= nats(event) <= epsilon


def test_more_nats_than_can_be_published() -> None:
    with pytest.raises(ValueError, match="6.93147 nats"):
        fire_probability_for(6.94, 2, 1000, 0.005)
    with pytest.raises(ValueError, match="at most 0 nats"):
        fire_probability_for(1e-6, 2, 1000, 0)
    assert fire_probability_for(ceiling(3, 10, 1), 3, 10, 1) == 1


@pytest.mark.parametrize(("epsilon", "pinsker", "exact", "area", "catastrophe"), IMPLIED)
def test_what_nats_imply(epsilon: float, pinsker: float, exact: float, area: float, catastrophe: float) -> None:
    assert pinsker_total_variation(epsilon) == pytest.approx(pinsker, abs=6e-11)
    assert total_variation(epsilon) == pytest.approx(exact, abs=6e-11)
    assert auc(epsilon) == pytest.approx(area, abs=6e-11)
    assert catastrophic_delta(epsilon) == pytest.approx(catastrophe, abs=6e-11)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.3, 0.69])
def test_bounds_invert_their_channels_at_50_digits(epsilon: float) -> None:
    with mp.workdps(50):

        def symmetric(tau: float) -> mp.mpf:
            t = mp.mpf(tau)
            return ((1 + t) * mp.log(1 + t) + (1 - t) * mp.log(1 - t)) / 2

        def z_channel(probability: float) -> mp.mpf:
            d = mp.mpf(probability)
            return mp.log(1 + d * (1 - d) ** ((1 - d) / d))

        tau, d = total_variation(epsilon), catastrophic_delta(epsilon)
        assert float(symmetric(tau)) == pytest.approx(epsilon, rel=1e-12)
        assert float(z_channel(d)) == pytest.approx(epsilon, rel=1e-12)
        assert symmetric(tau * 0.999) < epsilon < z_channel(min(1, d * 1.001))  # a smaller cap would be exceeded


def test_caps_are_ordered_and_vacuous_from_ln_2() -> None:
    for epsilon in (0.0, 1e-300, 1e-25, 1e-6, 0.2, 0.5, 0.693):
        assert catastrophic_delta(epsilon) <= total_variation(epsilon) <= pinsker_total_variation(epsilon)
    assert total_variation(math.log(2)) == 1 == catastrophic_delta(1e4)


@pytest.mark.parametrize(("groups", "epsilon", "poisson", "shuffled", "limit"), WORST_CASES)
def test_worst_case_delta(groups: int, epsilon: float, poisson: float, shuffled: float, limit: float) -> None:
    event = signs(groups, epsilon)
    assert worst_case_delta_poisson(event) == pytest.approx(poisson, abs=6e-9)
    assert worst_case_delta_shuffled(event) == pytest.approx(shuffled, abs=6e-9)
    assert -math.expm1(-nats(event) / math.log(2)) == pytest.approx(limit, abs=6e-9)


@pytest.mark.parametrize(("degrees", "limit"), [(1, 0.0040), (10, 0.039), (90, 0.303)])
def test_gradients_at_an_angle(degrees: float, limit: float) -> None:
    event, angle = signs(2, 0.5), math.radians(degrees)
    # The figures are those of many steps; Poisson batches lie below and shuffled ones above.
    assert -math.expm1(-nats(event) / math.log(2) * degrees / 180) == pytest.approx(limit, abs=6e-4)
    assert worst_case_delta_poisson(event, angle) == pytest.approx(limit, rel=0.02)
    assert worst_case_delta_poisson(event, angle) < worst_case_delta_shuffled(event, angle)


def test_worst_case_delta_by_simulation() -> None:
    event = signs(2, 0.5)
    random = np.random.default_rng(7)
    visits = random.binomial(event.steps, event.sample_rate, 40_000)
    caught = (random.binomial(visits * event.groups, event.fire_probability) > 0).mean()
    assert caught == pytest.approx(worst_case_delta_poisson(event), abs=0.01)
    assert abs(caught - worst_case_delta_shuffled(event)) > 0.015


def test_worst_cases_at_the_edges() -> None:
    silent = SignBits(groups=3, fire_probability=0, sample_rate=1, steps=10)
    loud = SignBits(groups=3, fire_probability=1, sample_rate=1, steps=10)
    unseen = SignBits(groups=3, fire_probability=1, sample_rate=0, steps=10)
    for f in (worst_case_delta_poisson, worst_case_delta_shuffled):
        assert (f(silent), f(loud), f(unseen), f(loud, 0.0)) == (0, 1, 0, 0)
        with pytest.raises(ValueError, match="angle"):
            f(loud, 4.0)


def test_implications_out_of_range() -> None:
    for f in (pinsker_total_variation, total_variation, auc, catastrophic_delta):
        with pytest.raises(ValueError, match="epsilon"):
            f(-1e-9)
        with pytest.raises(ValueError, match="epsilon"):
            f(math.nan)
