"""A score learned from all others: no record judges itself, nothing is found by chance, and spread leaks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

from audits.membership.attack import RATES
from audits.statistics import fused as fused_module
from audits.statistics.fused import RIDGE, FusedScore
from audits.statistics.max_t import RELABELLINGS, MaxT, _relabellings, max_t, rank_statistics

Scores = Mapping[str, np.ndarray]


def drawn(seed: int, side: int, leak: float) -> tuple[np.ndarray, Scores, FusedScore]:
    """Eight scores of a common difficulty, of which half know a little of membership: their difference tells more."""
    source = np.random.default_rng(seed)
    member = source.permutation(2 * side) < side
    common = source.normal(size=2 * side)
    scores = {
        f"score {i}": 0.95 * common + 0.3 * source.normal(size=2 * side) + leak * member * (i < 4) for i in range(8)
    }
    digests = [source.bytes(16) for _ in member]
    return member, scores, FusedScore(scores=scores, digests=digests, members=side, rates=RATES, seed=seed)


def judged(seed: int, side: int, leak: float, count: int = 199) -> tuple[MaxT, MaxT]:
    """With the fused score, and without."""
    member, scores, fused = drawn(seed, side, leak)
    single = {name: rank_statistics(values, RATES) for name, values in scores.items()}
    both = {**single, "fused": fused.statistics}
    return max_t(both, member, seed, 0.05, count), max_t(single, member, seed, 0.05, count)


def test_a_leak_that_no_score_shows_alone_is_found() -> None:
    with_fused, without = judged(1, 150, 0.2)
    assert with_fused.p_values["fused"] <= 0.01
    assert min(without.p_values.values()) > 0.05
    assert min(p for name, p in with_fused.p_values.items() if name != "fused") > 0.05


def test_more_scores_than_records() -> None:
    """As of 20 groups a side, of which each attack gives two scores."""
    random, member = np.random.default_rng(6), np.arange(40) % 2 == 0
    common = random.normal(size=40)
    scores = {f"s{i}": common + 0.3 * random.normal(size=40) + 2 * member for i in range(40)}
    wide = FusedScore(scores=scores, digests=[bytes([i]) for i in range(40)], members=20, rates=RATES, seed=3)
    features, fold = wide._features, wide.fold
    assert features.shape == (40, 41)
    judged, learned = fold == 0, fold != 0
    ridge = Ridge(alpha=RIDGE * learned.sum(), fit_intercept=False)
    ridge.fit(features[learned], member[learned] - member[learned].mean())
    assert wide.fitted(member[None])[0][judged] == pytest.approx(ridge.predict(features[judged]), abs=1e-8)
    assert max_t({"fused": wide.statistics}, member, 3, 0.05, 199).p_values["fused"] <= 0.05


def test_no_record_judges_itself() -> None:
    member, _, fused = drawn(2, 120, 0.3)
    first = fused.fitted(member[None])[0]
    for record in (0, 17):
        changed = member.copy()
        changed[record] ^= True
        assert fused.fitted(changed[None])[0][record] == first[record]
        assert not np.allclose(fused.fitted(changed[None])[0], first)


def test_it_ranks_as_a_cross_fitted_logistic_regression_does() -> None:
    member, scores, fused = drawn(3, 400, 0.3)
    features = np.stack(list(scores.values()), axis=1)
    other = np.empty(len(member))
    for number in range(10):
        held = fused.fold == number
        learned = LogisticRegression(max_iter=1000).fit(features[~held], member[~held])
        other[held] = learned.decision_function(features[held])
    area = fused.areas(member[None])[0]
    assert area == pytest.approx(roc_auc_score(member, other), abs=0.01)
    assert area > max(roc_auc_score(member, score) for score in scores.values()) + 0.15


def test_the_labels_it_is_made_with_are_no_part_of_it() -> None:
    member, _, fused = drawn(4, 100, 0.3)
    labels = np.stack([member, np.random.default_rng(1).permutation(member)])
    again = replace(fused)
    assert again.statistics(labels[::-1])[::-1] == pytest.approx(fused.statistics(labels))
    assert fused.law.center == pytest.approx(0.5, abs=0.02)
    assert fused.law.deviation > np.sqrt(201 / (12 * 100 * 100))


def test_its_scale_comes_from_relabellings_that_the_joint_test_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members first, as in an audit: then a stream of the same seed would give the same rows."""
    _, _, fused = drawn(5, 100, 0.0)
    relabelled: list[np.ndarray] = []
    monkeypatch.setattr(fused_module, "areas", lambda _, labels: relabelled.append(labels) or np.zeros(len(labels)))
    assert fused.law.center == 0
    assert relabelled[0].shape == (1999, 200)
    drawn_there = np.concatenate(list(_relabellings(np.arange(200) < 100, fused.seed, 0.05, RELABELLINGS)))
    joint = {row.tobytes() for row in drawn_there}
    assert len(joint) == RELABELLINGS + 1
    assert not joint & {row.tobytes() for row in relabelled[0]}


@pytest.mark.slow
def test_nothing_is_found_by_chance() -> None:
    """Of 200 data sets in which there is nothing, at most 5 % may find something; 21 are 1 in 1000."""
    found = [judged(seed, 100, 0.0)[0] for seed in range(200)]
    assert sum(min(each.p_values.values()) <= 0.05 for each in found) <= 20
    assert sum(each.p_values["fused"] <= 0.05 for each in found) >= 1  # it takes its share of the level
