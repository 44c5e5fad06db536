from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import bdtrc, expit, ndtri

from audits.claims import EpsilonClaim
from audits.model_scores.audit import audit_scores
from audits.statistics import one_run, two_arm
from audits.statistics.f_dp import epsilon_of_mu
from audits.statistics.metrics import auc
from audits.statistics.power import (
    detectable_auc,
    one_run_detectable,
    one_run_detectable_gaussian,
    two_arm_ceiling,
    two_arm_detectable,
    two_arm_detectable_gaussian,
)


@pytest.mark.parametrize(
    ("m", "one_run_most", "two_arm_most", "detectable", "beyond_one"),
    [
        (50, 2.785, None, 0.777, 2.058),
        (100, 3.493, 3.435, 0.513, 1.627),
        (200, 4.194, 4.081, 0.371, 1.423),
        (500, 5.114, 4.840, 0.224, 1.269),
        (1000, 5.809, 5.493, 0.159, 1.184),
        (2000, 6.503, 6.143, 0.113, 1.130),
        (10000, 8.113, 7.737, None, None),
    ],
)
def test_the_documented_powers_are_computed(
    m: int, one_run_most: float, two_arm_most: float | None, detectable: float | None, beyond_one: float | None
) -> None:
    assert one_run.epsilon_bound(m, m, m, 0) == pytest.approx(one_run_most, abs=6e-4)
    if two_arm_most is not None:
        assert two_arm_ceiling(m, m, 1e-5) == pytest.approx(two_arm_most, abs=6e-4)
    if detectable is not None and beyond_one is not None:
        assert one_run_detectable(m, m, 0) == pytest.approx(detectable, abs=6e-4)
        assert one_run_detectable(m, m, 0, claim=1) == pytest.approx(beyond_one, abs=6e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("claim", [0.0, 1.0])
def test_one_run_power_is_what_it_says(delta: float, claim: float) -> None:
    m = 300
    true = one_run_detectable(m, m, delta, claim=claim)
    least = next(v for v in range(m + 1) if one_run.epsilon_bound(m, m, v, delta) > claim)
    assert bdtrc(least - 1, m, expit(true)) == pytest.approx(0.8, abs=1e-9)


def rejected(inner: np.ndarray, outer: np.ndarray, claim: float) -> float:
    """How often single rank tests on rows of scores, one row an audit, reject the claim: the best of them."""
    tests = two_arm.rank_tests(inner[0], outer[0])
    curve, found = two_arm.ApproximateDp(epsilon=claim, delta=1e-5), []
    for number, test in enumerate(tests):
        bar = next(k for k in range(test.counted + 2) if two_arm.p_value(test, curve, k) <= 0.05 * test.share)
        beyond = [two_arm.rank_tests(a, b)[number].beyond for a, b in zip(inner, outer, strict=True)]
        found.append(np.mean(np.array(beyond) >= bar))
    return max(found)


@pytest.mark.parametrize(("models", "claim"), [((60, 40), 0.0), ((150, 150), 1.0)])
def test_two_arm_power_is_what_it_says(models: tuple[int, int], claim: float) -> None:
    source = np.random.default_rng(0)
    rate = float(expit(two_arm_detectable(*models, 1e-5, claim=claim)))
    inner, outer = (source.random((800, count)) for count in models)
    ties = [source.random((800, count)) for count in models]  # the strongest attack breaks ties, by coins of its own
    inner, outer = 1.0 * (inner < rate) + ties[0] / 2, 1.0 * (outer >= rate) + ties[1] / 2
    assert rejected(inner, outer, claim) == pytest.approx(0.8, abs=0.05)


def test_a_score_with_two_values_notices_less_and_the_verdict_says_so(tmp_path: Path) -> None:
    """Randomized response that 500 models notice four times in five without ties; the score of one bit has few."""
    source, delta, claim = np.random.default_rng(3), 1e-5, EpsilonClaim(epsilon=0.25, delta=1e-5)
    rate = float(expit(two_arm_detectable(500, 500, delta, claim=claim.epsilon)))
    inner, outer = (source.random((40, 500)) < share for share in (rate, 1 - rate))
    curve = two_arm.ApproximateDp(epsilon=claim.epsilon, delta=delta)

    def noticed(spread: float) -> float:
        ties = spread * source.random((2, 40, 500))
        arms = zip(inner + ties[0], outer + ties[1], strict=True)
        return float(np.mean([two_arm.claim_p_value(two_arm.rank_tests(*arm), curve) <= 0.05 for arm in arms]))

    assert noticed(0.5) >= 0.8
    assert noticed(0.0) < 0.6
    scores = {"with": source.integers(0, 2, 500).tolist(), "without": source.integers(0, 2, 500).tolist()}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scores))
    (verdict,) = audit_scores(path, claim=claim).verdicts
    assert (
        "with the best score and no ties so many models notice, 80 times in 100, randomized response" in verdict.reason
    )


def test_gaussian_power_is_what_it_says() -> None:
    true = two_arm_detectable_gaussian(100, 100, 1e-5, claim=0.5)
    mu = next(mu for mu in np.linspace(0, 4, 4001) if epsilon_of_mu(mu, 1e-5) >= true)
    scores = np.random.default_rng(6).normal(size=(2, 800, 100))
    assert rejected(scores[0] + mu, scores[1], 0.5) == pytest.approx(0.8, abs=0.05)


