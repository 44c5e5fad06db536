from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from audits.canaries.bounds import bounds, bounds_of
from audits.canaries.conditions import share_of_failures
from audits.canaries.design import CanaryPower, bound_alpha, power, register
from audits.canaries.manifest import Guesses, Manifest
from audits.canaries.verdict import claims
from audits.claims import EpsilonClaim
from audits.statistics import f_dp, one_run
from audits.statistics.several_guesses import GuessCount, epsilon_bound
from privctl.domain.verdict import Outcome
from tests.audits.canaries.small import planted

EVERYTHING = np.ones(200, dtype=np.bool_)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return planted(tmp_path_factory.mktemp("planted"), count=200)


def tossed(manifest: Manifest, coins: np.ndarray) -> Manifest:
    pairs = zip(manifest.canaries, coins.tolist(), strict=True)
    return replace(manifest, canaries=tuple(replace(canary, included=coin) for canary, coin in pairs))


def certified(manifest: Manifest, scores: np.ndarray) -> tuple[float, float]:
    epsilon, mu = bounds(manifest, scores, EVERYTHING, (), 1e-5, 0.05)
    assert epsilon.lower is not None
    assert mu.lower is not None
    return epsilon.lower, mu.lower


def test_scores_that_know_nothing_certify_nothing(manifest: Manifest) -> None:
    source = np.random.default_rng(1)
    above = 0
    for _ in range(400):
        coins = source.random(200) < 0.5
        above += max(certified(tossed(manifest, coins), source.normal(size=200))) > 0
    assert above / 400 <= 0.05


def test_one_coin_for_two_canaries_would_break_the_level(manifest: Manifest) -> None:
    source = np.random.default_rng(1)
    above = 0
    for _ in range(200):
        coins = np.repeat(source.random(20) < 0.5, 10)
        above += max(certified(tossed(manifest, coins), np.repeat(source.normal(size=20), 10))) > 0
    assert above / 200 > 0.1, "which is why repeated secrets void the bounds"


