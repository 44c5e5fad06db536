"""The joint permutation test: exact by counting all relabellings, its level under correlation, and what it gains."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.stats import norm, permutation_test, rankdata

from audits.statistics.max_t import max_t, rank_statistics
from audits.statistics.metrics import auc, tpr_at_fpr
from audits.statistics.power import detectable_area_beyond

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATES = (0.01, 0.001)
LEVEL = 0.05


def correlated(random: np.random.Generator, records: int, shared: float, shift: float = 0.0) -> NDArray[np.float64]:
    """Eleven scores [11, records], of which ``shared`` of the variance is common; the first half is shifted."""
    common, own = random.normal(size=records), random.normal(size=(11, records))
    common[: records // 2] += shift / np.sqrt(shared)
    return np.asarray(np.sqrt(shared) * common + np.sqrt(1 - shared) * own)


def members(records: int) -> NDArray[np.bool_]:
    return np.arange(records) < records // 2


def p_values(scores: NDArray[np.float64], seed: int, count: int = 99) -> list[float]:
    named = {str(i): rank_statistics(each, RATES) for i, each in enumerate(scores)}
    return list(max_t(named, members(scores.shape[1]), seed, LEVEL, count).p_values.values())


def test_one_score_is_ranked_as_by_scipy() -> None:
    """A single AUC among 999 relabellings comes near the share among all 924 that there are."""
    scores = np.array([0.9, 0.8, 0.35, 0.6, 0.2, 0.7, 0.1, 0.65, 0.3, 0.05, 0.5, 0.15])
    found = max_t({"one": rank_statistics(scores, ())}, members(12), 3, LEVEL)
    ranks = rankdata(scores)
    exact = permutation_test(
        (ranks[:6], ranks[6:]), lambda x, y: x.mean() - y.mean(), alternative="greater", n_resamples=np.inf
    ).pvalue
    assert found.p_values["one"] == pytest.approx(exact, abs=0.02)
    assert found.relabellings == 999


def test_statistics_are_those_of_the_report_with_ties_or_without() -> None:
    random = np.random.default_rng(5)
    for scores in (random.normal(size=500), random.integers(8, size=500).astype(float)):
        labels = np.stack([random.permutation(500) < 200 for _ in range(20)])
        found = rank_statistics(scores, RATES)(labels)
        assert found.shape == (20, 2), "300 non-members do not resolve 0.1 %"
        areas = np.array([auc(scores[row], scores[~row]).value for row in labels])
        ties = np.unique(scores, return_counts=True)[1]
        variance = (501 - (ties**3 - ties).sum() / (500 * 499)) / (12 * 200 * 300)
        assert found[:, 0] == pytest.approx((areas - 0.5) / np.sqrt(variance))
        hits = [tpr_at_fpr(scores[row], scores[~row], 0.01).true_positives for row in labels]
        order = np.argsort(hits, kind="stable")
        assert (np.diff(found[order, 1]) >= 0).all()
        assert len(set(zip(hits, found[:, 1], strict=True))) == len(set(hits))


def test_the_scale_of_a_rate_is_its_law_among_all_relabellings() -> None:
    """Three of eight records, and the second largest of the five others as the threshold."""
    labels = np.array([[i in chosen for i in range(8)] for chosen in itertools.combinations(range(8), 3)])
    scores = np.arange(8.0)
    statistic = rank_statistics(scores, (0.2,))(labels)[:, 1]
    hits = np.array([tpr_at_fpr(scores[row], scores[~row], 0.2).true_positives for row in labels])
    for count in range(1, 4):
        assert norm.sf(statistic[hits == count][0]) == pytest.approx((hits >= count).mean())


def test_level_under_correlation() -> None:
    """At the null any adjusted p-value is small in 5 % of data sets; unadjusted ones of each score apart, in over 20 %.

    The wrong version relabels each score apart and takes the smallest p-value: what an audit would do that forgot how
    many attacks it tried.
    """
    random = np.random.default_rng(17)
    trials, joint, apart = 200, 0, 0
    for trial in range(trials):
        scores = correlated(random, 120, 0.5)
        joint += min(p_values(scores, trial)) <= LEVEL
        if trial < 40:
            apart += min(p_values(each[None], trial + i)[0] for i, each in enumerate(scores)) <= LEVEL
    assert norm.sf((joint / trials - LEVEL) / np.sqrt(LEVEL * (1 - LEVEL) / trials)) > 0.001
    assert apart / 40 > 0.2


def test_it_sees_what_bonferroni_misses() -> None:
    """Eleven scores that nearly agree cost little more than one; intervals pay for 33."""
    random = np.random.default_rng(23)
    trials, joint, intervals = 50, 0, 0
    for trial in range(trials):
        scores = correlated(random, 240, 0.8, shift=0.35)
        joint += min(p_values(scores, trial, 199)) <= LEVEL
        intervals += any(auc(score[:120], score[120:], LEVEL / 33).lower > 0.5 for score in scores)
    assert joint > 1.3 * intervals
    assert joint > trials / 2


def test_never_fewer_relabellings_than_a_level_takes() -> None:
    found = max_t({"one": rank_statistics(-np.arange(60.0), ())}, members(60), 1, 0.002, count=99)
    assert found.relabellings == 500
    assert found.p_values["one"] == pytest.approx(1 / 501)
    assert found.critical > 2


def test_scores_that_are_all_the_same_show_nothing() -> None:
    flat = max_t({"flat": rank_statistics(np.zeros(40), RATES)}, members(40), 1, LEVEL)
    assert flat.p_values == {"flat": 1.0}


def test_the_detectable_area_is_detected_four_times_in_five() -> None:
    """One score at the critical value of one test, 1.645 deviations: 80 % of simulated audits lie beyond it."""
    area = detectable_area_beyond(1.6449, 300, 300)
    shift = np.sqrt(2) * norm.ppf(area)
    random = np.random.default_rng(3)
    deviation = np.sqrt(601 / (12 * 300 * 300))
    beyond = [
        (auc(random.normal(shift, 1, 300), random.normal(size=300)).value - 0.5) / deviation > 1.6449
        for _ in range(1000)
    ]
    assert np.mean(beyond) == pytest.approx(0.8, abs=0.04)
