"""Secrets: binary KL, its inverse, and calibrated noise, against 50-digit values."""

import math
from itertools import pairwise

import mpmath
import pytest

from privctl.accounting.mixtures import kl
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.accounting.secrets.fano import (
    binary_kl,
    information,
    noise_multiplier_for,
    posterior,
)
from privctl.domain.events import SecretMixture

KL = [
    (0.1, 0.001, 0.366593004807),
    (0.5, 0.001, 2.761230709098),
    (0.9, 0.001, 5.891996827726),
    (0.02, 0.001, 0.041096482627),
    (0.1, 0.01, 0.144479347476),
    (0.5, 0.01, 1.614463080361),
    (0.9, 0.01, 3.820575227583),
    (0.5, 0.1, 0.510825623766),
    (0.9, 0.1, 1.757779661869),
    (0.5, 1e-6, 6.214608598422),
    (0.9, 1e-6, 12.108876628776),
]
# (budget, prior, posterior)
INVERSE = [
    (0.1, 0.5, 0.719794626161),
    (1, 0.5, 1),
    (0.1, 0.1, 0.256866401710),
    (1, 0.1, 0.689217226545),
    (0.1, 0.001, 0.037476005540),
    (1, 0.001, 0.221137660466),
    (5, 0.001, 0.796860916566),
]
# (probabilities, sigma, posterior by the reference form, by the pairwise form) for one step and prior 1/2
GUESSES = [
    ((1.0,), 1, 0.9518112542, 1),
    ((0.3,), 0.7, 0.7495937303, 0.8576677306),
    ((0.3, 0.3, 0.3), 1, 0.9439428596, 1),
    ((0.01,), 0.5, 0.5259688442, 0.5347034492),
]
# (probabilities, steps, prior, posterior, noise multiplier)
CALIBRATED = [
    ([0.01], 1000, 0.001, 0.1, 0.6643833650),
    ([0.001] * 50, 2000, 0.001, 0.1, 2.7027260282),
    ([0.001] * 75, 2000, 0.001, 0.5, 1.5783170245),
    ([0.005] * 10, 500, 0.01, 0.2, 1.3779436045),
]


@pytest.mark.parametrize(("p", "r", "expected"), KL)
def test_binary_kl(p: float, r: float, expected: float) -> None:
    assert binary_kl(p, r) == pytest.approx(expected, abs=6e-13)