def test_half_as_a_fixed_number_keeps_the_level() -> None:
    """The number of right guesses of random ones on a fixed half is twice a hypergeometric one, and spreads more."""
    canaries, alpha = 40, 0.045
    fixed, right = hypergeom(canaries, canaries // 2, canaries // 2), np.arange(0, canaries + 1, 2)
    chances = fixed.pmf(right // 2)
    counts = [GuessCount(canaries=canaries, guesses=canaries, correct=int(number)) for number in right]
    share = share_of_failures(canaries // 2, canaries)
    assert share == pytest.approx(binom.pmf(canaries // 2, canaries, 0.5), rel=1e-12)
    wrong, allowed_for = (
        sum(chance for chance, count in zip(chances, counts, strict=True) if epsilon_bound([count], 0.0, level)[0] > 0)
        for level in (alpha, alpha * share)
    )
    assert wrong > alpha, "which is why the bounds allow for it"
    assert allowed_for <= alpha
    assert [share_of_failures(*drawn) for drawn in ((21, 40), (19, 38), (125, 251))] == [1, 1, 1]


def test_exactly_half_lowers_the_bounds(manifest: Manifest) -> None:
    source = np.random.default_rng(5)
    order = source.permutation(200)
    fixed = tossed(manifest, order < 100)
    scores = 3.0 * (order < 100) + source.normal(size=200)
    found = bounds(fixed, scores, EVERYTHING, (), 1e-5, 0.05)[0]
    by_coins = bounds_of(fixed.guesses, scores, EVERYTHING, order < 100, 1e-5, 0.025)[0]
    assert found.lower is not None
    assert by_coins.lower is not None
    assert 0 < found.lower < by_coins.lower
    assert found.confidence == pytest.approx(1 - 0.025 * binom.pmf(100, 200, 0.5))


def test_scores_that_know_everything_reach_the_ceiling(manifest: Manifest) -> None:
    coins = np.array([canary.included for canary in manifest.canaries])
    epsilon, _ = certified(manifest, coins + np.random.default_rng(0).normal(size=200) / 100)
    sets = manifest.guesses
    assert epsilon == pytest.approx(power(sets, 1e-5, bound_alpha(0.05, sets, sets)).ceiling)
    assert certified(manifest, -1.0 * coins) == (0, 0)


def test_a_canary_without_a_score_is_not_guessed(manifest: Manifest) -> None:
    coins = np.array([canary.included for canary in manifest.canaries])
    scored = np.zeros(200, dtype=np.bool_)
    scored[:10] = True
    epsilon, _ = bounds(manifest, coins * 1.0, scored, (), 1e-5, 0.05)
    assert [epsilon.details[f"guesses {i}"] for i in (1, 2, 3, 4)] == [20, 40, 100, 200]
    assert max(epsilon.details[f"made {i}"] for i in (1, 2, 3, 4)) <= 10
    assert epsilon.samples["canaries"] == 200


def best(count: int) -> CanaryPower:
    sets = register([1] * count)
    return power(sets, 1e-5, bound_alpha(0.05, sets, sets))


def test_more_canaries_can_show_more() -> None:
    few, many = best(100), best(2000)
    assert few.ceiling < many.ceiling
    assert few.detectable is not None
    assert many.detectable is not None
    assert few.detectable > many.detectable
    assert best(4).detectable is None


def test_an_older_manifest_is_judged_by_the_guesses_it_registered(manifest: Manifest) -> None:
    """A tenth each way, at the whole share of the failure probability: numbers that were published before."""
    old = replace(manifest, guesses=(Guesses(copies=1, canaries=200, included=20, excluded=20),))
    coins = np.array([canary.included for canary in manifest.canaries])
    epsilon, mu = bounds(old, coins + np.random.default_rng(0).normal(size=200) / 100, EVERYTHING, (), 1e-5, 0.05)
    assert epsilon.confidence == mu.confidence == 0.975
    assert epsilon.samples == mu.samples == {"canaries": 200, "guesses": 40}
    assert epsilon.lower == pytest.approx(max(
        one_run.epsilon_bound(200, 40, 40, 1e-5, 0.025), f_dp.epsilon_bound(200, 40, 40, 1e-5, 0.025)
    ))  # fmt: skip
    assert mu.lower == f_dp.mu_bound(200, 40, 40, 0.025)


@pytest.mark.parametrize(("count", "outcome"), [(250, Outcome.INCONCLUSIVE), (16_000, Outcome.REFUTED)])
def test_a_claim_of_epsilon_8_without_any_noise(count: int, outcome: Outcome) -> None:
    """A tenth each way could never refute it: 5.84 was the most that 10,000 canaries certified."""
    coins = np.random.default_rng(3).random(count) < 0.5
    assert coins.sum() not in (count // 2, 0)
    found = bounds_of(
        register([1] * count), coins + np.arange(count) * 1e-9, np.ones(count, np.bool_), coins, 1e-5, 0.025
    )
    (verdict,) = claims(found, [EpsilonClaim(epsilon=8, delta=1e-5)])
    assert verdict.outcome is outcome
    assert ("no bound can exceed 3.887" in verdict.reason) is (count == 250)
    assert ("--to-see 8" in verdict.reason) is (count == 250)


def test_a_claim_is_tested_at_its_own_delta(manifest: Manifest) -> None:
    """(1, 0.001) is refuted by results that say little at 1e-5, and a claim at a smaller delta is refuted as well."""
    coins = np.array([canary.included for canary in manifest.canaries])
    found = bounds(manifest, coins * 1.0 + np.arange(200) * 1e-9, EVERYTHING, (), 1e-5, 0.05)
    for delta in (1e-3, 1e-5, 0.0):
        (verdict,) = claims(found, [EpsilonClaim(epsilon=1, delta=delta)])
        assert verdict.outcome is Outcome.REFUTED
    (verdict,) = claims(found, [EpsilonClaim(epsilon=1, delta=0.9)])
    assert verdict.outcome is not Outcome.REFUTED
