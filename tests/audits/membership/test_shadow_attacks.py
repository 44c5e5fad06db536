"""LiRA and RMIA: known values, what they may not be fooled by, and shadow models' files."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from audits.membership import lira, rmia
from audits.membership.attack import Candidates, Settings, Shadows
from audits.membership.shadows import coins
from audits.statistics.metrics import auc
from tests.audits.membership.test_attacks import table
from tests.work import calls, memory

IN, OUT = [1.5, 2.1, 2.6, 1.8], [-0.2, 0.4, 0.1, 0.5]


def lp_of(phi: np.ndarray | list[float] | float) -> np.ndarray:
    """The log-probability whose confidence is ``phi``."""
    return -np.logaddexp(0, -np.asarray(phi, dtype=np.float64))


def shadows_of(inside: list[float], outside: list[float], records: int = 1) -> Shadows:
    lp = np.repeat(lp_of([*inside, *outside])[:, None], records, axis=1)
    included = np.repeat((np.arange(len(lp)) < len(inside))[:, None], records, axis=1)
    return Shadows(lp=lp, included=included)


def test_confidence_is_the_logit_of_the_probability() -> None:
    assert lira.confidence(np.array([-0.5])) == pytest.approx([0.432752], abs=1e-6)
    assert lira.confidence(lp_of(IN)) == pytest.approx(IN, abs=1e-12)
    far = lira.confidence(np.array([0.0, -1e-12, -1e-7, -50.0, -800.0]))
    assert np.isfinite(far).all()
    assert far == pytest.approx([27.631, 27.631, 16.118, -50.0, -800.0], abs=1e-3)
    assert lira.confidence(np.float32([-0.25])).dtype == np.float64


def test_lira_numbers() -> None:
    shadows, target = shadows_of(IN, OUT), lp_of([2.0])
    phi = lira.confidence(shadows.lp)
    mean, deviation = lira.moments(phi, shadows.included, pooled_below=0)
    assert (mean[0], deviation[0]) == pytest.approx((2.0, 0.469042), abs=1e-6)
    assert lira.moments(phi, ~shadows.included, pooled_below=0)[1][0] == pytest.approx(0.316228, abs=1e-6)
    assert lira.offline_scores(target, shadows, pooled_below=0) == pytest.approx([5.692100], abs=1e-6)
    assert lira.online_scores(target, shadows, pooled_below=0) == pytest.approx([15.805771], abs=1e-6)


def test_few_models_share_the_distance_of_means() -> None:
    """By hand: (phi - middle) distance / variance = (2 - 1.1) 1.8 / 0.16, as 0.16 is the mean of 0.22 and 0.1."""
    assert lira.online_scores(lp_of([2.0]), shadows_of(IN, OUT)) == pytest.approx([10.125], abs=1e-6)
    gains = []
    for seed in range(4):
        few = simulated(seed, 1.0, models=4)
        assert few.shadows is not None
        shared = area(few, lira.online_scores(few.mean_lp, few.shadows))
        gains.append(shared - area(few, lira.online_scores(few.mean_lp, few.shadows, pooled_below=0)))
    assert np.mean(gains) > 0.1
    many = simulated(0, 1.0, models=32)
    assert many.shadows is not None
    own = lira.online_scores(many.mean_lp, many.shadows, pooled_below=0)
    assert np.array_equal(lira.online_scores(many.mean_lp, many.shadows), own)


def test_the_shared_deviation_is_of_residuals() -> None:
    """Records that differ greatly among each other must not make each look uncertain (a std over raw values does)."""
    source = np.random.default_rng(0)
    levels = source.normal(0, 10, 500)
    phi = levels + source.normal(0, 0.5, (8, 500))
    _, deviation = lira.moments(phi, np.ones(phi.shape, dtype=np.bool_))
    assert np.unique(deviation) == pytest.approx([0.5], abs=0.02)
    assert phi.std() > 9, "what the std over raw values would give"


def test_records_with_many_models_have_their_own_deviation() -> None:
    source = np.random.default_rng(1)
    phi = source.normal(0, [[1.0, 5.0]], (400, 2))
    chosen = np.ones((400, 2), dtype=np.bool_)
    assert lira.moments(phi, chosen)[1] == pytest.approx([1, 5], rel=0.1)
    chosen[10:, 1] = False
    few = lira.moments(phi, chosen)[1]
    assert few[0] == pytest.approx(1, rel=0.1)
    assert 1 < few[1] < 2, "ten models of one record count little beside 400 of the other"


def two_sided(lp: np.ndarray, shadows: Shadows) -> np.ndarray:
    """The score that published code uses offline: the density itself, small on either side."""
    return np.abs(lira.offline_scores(lp, shadows, 0))


def test_low_confidence_is_no_sign_of_membership() -> None:
    shadows, target = shadows_of([], OUT * 2, records=3), lp_of([-3.0, 0.2, 1.0])
    assert lira.offline_scores(target, shadows, 0).argmax() == 2
    assert two_sided(target, shadows).argmax() == 0


def test_rmia_numbers() -> None:
    lp = np.log([[0.3, 0.7, 0.1, 0.6], [0.5, 0.7, 0.1, 0.6]])
    chance = rmia.evidence_offline(lp, np.zeros(lp.shape, dtype=np.bool_), 0.3)
    assert chance == pytest.approx([0.61, 0.805, 0.415, 0.74])
    ratio = np.array([0.8, 0.6, 0.2, 0.9]) / chance
    assert ratio == pytest.approx([1.311475, 0.745342, 0.481928, 1.216216], abs=1e-6)
    population = np.array([False, True, True, True])
    for gamma, share in ((1.0, 1.0), (1.5, 2 / 3), (2.0, 1 / 3)):
        assert rmia.dominated_share(ratio, population, gamma)[0] == pytest.approx(share)
    both = np.log([[0.2, 0.4], [0.6, 0.4]])
    assert rmia.evidence_online(both) == pytest.approx([0.4, 0.4])


def counting_itself(ratio: np.ndarray, population: np.ndarray) -> np.ndarray:
    """The share by the formula as it stands, each record of the population compared with itself too."""
    return np.array([np.mean(one / ratio[population] >= 1) for one in ratio])


@pytest.mark.parametrize("top", [1.0, 100.0])
def test_for_one_model_the_score_keeps_the_order_of_the_ratio(top: float) -> None:
    source = np.random.default_rng(3)
    ratio, member = source.lognormal(size=300).round(2), np.arange(300) < 120
    ratio[0] = top
    by_ratio = auc(ratio[member], ratio[~member]).value
    score, other = rmia.dominated_share(ratio, ~member), counting_itself(ratio, ~member)
    assert auc(score[member], score[~member]).value == by_ratio
    assert auc(other[member], other[~member]).value != by_ratio
    assert score == pytest.approx(other, abs=0.02)


def simulated(seed: int, gain: float, models: int = 16, records: int = 2000) -> Candidates:
    """Records of very different difficulty, which a loss threshold mistakes for membership."""
    source = np.random.default_rng(seed)
    level = source.normal(0, 3, records)
    member = np.arange(records) < records // 2
    included = np.stack([coins(seed, index, records) for index in range(models)])
    phi = level + gain * included + source.normal(0, 0.5, (models, records))
    own = level + gain * member + source.normal(0, 0.5, records)
    found = table(lp_of(own[member]), lp_of(own[~member]))
    return replace(found, shadows=Shadows(lp=lp_of(phi), included=included))


def area(candidates: Candidates, scores: np.ndarray) -> float:
    return auc(*candidates.table.split(scores)).value


ALL = (lira.OFFLINE, lira.ONLINE, rmia.OFFLINE, rmia.ONLINE)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_shadow_models_take_out_what_makes_records_differ(attack: lira.ScoreAttack) -> None:
    candidates = simulated(0, 1.0)
    assert area(candidates, candidates.mean_lp) < 0.62
    assert area(candidates, attack.score(candidates, Settings())) > 0.8
    null = [simulated(seed, 0.0) for seed in range(8)]
    assert np.mean([area(c, attack.score(c, Settings())) for c in null]) == pytest.approx(0.5, abs=0.012)


def test_a_target_among_the_shadow_models_would_look_like_a_finding() -> None:
    """Why its own scores are refused: with nothing to find, knowing the answer gives an AUC far from one half."""
    candidates = simulated(4, 0.0, models=4)
    assert candidates.shadows is not None
    leaked = Shadows(
        lp=np.concatenate([candidates.shadows.lp, candidates.mean_lp[None]]),
        included=np.concatenate([candidates.shadows.included, candidates.table.member[None]]),
    )
    for shadows, expected in ((leaked, True), (candidates.shadows, False)):
        found = area(candidates, lira.online_scores(candidates.mean_lp, shadows, pooled_below=0))
        assert (found > 0.7) if expected else found == pytest.approx(0.5, abs=0.04)


def test_the_slope_is_chosen_without_the_target() -> None:
    candidates = simulated(5, 1.0)
    assert candidates.shadows is not None
    assert rmia.best_slope(candidates.shadows) >= 0.8, "confidences here span orders of magnitude"
    everyone = replace(candidates.shadows, included=np.ones_like(candidates.shadows.included))
    everyone.included[:2] = False
    assert rmia.best_slope(everyone) in rmia.SLOPES


def test_what_is_missing_is_said() -> None:
    bare = replace(simulated(0, 0.0, records=20), shadows=None)
    for attack in ALL:
        assert "--shadow" in attack.missing(bare)
    outside = replace(bare, shadows=Shadows(lp=np.zeros((4, 20)), included=np.zeros((4, 20), dtype=np.bool_)))
    assert [bool(attack.missing(outside)) for attack in ALL] == [False, True, False, True]
    assert "20 records have fewer than 2 shadow models trained on it" in lira.ONLINE.missing(outside)


@pytest.mark.slow
def test_many_records_are_scored_at_once_and_not_by_pairs() -> None:
    def candidates(records: int) -> Candidates:
        source = np.random.default_rng(6)
        lp = -source.gamma(2, 1, (64, records)).astype(np.float64)
        member = np.arange(records) < records // 2
        shadows = Shadows(lp=lp, included=source.integers(2, size=lp.shape).astype(np.bool_))
        return replace(table(lp[0][member], lp[0][~member]), shadows=shadows)

    few, many = candidates(200), candidates(5_000)
    for attack in ALL:
        assert np.isfinite(attack.score(many, Settings())).all()
        assert calls(partial(attack.score, many, Settings())) == calls(partial(attack.score, few, Settings()))
        assert memory(partial(attack.score, many, Settings())) < 5_000 * 64 * 8 * 8  # eight tables; pairs: 200 MB


def test_models_that_all_agree_give_finite_scores() -> None:
    shadows = Shadows(lp=np.full((6, 4), -2.0), included=np.arange(6)[:, None] % 2 == np.arange(4) % 2)
    candidates = replace(table(np.array([-2.0, -2.0]), np.array([-2.0, -2.0])), shadows=shadows)
    for attack in ALL:
        scores = attack.score(candidates, Settings())
        assert np.isfinite(scores).all()
        assert len(set(scores.round(9))) == 1
        assert not math.isnan(area(candidates, scores))