@pytest.mark.parametrize("r", [1e-300, 1e-9, 0.3, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("change", [-1, -0.2, -1e-8, 0, 1e-12, 0.05, 0.11, 1e3, 1e200])
def test_binary_kl_is_accurate_relative_to_itself(r: float, change: float) -> None:
    p = min(1.0, r * (1 + change))
    with mpmath.workdps(700):
        a, b = mpmath.mpf(p), mpmath.mpf(r)
        ones = (1 - a) * mpmath.log((1 - a) / (1 - b)) if a < 1 else 0
        exact = float((a * mpmath.log(a / b) if a else 0) + ones)
    assert binary_kl(p, r) == pytest.approx(exact, rel=3e-14, abs=1e-315)


@pytest.mark.parametrize(("budget", "prior", "expected"), INVERSE)
def test_posterior_has_its_known_value(budget: float, prior: float, expected: float) -> None:
    assert posterior(budget, prior) == pytest.approx(expected, abs=6e-13)


@pytest.mark.parametrize("prior", [1e-300, 1e-9, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("budget", [0, 1e-300, 1e-12, 0.1, 3, 600, math.inf])
def test_posterior_is_on_the_safe_side(budget: float, prior: float) -> None:
    found = posterior(budget, prior)
    assert prior <= found <= 1
    assert found == 1 or binary_kl(found, prior) >= budget
    # ... and not by much: a smaller posterior is within the budget.
    assert found == prior or binary_kl(max(prior, found * (1 - 1e-9)), prior) <= budget


@pytest.mark.parametrize(("probabilities", "sigma", "reference", "pairs"), GUESSES)
def test_posterior_bound(probabilities: tuple[float, ...], sigma: float, reference: float, pairs: float) -> None:
    event = SecretMixture(probabilities=probabilities, noise_multiplier=sigma)
    assert posterior(information(event), 0.5) == pytest.approx(reference, abs=6e-11)
    assert posterior(information(event, pairwise=True), 0.5) == pytest.approx(pairs, abs=6e-11)


def test_bound_holds_where_the_truth_is_known_and_half_of_it_does_not() -> None:
    # One sure record and two values: the best guess is right with probability Phi(1 / sigma) = 0.8413.
    event = SecretMixture(probabilities=(1.0,), noise_multiplier=1)
    truth = 0.5 * math.erfc(-1 / math.sqrt(2))
    assert posterior(information(event), 0.5) > truth
    assert posterior(information(event) / 4, 0.5) < truth


@pytest.mark.parametrize(("probabilities", "steps", "prior", "target", "sigma"), CALIBRATED)
def test_calibrated_noise_meets_the_target_and_half_of_it_does_not(
    probabilities: list[float], steps: int, prior: float, target: float, sigma: float
) -> None:
    found = noise_multiplier_for(probabilities, steps, prior, target)
    assert found == pytest.approx(sigma, abs=6e-11)
    law, budget = poisson_binomial(probabilities), binary_kl(target, prior)
    assert steps * kl(law, found) <= budget * (1 + 1e-15)
    assert steps * kl(law, found * (1 - 1e-11)) > budget
    for factor in (1.0, 0.5):  # half the noise must violate the target
        event = SecretMixture(probabilities=tuple(probabilities), noise_multiplier=found * factor, steps=steps)
        assert (posterior(information(event), prior) <= target * (1 + 1e-12)) == (factor == 1.0)


def test_pairs_need_more_noise_but_at_most_twice() -> None:
    for probabilities, steps, prior, target, sigma in CALIBRATED:
        assert sigma < noise_multiplier_for(probabilities, steps, prior, target, pairwise=True) <= 2 * sigma


@pytest.mark.parametrize(
    ("probabilities", "steps", "prior", "target"),
    [
        ([1e-300], 1, 0.5, 0.9),
        ([1e-300], 10**12, 1e-300, 0.9),
        ([1e-9] * 5, 10**6, 0.5, 0.5 + 1e-10),
        ([1e-3] * 100_000, 10**4, 1e-6, 0.5),
        ([0.5] * 10, 1, 1e-3, 0.99),
        ([1.0], 1, 0.5, 0.51),
        ([0.3], 10**6, 1e-200, 2e-200),
        ([1e-12], 1, 0.1, 0.2),
    ],
)
@pytest.mark.parametrize("pairs", [False, True])
def test_hostile_calibrations(probabilities: list[float], steps: int, prior: float, target: float, pairs: bool) -> None:
    sigma = noise_multiplier_for(probabilities, steps, prior, target, pairwise=pairs)
    budget = binary_kl(target, prior)

    def cost(multiplier: float) -> float:
        event = SecretMixture(probabilities=tuple(probabilities), noise_multiplier=multiplier, steps=steps)
        return information(event, pairwise=pairs)

    assert cost(sigma) <= budget * (1 + 1e-13)
    assert cost(sigma / 2) > budget


def test_posterior_bound_is_monotone() -> None:
    bounds = [
        posterior(information(SecretMixture(probabilities=(0.01, 0.02), noise_multiplier=sigma, steps=10**6)), 0.01)
        for sigma in (1e-3, 0.3, 1, 10, 100, 1e3, 1e6)
    ]
    assert bounds[0] == 1
    assert bounds[-1] == pytest.approx(0.01, rel=0.01)
    assert all(later <= earlier for earlier, later in pairwise(bounds))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([0.1], 0, 0.1, 0.5), "steps"),
        (([0.1], 1, 0.0, 0.5), "prior"),
        (([0.1], 1, 0.1, 1.0), "posterior"),
        (([0.1], 1, 0.5, 0.5), "posterior"),
        (([], 1, 0.1, 0.5), "probabilities"),
        (([0.0], 1, 0.1, 0.5), "probabilities"),
        (([1.0], 10**305, 0.1, 0.1 + 1e-15), "no noise multiplier"),
        (([0.3], 10**6, 1e-300, 2e-300), "no noise multiplier"),
    ],
)
def test_impossible_calibrations(arguments: tuple[list[float], int, float, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        noise_multiplier_for(*arguments)


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_budget_out_of_range(budget: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        posterior(budget, 0.1)
