"""Shares found by sampling over a grid of n and p: exact, with held-out text as the control, and one test of all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mpmath import log as exact_log
from mpmath import mpf
from scipy.stats import beta, binom

from audits.extraction.grid import GRID, PROBABILITIES, QUERIES, discoverable_counts, over_grid
from audits.extraction.law import SamplingLaw
from audits.extraction.reach import needed
from audits.statistics.two_rates import fisher
from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome
from privctl.models.language import LanguageModel, load_model
from tests.audits.extraction.test_part import PREFIX, SUFFIX, judged, named, noise, words
from tests.audits.tiny import SIZE, write_jsonl
from tests.verify.audits.test_reach import report
from verify.audits.consistency import faults
from verify.audits.extraction import exact_tests as extraction_tests


@pytest.fixture(scope="module")
def model(llama: Path) -> LanguageModel:
    return load_model(llama, device="cpu")


def drawn(count: int, seed: int) -> np.ndarray:
    return -np.random.default_rng(seed).gamma(4, 3, count)


def test_the_lady_tasting_tea() -> None:
    assert fisher(3, 4, 1, 4) == pytest.approx(17 / 70)
    assert extraction_tests.fisher(3, 4, 1, 4) == pytest.approx(17 / 70)
    assert (fisher(4, 4, 0, 4), fisher(0, 4, 0, 4)) == (pytest.approx(1 / 70), 1)


def test_each_count_is_that_of_exact_numbers() -> None:
    """A text counts if 1 - (1 - p_z)^n is at least p, in 40 digits."""
    logp = drawn(60, 1)
    for index, count in enumerate(discoverable_counts(logp)):
        p, n = mpf(PROBABILITIES[index // len(QUERIES)]), QUERIES[index % len(QUERIES)]
        least = exact_log(1 - (1 - p) ** (mpf(1) / n))
        assert count == sum(value >= least for value in logp.tolist())
    ends = discoverable_counts(np.array([0.0, -np.inf, -1e4]))
    assert ends == [1] * len(ends)


def test_what_comes_out_in_many_queries_only_is_found() -> None:
    """A probability of e^-8: one query in 3000 gives it, and neither decoding by argmax nor 100 queries do."""
    train = np.where(np.arange(60) < 20, -8.0, drawn(60, 2) - 30)
    found = over_grid(train, drawn(60, 3) - 30, 0.005)
    assert found.details["training p=0.5 n=100"] == 0
    assert found.details["training p=0.5 n=10000"] == 20
    assert found.estimate == pytest.approx(20 / 60)
    assert found.details["p_value"] == pytest.approx(found.details["cuts"] * fisher(20, 60, 0, 60))
    assert found.details["detected"] == 1
    assert found.details["detectable"] < 20 / 60


def test_two_samples_of_one_source_are_seldom_told_apart() -> None:
    level, rounds = 0.05, 200
    wrong = sum(
        over_grid(drawn(40, 2 * seed), drawn(30, 2 * seed + 1), level).details["detected"] for seed in range(rounds)
    )
    assert wrong <= binom.ppf(0.999, rounds, level)
    sunk = over_grid(drawn(40, 5) - 500, drawn(30, 6) - 500, level)
    assert (sunk.details["cuts"], sunk.details["p_value"], sunk.details["detected"]) == (0, 1, 0)


def test_without_held_out_text_there_are_counts_alone() -> None:
    found = over_grid(drawn(20, 1), None, 0.01)
    assert found.estimate is None
    assert found.details["training p=0.1 n=10000"] >= found.details["training p=0.9 n=1"]


def sampled(model: LanguageModel) -> list[str]:
    """Texts that sampling from the model wrote and decoding by argmax does not write."""
    prefixes = torch.from_numpy(np.random.default_rng(7).integers(3, SIZE, (150, PREFIX)))
    settings = {"max_new_tokens": SUFFIX, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(0)
    mask = torch.ones_like(prefixes)
    drawn = model.network.generate(
        prefixes, attention_mask=mask, do_sample=True, top_k=0, temperature=0.2, **settings
    ).numpy()
    greedy = model.network.generate(prefixes, attention_mask=mask, do_sample=False, **settings).numpy()
    other = (drawn != greedy).any(axis=1) & (drawn > 2).all(axis=1)
    return [words(row) for row in drawn[other]][:40]


def test_an_audit_goes_by_it(model: LanguageModel, tmp_path: Path) -> None:
    """Decoding by argmax gives none of what sampling wrote; noise on both sides is told by nothing."""
    train, held = (write_jsonl(tmp_path / f"{seed}.jsonl", noise(40, seed)) for seed in (1, 2))
    law = SamplingLaw(temperature=0.2)
    found = judged(model, train, held, exact_only=True, law=law)
    assert named(found)[GRID].details["detected"] == 0
    assert found.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert "give 2,032 of each file" in found.verdicts[0].reason
    assert named(found)[GRID].confidence == found.evidence[0].confidence
    planted = judged(model, write_jsonl(tmp_path / "planted.jsonl", sampled(model)), held, exact_only=True, law=law)
    assert named(planted)["rate on training text"].details["extracted"] == 0
    assert (named(planted)[GRID].estimate or 0) > 0.3
    assert planted.verdicts[0].outcome is Outcome.REFUTED
    assert "by sampling" in planted.verdicts[0].reason


def grid() -> Evidence:
    return over_grid(np.where(np.arange(60) < 9, -8.0, drawn(60, 2)), drawn(60, 3), 0.005)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"p_value": 1.0, "detected": 0.0}, "its counts give"),
        ({"training p=0.5 n=10000": 3.0}, "more texts are found"),
        ({"held out p=0.5 n=1": 61.0}, "more than it compares"),
        ({"detected": 0.0}, "is not its p-value's"),
        ({"level": 0.5}, "its confidence another"),
        ({"held_out_texts": 0.0}, "how many texts"),
        ({"detectable": 0.01}, "would have seen"),
        ({"detectable": math.inf}, "would have seen"),
    ],
)
def test_a_changed_number_is_noticed(change: dict[str, float], complaint: str) -> None:
    train = np.where(np.arange(60) < 30, -8.0, drawn(60, 2) - 30)
    item = over_grid(train, drawn(60, 3) - 30, 0.005)
    assert extraction_tests.fault(item) == extraction_tests.fault(grid()) == ""
    forged = replace(item, details={**item.details, **change})
    assert complaint in extraction_tests.fault(forged)
    assert any(complaint in fault for fault in faults(report(forged)))


@pytest.mark.parametrize("texts", [(1, 1), (2, 3), (4, 4)])
def test_texts_too_few_to_see_anything_are_no_fault(texts: tuple[int, int]) -> None:
    """No number of them is significant at 0.5 %, so no least difference is stated; one that is stated is false."""
    item = over_grid(*(np.full(count, -8.0) for count in texts), 0.005)
    assert "detectable" not in item.details
    assert not any(GRID in fault for fault in faults(report(item)))
    forged = replace(item, details={**item.details, "detectable": 0.9})
    assert any("would have seen" in fault for fault in faults(report(forged)))


def _likely_counts(texts: int, rate: float) -> np.ndarray:
    return np.arange(max(0, binom.ppf(1e-8, texts, rate)), binom.ppf(1 - 1e-8, texts, rate) + 1)


@pytest.mark.parametrize(
    ("rate", "other"), [(0.5, 0.0), (0.5, 0.2), (0.3, 0.2), (0.04, 0.03), (0.02, 0.01), (0.0, 0.0), (0.1, 0.1)]
)
def test_so_many_records_decide(rate: float, other: float) -> None:
    """With so many texts a side, four of five pairs of samples at these rates decide; with half as many, fewer do."""
    alpha = 0.004

    def power(texts: int, true: float) -> float:
        """Over both counts: the held-out one is not its mean."""
        ours, theirs = (_likely_counts(texts, r) for r in (true, other))
        lower, upper = beta.ppf(alpha / 4, ours, texts - ours + 1), beta.ppf(1 - alpha / 4, theirs + 1, texts - theirs)
        above = np.nan_to_num(lower)[:, None] > np.nan_to_num(upper, nan=1.0)
        return float(binom.pmf(ours, texts, true) @ above @ binom.pmf(theirs, texts, other))

    texts = needed(rate, other, alpha)
    assert texts is not None
    true = rate if rate > other else other + 0.01
    assert 0.8 - 1e-5 <= power(texts, true) < 0.83 + 1 / texts
    assert power(texts // 2, true) < 0.8


@pytest.mark.parametrize("other", [0.995, 1.0])
def test_no_number_decides_where_nearly_all_held_out_text_comes_out(other: float) -> None:
    assert needed(other, other, 0.004) is None


def test_too_many_are_not_asked_for() -> None:
    assert needed(0.50001, 0.5, 0.004) is None
