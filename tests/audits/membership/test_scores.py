"""Each membership score by its formula, and the baselines by what they must and must not see."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from audits import load_attack
from audits.membership import quantile
from audits.membership.attack import Candidates, Settings
from audits.membership.baseline import blind_scores
from audits.membership.features import BUCKETS, ngrams, record_features
from audits.membership.min_k import lowest_mean, standardised_log_probs
from audits.scores.table import ScoreTable
from audits.statistics.cross_fit import cross_fitted
from audits.statistics.metrics import auc
from privctl.data.records import Record
from tests.audits.tiny import sentences

LP = [-0.356675, -1.203973, -1.386294, -2.995732, -0.916291]
MU = [-0.801819, -0.897946, -1.039721, -0.394398, -1.054920]
SIGMA = [0.703126, 0.561528, 0.346574, 0.867112, 0.277259]


def records_of(texts: list[str]) -> list[Record]:
    return [Record(i, text) for i, text in enumerate(texts)]


def candidates(
    lp: np.ndarray, texts: list[str], member: np.ndarray, lengths: np.ndarray | None = None, **fields: np.ndarray
) -> Candidates:
    records = len(texts)
    lengths = np.ones(records, dtype=np.int64) if lengths is None else lengths
    none = np.zeros(0, dtype=np.int64)
    values = dict.fromkeys(("mu", "var", "rank", "margin", "lse"), np.zeros(len(lp), dtype=np.float32)) | fields
    table = ScoreTable(
        lp=lp.astype(np.float32),
        **values,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        member=member,
        line=np.arange(records),
        truncated=np.zeros(records, dtype=np.bool_),
        skipped_member=none.astype(np.bool_),
        skipped_line=none,
        skipped_reason=none.astype(np.uint8),
    )
    return Candidates(table=table, records=records_of(texts))


def toy() -> Candidates:
    return candidates(
        np.array(LP),
        ["the quick brown fox jumps over the lazy dog"],
        np.array([True]),
        np.array([5]),
        mu=np.array(MU, dtype=np.float32),
        var=np.square(np.array(SIGMA)).astype(np.float32),
    )


def test_published_examples() -> None:
    candidates = toy()
    assert lowest_mean(np.array(LP), np.array([0, 5]), 0.4) == pytest.approx([-2.191013], abs=1e-6)
    assert standardised_log_probs(candidates) == pytest.approx([0.633092, -0.544990, -1, -3, 0.5], abs=1e-4)
    assert lowest_mean(standardised_log_probs(candidates), np.array([0, 5]), 0.4) == pytest.approx([-2.0], abs=1e-4)
    (score,) = load_attack("zlib").run(replace_two(candidates), Settings()).scores[:1]
    assert score == pytest.approx(-1.371793 / 50, rel=1e-6)  # the log of perplexity 3.942413, and 50 bytes


def test_zlib_is_of_the_mean_loss_and_not_of_the_sum() -> None:
    """A record of twice the tokens for the same text is as member-like: Carlini et al. 2021 take log-perplexity."""
    scored = candidates(np.full(6, -2.0), ["one text", "one text"], np.array([True, False]), np.array([2, 4]))
    scores = load_attack("zlib").run(scored, Settings()).scores
    assert scores.tolist() == [-2 / 16, -2 / 16]


def replace_two(candidates: Candidates) -> Candidates:
    """The same record as a member and as a non-member, as curves need both."""
    twice = {name: np.tile(getattr(candidates.table, name), 2) for name in ("lp", "mu", "var", "rank", "margin", "lse")}
    table = replace(
        candidates.table,
        **twice,
        offsets=np.array([0, 5, 10]),
        member=np.array([True, False]),
        line=np.arange(2),
        truncated=np.zeros(2, dtype=np.bool_),
    )
    return replace(candidates, table=table, records=[*candidates.records, *candidates.records])


@pytest.mark.parametrize(("length", "counted"), [(1, 1), (4, 1), (5, 1), (9, 1), (10, 2), (15, 3)])
def test_the_lowest_fifth_is_at_least_one(length: int, counted: int) -> None:
    values = np.random.default_rng(length).normal(size=length)
    assert lowest_mean(values, np.array([0, length]), 0.2) == pytest.approx([np.sort(values)[:counted].mean()])


def test_lowest_of_many_records() -> None:
    source = np.random.default_rng(0)
    lengths = source.integers(1, 40, 200)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = source.normal(size=offsets[-1])
    found = lowest_mean(values, offsets, 0.2)
    for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
        count = max(1, (stop - start) // 5)
        assert found[i] == pytest.approx(np.sort(values[start:stop])[:count].mean())


def test_certain_predictions_are_no_division_by_zero() -> None:
    candidates = toy()
    candidates = replace(
        candidates, table=replace(candidates.table, lp=candidates.table.mu, var=np.zeros(5, dtype=np.float32))
    )
    assert standardised_log_probs(candidates).tolist() == [0.0] * 5


def test_ngrams_by_brute_force() -> None:
    texts = ["abcab", "a", "", "zzzz"]
    found = ngrams(texts)
    assert found.shape == (4, BUCKETS)
    # 3 + 3 + 3 + 2 distinct n-grams of abcab, one of a, and 4 of zzzz
    assert np.diff(found.indptr).tolist() == [11, 1, 0, 4]
    assert np.sqrt(found.power(2).sum(axis=1)) == pytest.approx([1, 1, 0, 1])
    single = found[[1]].indices[0]
    # a, b and ab occur twice, eight others once
    weight = math.log(3) / math.sqrt(3 * math.log(3) ** 2 + 8 * math.log(2) ** 2)
    assert found[0, single] == pytest.approx(weight, rel=1e-5)


def test_white_space_tells_texts_apart() -> None:
    one, two, tab = ngrams(["a b", "a  b", "a\tb"])
    for left, right in ((one, two), (one, tab), (two, tab)):
        assert (left - right).nnz


def blind_area(texts: list[str], member: np.ndarray) -> tuple[float, float]:
    scores = blind_scores(records_of(texts), member[None])[0]
    found = auc(scores[member], scores[~member])
    return found.lower, found.value


def test_the_blind_baseline_sees_what_the_texts_give_away() -> None:
    source = random.Random(0)
    words = sentences(400, seed=3)
    member = np.arange(400) < 200
    dated = [
        f"{text} in {source.choice([2019, 2020] if m else [2022, 2023])}" for text, m in zip(words, member, strict=True)
    ]
    assert blind_area(dated, member)[0] > 0.9
    longer = [text * (2 if m else 1) for text, m in zip(words, member, strict=True)]
    assert blind_area(longer, member)[0] > 0.6
    assert blind_area(words, member)[0] < 0.5


def test_the_blind_baseline_finds_nothing_in_nothing() -> None:
    member = np.arange(80) < 40
    areas = [blind_area(sentences(80, seed=seed), member) for seed in range(40)]
    assert np.mean([lower > 0.5 for lower, _ in areas]) <= 0.2, "2.5 % would be, of records judged independently"
    assert np.mean([area for _, area in areas]) == pytest.approx(0.5, abs=0.035)


def in_sample(texts: list[str], member: np.ndarray) -> float:
    """Judged by what was learned from a copy of itself, among others."""
    twice = record_features(records_of(texts * 2))
    fold = np.repeat([0, 1], len(texts))
    scores = cross_fitted(twice, fold, np.tile(member, 2)[None], 0.1)[0][: len(texts)]
    return auc(scores[member], scores[~member]).lower


def test_judging_on_the_fitted_records_would_be_noticed() -> None:
    assert in_sample(sentences(80, seed=1), np.arange(80) < 40) > 0.75


def test_a_handful_of_records_is_no_crash() -> None:
    scores = blind_scores(records_of(["a", "b"]), np.array([[True, False]]))
    assert scores.tolist() == [[0, 0]]


def skewed(count: int, shift: float, seed: int) -> Candidates:
    """Scores that depend on the text's length, in place and in spread, far more than on membership."""
    source = np.random.default_rng(seed)
    texts = sentences(count, seed=seed, longest=40)
    length = np.array([len(text) for text in texts]) / 100
    member = np.arange(count) % 2 == 0
    lp = -5 + 2 * length + source.normal(size=count) * (0.1 + 0.3 * length) + shift * member
    return candidates(lp, texts, member)