def test_a_gaussian_mechanism_is_harder_to_notice_than_randomized_response() -> None:
    assert two_arm_detectable_gaussian(1000, 1000, 1e-5) == pytest.approx(0.727, abs=5e-3)
    for claim in (0.0, 1.0, 4.0):
        hard, easy = (
            detectable(1000, 1000, 1e-5, claim=claim)
            for detectable in (two_arm_detectable_gaussian, two_arm_detectable)
        )
        assert hard > 1.5 * easy
    assert math.isnan(two_arm_detectable_gaussian(1000, 1000, 0))
    assert two_arm_detectable_gaussian(100, 100, 1e-5, claim=4) == math.inf


def test_what_nothing_detects() -> None:
    assert one_run_detectable(50, 50, 0, claim=3) == math.inf
    assert two_arm_detectable(10, 10, 0, claim=3) == math.inf
    assert two_arm_detectable(100, 100, 0, claim=1000) == math.inf
    assert two_arm_detectable(2, 2, 0.5) == math.inf


def test_detectable_auc_matches_simulated_intervals() -> None:
    area = detectable_auc(120, 200)
    assert detectable_auc(1000, 1000) == pytest.approx(0.5365, abs=5e-5)
    source = np.random.default_rng(3)
    shift = math.sqrt(2) * float(ndtri(area))
    found = [auc(source.normal(shift, 1, 120), source.normal(size=200)).lower > 0.5 for _ in range(400)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.07)


def test_too_few_records_detect_no_auc() -> None:
    """Not even complete separation has an interval above 1/2."""
    for count, alpha in ((2, 0.05), (3, 0.05), (4, 0.05), (5, 0.01), (6, 0.01), (8, 0.002)):
        assert auc(np.ones(count), np.zeros(count), alpha).lower < 0.5
        assert math.isnan(detectable_auc(count, count, alpha))
    assert 0.9 < detectable_auc(5, 5) < 1


def scores(kind: str, area: float, sizes: tuple[int, int], source: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Members' and others' scores of this true AUC."""
    if kind == "normal":
        return source.normal(math.sqrt(2) * float(ndtri(area)), 1, sizes[0]), source.normal(size=sizes[1])
    odds, sign = area / (1 - area), 1 if kind == "exponential" else -1
    scales = (odds, 1.0) if sign > 0 else (1.0, odds)
    one, other = (sign * source.exponential(scale, size) for scale, size in zip(scales, sizes, strict=True))
    return one, other


def found_share(kind: str, sizes: tuple[int, int], alpha: float, sets: int) -> float:
    area, source = detectable_auc(*sizes, alpha), np.random.default_rng(5)
    return float(np.mean([auc(*scores(kind, area, sizes, source), alpha).lower > 0.5 for _ in range(sets)]))


@pytest.mark.parametrize(("sizes", "alpha"), [((8, 100), 0.05), ((13, 200), 0.002), ((200, 13), 0.002)])
def test_few_records_against_many_detect_it_too(sizes: tuple[int, int], alpha: float) -> None:
    assert detectable_auc(*sizes, alpha) == detectable_auc(*sizes[::-1], alpha)
    for kind in ("normal", "exponential", "reversed"):
        assert found_share(kind, sizes, alpha, 200) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "exponential", "reversed"])
@pytest.mark.parametrize("alpha", [0.05, 0.002])
@pytest.mark.parametrize("sizes", [(11, 11), (12, 1000), (1000, 12), (20, 20), (30, 300), (118, 118), (300, 3000)])
def test_the_interval_detects_the_stated_auc_about_four_times_in_five(
    kind: str, alpha: float, sizes: tuple[int, int]
) -> None:
    assert found_share(kind, sizes, alpha, 400) > 0.8 - 0.15


def noticed(mu: float, claim: float, seed: int) -> float:
    """How often canaries that Gaussian noise hides, shifted by ``mu``, exceed ``claim``, by 100 guesses a side."""
    source = np.random.default_rng(seed)
    least = next(v for v in range(201) if one_run.p_value(1000, 200, v, claim, 1e-5) < 0.025)
    hits = 0
    for _ in range(400):
        included = source.random(1000) < 0.5
        order = np.argsort(source.normal(size=1000) + mu * included)
        hits += int(included[order[-100:]].sum() + (~included[order[:100]]).sum()) >= least
    return hits / 400


def test_a_gaussian_mechanism_is_noticed_from_where_it_is_said_to_be() -> None:
    """The cuts are taken where they are on average, so that the power is about what it is said to be."""
    needed = one_run_detectable_gaussian(1000, 200, 1e-5, 0.025, 1.0)
    assert needed == pytest.approx(3.5, abs=0.15)
    mu = next(m for m in np.arange(0.5, 1.5, 0.005) if epsilon_of_mu(float(m), 1e-5) >= needed)
    assert 0.7 <= noticed(float(mu), 1.0, 0) <= 0.92
    assert noticed(float(mu) / 2, 1.0, 1) < 0.1, (
        "at half of it hardly anything is seen, as randomized response would be"
    )
    assert one_run_detectable(1000, 200, 1e-5, 0.025, 1.0) < needed / 1.5
    assert np.isnan(one_run_detectable_gaussian(1000, 200, 0.0, 0.025, 1.0))
    assert np.isinf(one_run_detectable_gaussian(40, 4, 1e-5, 0.025, 5.0))
