"""Posteriors by the trade-off curve: against numbers from elsewhere, what each screen rests on, and an attacker."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from privctl.accounting import ledger, risk
from privctl.accounting.poisson_binomial import poisson_binomial
from privctl.accounting.secrets.batched import informations
from privctl.accounting.secrets.count_laws import round_up_to_levels
from privctl.accounting.secrets.fano import binary_kl, curve_posterior, information, posterior
from privctl.accounting.secrets.posterior_curves import (
    CurveCalibration,
    SecretMemberships,
    curve_bounds,
    fano_bounds,
    least_noise_by_curve,
)
from privctl.accounting.secrets.trade_off import COARSE, FINE, Curve, curve_of, pointwise_largest, tails_of_law
from privctl.domain.events import Ledger, SecretMixture
from tests.few import few

Floats = NDArray[np.float64]

#: One step, two values alike: what the best guess has, by mpmath. (probabilities, sigma, success)
GUESSES = [
    ([1.0], 1, 0.8413447461),
    ([0.3], 0.7, 0.6270308822),
    ([0.3, 0.3, 0.3], 1, 0.7541968105),
    ([0.01], 0.5, 0.5047724987),
]
#: (probabilities, steps, prior, posterior): the noise by Fano's inequality, and the least by the curve.
NOISES = [
    ([0.001] * 50, 2000, 0.001, 0.1, 2.7027260282, 1.4204),
    ([0.005] * 10, 500, 0.01, 0.2, 1.3779436045, 0.9956),
    ([0.001] * 75, 2000, 0.001, 0.5, 1.5783170245, 1.2671),
    ([0.01], 1000, 0.001, 0.1, 0.6643833650, 0.5071),
]


def book(secrets: Sequence[Sequence[float]], priors: float | Sequence[float], steps: int) -> SecretMemberships:
    """A book whose secrets share no record."""
    starts = np.cumsum([0, *map(len, secrets)])
    return SecretMemberships(
        starts=starts,
        records=np.arange(starts[-1]),
        probabilities=np.array([p for secret in secrets for p in secret], np.float64),
        priors=np.broadcast_to(np.asarray(priors, np.float64), len(secrets)).copy(),
        steps=steps,
    )


def least(held: SecretMemberships, targets: Floats) -> CurveCalibration:
    budgets = np.array([binary_kl(p, r) for p, r in zip(targets.tolist(), held.priors.tolist(), strict=True)])
    memberships = (held.starts, held.records, held.probabilities)
    return least_noise_by_curve(held, targets, budgets, lambda sigma: informations(*memberships, sigma, held.steps))


def tails(probabilities: Sequence[float]) -> Floats:
    return tails_of_law(poisson_binomial(probabilities))


@pytest.mark.parametrize(("probabilities", "sigma", "success"), GUESSES)
def test_the_curve_is_what_the_best_guess_has(probabilities: list[float], sigma: float, success: float) -> None:
    (found,) = curve_bounds(book([probabilities], 0.5, 1), sigma)
    assert success - 1e-10 <= found <= success * (1 + 2e-5)


@pytest.mark.parametrize("mu", [0.1, 0.8563, 3.0])
def test_a_record_that_is_always_drawn_is_a_gaussian(mu: float) -> None:
    """Phi(Phi^-1(r) + mu): 0.3666 nats allow 0.01274 from 0.001, Fano says 0.1 (docs/papers.md#the-trade-off-curve)."""
    found = curve_of(tails([1.0]), 10 / mu, 100).posterior(0.001)
    assert found == pytest.approx(ndtr(ndtri(0.001) + mu), rel=2e-4)
    if mu == 0.8563:
        assert found == pytest.approx(0.01274, abs=2e-5)


def test_against_published_figures() -> None:
    """0.0851 by dp-accounting's mixtures at a grid of 1e-3, 0.0849 at a finer one; Fano's inequality 0.2."""
    event = SecretMixture(probabilities=(0.005,) * 10, noise_multiplier=1.378, steps=500)
    found = curve_posterior(event, 0.01)
    assert 0.0848 < found < 0.0851
    assert posterior(information(event), 0.01) == pytest.approx(0.2, abs=1e-4)
    (below,) = ledger.composed(Ledger(events=(event,)), None, order=0, lower=True)
    assert risk.PiecewiseTradeOff(*below.profile()).true_positive_rate(0.01) - 1e-4 < found
    assert curve_posterior(SecretMixture(probabilities=(0.0,), noise_multiplier=1, steps=1), 0.01) == 0.01


@pytest.mark.parametrize("interval", [1e-2, pytest.param(1e-3, marks=pytest.mark.slow)])
def test_against_dp_accounting(interval: float) -> None:
    """Its MixtureGaussianPrivacyLoss, record removed, composed: the same minimum over epsilons, also from above."""
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    law = poisson_binomial([0.05] * 3)
    theirs = library.from_mixture_gaussian_mechanism(
        0.8, law.shifts.tolist(), law.weights.tolist(), value_discretization_interval=interval
    ).self_compose(20)
    epsilons = np.linspace(0, 12, 2401)
    deltas = theirs._pmf_remove.get_delta_for_epsilon(epsilons.tolist())
    best = float((np.exp(epsilons) * 0.01 + deltas).min())
    found = curve_of(tails([0.05] * 3), 0.8, 20).posterior(0.01)
    assert found * (1 - 2e-5) <= best <= found * (1 + 2 * interval)


@pytest.mark.slow
def test_every_line_is_tried_where_it_matters() -> None:
    """The corner that is looked up has the least of all lines, also where deltas were cut off at 1."""
    priors = np.geomspace(1e-9, 0.999, 60)
    for probabilities, sigma, steps in (([0.001] * 75, 1.4, 2000), ([0.3], 0.2, 5), ([0.01], 5.0, 10)):
        for precision in (1e-2, COARSE, FINE):
            curve = curve_of(tails(probabilities), sigma, steps, precision)
            lines = np.exp(np.minimum(curve.epsilons, 700))[:, None] * priors + curve.deltas[:, None]
            whole = np.minimum(lines.min(axis=0), 1)
            np.testing.assert_allclose(curve.posteriors(priors), whole, rtol=1e-6)
    assert Curve(np.array([0.0]), np.array([0.25])).posterior(0.5) == 0.75


def test_more_records_more_often_give_more_away() -> None:
    """Upper tails that are nowhere lower never have a lower posterior, at any prior, after any number of steps."""
    random, priors = np.random.default_rng(3), np.geomspace(1e-4, 0.5, 9)
    for _ in range(25):
        rates = random.uniform(0, 0.4, random.integers(1, 9))
        more = np.clip(rates + random.uniform(0, 0.05, len(rates)), 0, 1)
        if random.random() < 0.5:
            more = np.append(more, random.uniform(0, 0.1))
        sigma, steps = float(random.uniform(0.4, 4)), int(random.integers(1, 50))
        small, large = (curve_of(tails(p.tolist()), sigma, steps, 1e-4).posteriors(priors) for p in (rates, more))
        assert (small <= large * (1 + 1e-3)).all()


def test_laws_that_are_not_ordered_are_not_ordered_by_luck() -> None:
    """The planted violation: one mean, one upper tail below the other at 1 and above it at 2; each wins somewhere."""
    often, together = curve_of(tails([0.1, 0.1]), 0.5, 1), curve_of(np.array([1, 0.1, 0.1, 0.0]), 0.5, 1)
    gap = [often.posterior(r) - together.posterior(r) for r in (1e-4, 0.5)]
    assert gap[0] < -1e-3
    assert gap[1] > 1e-3


@pytest.mark.parametrize(("share", "sound"), [(1.0, True), (0.5, False)])
def test_a_cover_bounds_each_of_its_secrets(share: float, sound: bool) -> None:
    """The pointwise largest upper tail does; the mean of largest and smallest, the planted fault, does not."""
    random, priors = np.random.default_rng(5), np.array([0.001, 0.01, 0.3])
    held = [random.uniform(0.005, 0.05, random.integers(3, 40)).tolist() for _ in range(12)]
    laws = [tails(rates) for rates in held]
    length = min(map(len, laws))
    most, few = pointwise_largest(laws), np.min([law[:length] for law in laws], axis=0)
    cover = most if share == 1 else share * most[:length] + (1 - share) * few
    bound = curve_of(cover, 1.5, 30).posteriors(priors)
    each = np.array([curve_of(law, 1.5, 30).posteriors(priors) for law in laws])
    assert bool((each <= bound * (1 + 1e-4)).all()) is sound


def test_the_tails_are_those_of_the_law_and_no_lower() -> None:
    law = tails([0.5, 0.25])
    np.testing.assert_allclose(law, [1, 1 - 0.375, 0.125, 0], atol=1e-11)
    assert (law >= [1, 0.625, 0.125, 0]).all()
    values = np.random.default_rng(1).uniform(0, 1, 1000)
    assert (round_up_to_levels(values) >= values).all()
    assert (round_up_to_levels(values) <= values * 1.0007).all()


def test_draws_too_rare_to_matter_count_as_told() -> None:
    law = tails([0.01] * 100)
    whole, cut = (curve_of(law, 2.0, 50, COARSE, prior=prior).posterior(0.001) for prior in (0.0, 0.001))
    assert whole <= cut * (1 + 1e-9)
    assert cut <= whole * (1 + 1e-4)


@pytest.mark.parametrize(
    ("probabilities", "steps", "prior", "target", "fano", "noise"),
    [pytest.param(*row, marks=[] if i == 3 else pytest.mark.slow) for i, row in enumerate(NOISES)],
)
def test_the_least_noise_of_one_secret(
    probabilities: list[float], steps: int, prior: float, target: float, fano: float, noise: float
) -> None:
    held = book([probabilities], prior, steps)
    found = least(held, np.array([target]))
    assert found.fano_noise == pytest.approx(fano, rel=1e-9)
    assert found.noise_multiplier == pytest.approx(noise, rel=2e-4)
    assert found.curve_bounds[0] <= target
    event = SecretMixture(
        probabilities=tuple(probabilities), noise_multiplier=0.999 * found.noise_multiplier, steps=steps
    )
    (below,) = ledger.composed(Ledger(events=(event,)), None, order=0, lower=True)
    # From below, at a thousandth less noise, the best test already has more.
    losses, deltas = below.profile()
    assert float((np.exp(losses) * prior + deltas).min()) > target


def many(count: int, seed: int) -> tuple[SecretMemberships, Floats]:
    """Secrets of all sizes, some never drawn, at three priors and many targets."""
    random = np.random.default_rng(seed)
    rates = [random.lognormal(-6.5, 1, random.integers(1, 60)).clip(0, 0.5).tolist() for _ in range(count)]
    rates[7] = [0.0, 0.0]
    priors = random.choice([1e-4, 1e-3, 0.05], count)
    return book(rates, priors, 400), priors + (0.7 - priors) * random.uniform(0.02, 0.9, count)


def own_bounds(held: SecretMemberships, sigma: float) -> Floats:
    """By each secret's own law."""
    found = []
    for first, last, prior in zip(held.starts[:-1], held.starts[1:], held.priors, strict=True):
        law = tails(held.probabilities[first:last].tolist())
        found.append(curve_of(law, sigma, held.steps, 1e-4).posterior(float(prior)))
    return np.array(found)


def test_every_one_of_many_secrets_is_kept_and_one_just() -> None:
    held, targets = many(10, 0)
    found = least(held, targets)
    amounts = informations(held.starts, held.records, held.probabilities, found.noise_multiplier, held.steps)
    np.testing.assert_allclose(amounts, found.informations)
    bounds = np.minimum(found.curve_bounds, fano_bounds(amounts, held.priors))
    assert (bounds <= targets).all()
    assert found.noise_multiplier < 0.9 * found.fano_noise
    own = own_bounds(held, found.noise_multiplier)
    assert (own <= found.curve_bounds * (1 + 1e-3)).all(), "no bound is below that of the secret's own law"
    assert 0.99 < (own / targets).max() <= 1 + 1e-4
    assert found.curve_bounds[7] == held.priors[7]


@pytest.mark.parametrize("halved", [0, math.inf])
def test_the_curve_of_a_group_bounds_each_of_its_secrets(halved: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [[0.04], [0.1], [0.02] * 2, [0.0]]
    held, sigma = book(rates, 0.01, 20), 0.5
    own = curve_bounds(held, sigma)
    monkeypatch.setattr("privctl.accounting.secrets.posterior_curves._FEW", 0)
    monkeypatch.setattr("privctl.accounting.secrets.posterior_curves._GROUP_RATIO", 3.0)
    found = curve_bounds(held, sigma, own, halved=halved)
    assert (found >= own * (1 - 1e-3)).all()
    assert (found[:3] > 1.05 * own[:3]).any() == (halved == 0), "one group, which halving takes apart"
    assert found[3] == 0.01


@pytest.mark.slow
@pytest.mark.parametrize("halvings", [0, 60])
def test_groups_that_are_too_coarse_are_halved_or_given_noise(halvings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held, targets = many(9, 1)
    exact = least(held, targets).noise_multiplier
    # So few have curves of their own otherwise.
    for name, value in (("FEW", 0), ("CANDIDATES", 1), ("MOST_HALVINGS", halvings), ("GROUP_RATIO", 3.0)):
        monkeypatch.setattr(f"privctl.accounting.secrets.posterior_curves._{name}", value)
    coarse = least(held, targets)
    assert exact <= coarse.noise_multiplier * (1 + 1e-6)
    assert (np.minimum(coarse.curve_bounds, fano_bounds(coarse.informations, held.priors)) <= targets).all()
    assert (own_bounds(held, coarse.noise_multiplier) <= targets * (1 + 1e-4)).all()


def test_a_secret_that_is_hardly_ever_drawn_needs_little_noise() -> None:
    """That it takes part at all is rarer than what is allowed: the noise stops at a floor."""
    found = least(book([[0.0001]], 0.01, 10), np.array([0.5]))
    assert found.noise_multiplier == min(0.05, found.fano_noise)
    assert found.curve_bounds[0] <= 0.01 + 0.001 + 1e-6


@pytest.mark.parametrize("steps", few([1, 5, 20], 0, 1))
def test_an_attacker_stays_below_the_bound_and_above_it_at_half_the_noise(steps: int) -> None:
    """He knows the law of the noisy sums along the direction of each of 20 values, and takes the likeliest value."""
    rates, count, target = [0.3, 0.2, 0.2], 20, 0.5
    held = book([rates], 1 / count, steps)
    sigma = least(held, np.array([target])).noise_multiplier
    runs = 4000
    slack = 4 * math.sqrt(target * (1 - target) / runs)
    assert share_right(rates, sigma, steps, count, runs) <= target + slack
    assert share_right(rates, sigma / 2, steps, count, runs) > target + slack


def share_right(rates: list[float], sigma: float, steps: int, count: int, runs: int) -> float:
    """How often the right value is the likeliest."""
    random = np.random.default_rng(steps)
    law = poisson_binomial(rates)
    noisy = random.normal(0, sigma, (runs, count, steps))
    noisy[:, 0] += random.choice(law.shifts, (runs, steps), p=law.weights)
    k = law.shifts[:, None, None, None]
    ratios = np.log(np.tensordot(law.weights, np.exp((k * noisy - k * k / 2) / sigma**2), 1)).sum(axis=2)
    return float((ratios.argmax(axis=1) == 0).mean())


@pytest.mark.parametrize(("change", "named"), [({"priors": [0.0]}, "above 0"), ({"priors": [0.1, 0.1]}, "1 secrets"),
                                               ({"steps": 0}, "steps")])  # fmt: skip
def test_out_of_range(change: dict[str, object], named: str) -> None:
    arguments = {"starts": np.array([0, 1]), "records": np.array([0]), "probabilities": np.array([0.1]),
             "priors": np.array([0.1]), "steps": 1}  # fmt: skip
    changed = {k: np.array(v) if isinstance(v, list) else v for k, v in change.items()}
    with pytest.raises(ValueError, match=named):
        SecretMemberships(**(arguments | changed))  # type: ignore[arg-type]