def area_of(candidates: Candidates, scores: np.ndarray) -> float:
    member = candidates.table.member
    return auc(scores[member], scores[~member]).value


def test_quantile_regression_sees_through_what_texts_explain() -> None:
    candidates = skewed(1200, 0.3, seed=1)
    found = area_of(candidates, quantile.score(candidates, Settings()))
    plain = area_of(candidates, candidates.table.means(candidates.table.lp))
    assert found > plain + 0.08


def test_quantile_regression_finds_nothing_in_nothing() -> None:
    areas = [
        area_of(candidates, quantile.score(candidates, Settings()))
        for candidates in (skewed(300, 0, seed) for seed in range(3))
    ]
    # one AUC of 150 against 150 has a standard error of 0.033
    assert np.mean(areas) == pytest.approx(0.5, abs=4 * 0.033 / math.sqrt(3))


def test_quantile_is_that_quantile() -> None:
    source = np.random.default_rng(0)
    x = source.uniform(-1, 1, 4000)
    y = 0.5 * x + source.normal(size=4000) * 0.5
    features = np.stack([np.ones(4000), x], axis=1)
    for level in (0.5, 0.9):
        below = y < quantile.fit_quantile(features, y, level)(features)
        assert below.mean() == pytest.approx(level, abs=0.02)
        assert below[x > 0].mean() == pytest.approx(level, abs=0.03)


def test_too_few_to_learn_from_is_said() -> None:
    assert "at least 50 of them; here are 5" in load_attack("quantile").missing(skewed(10, 0, 0))
    assert "--reference" in load_attack("reference").missing(skewed(10, 0, 0))
