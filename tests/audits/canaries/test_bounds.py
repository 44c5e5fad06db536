from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audits.canaries.bounds import bounds
from audits.canaries.design import bound_alpha, power, register
from audits.canaries.manifest import Manifest
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


def test_scores_that_know_everything_reach_the_ceiling(manifest: Manifest) -> None:
    coins = np.array([canary.included for canary in manifest.canaries])
    epsilon, _ = certified(manifest, coins + np.random.default_rng(0).normal(size=200) / 100)
    (group,) = manifest.guesses
    assert epsilon == pytest.approx(power(group, 1e-5, bound_alpha(0.05, manifest.guesses)).ceiling)
    assert certified(manifest, -1.0 * coins) == (0, 0)


def test_a_canary_without_a_score_is_not_guessed(manifest: Manifest) -> None:
    coins = np.array([canary.included for canary in manifest.canaries])
    scored = np.zeros(200, dtype=np.bool_)
    scored[:10] = True
    epsilon, _ = bounds(manifest, coins * 1.0, scored, (), 1e-5, 0.05)
    assert epsilon.details["made"] <= 10
    assert epsilon.samples == {"canaries": 200, "guesses": 40}


def test_more_canaries_can_show_more() -> None:
    few, many = (power(register([1] * count)[0], 1e-5, 0.025) for count in (100, 2000))
    assert few.ceiling < many.ceiling
    assert few.detectable is not None
    assert many.detectable is not None
    assert few.detectable > many.detectable
    assert power(register([1] * 4)[0], 1e-5, 0.025).detectable is None
