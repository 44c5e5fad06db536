"""Quantile regression of labelled records and images: it sees a leak through what these look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audits.membership import baseline, features, quantile
from audits.membership.attack import Candidates, Settings
from audits.membership.features import LABELS, image_features, label_features
from audits.scores.tasks import IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION
from audits.statistics.metrics import auc
from privctl.data.columns import HeadKind
from privctl.data.records import Record
from tests.audits.membership.test_scores import candidates
from tests.few import few

SETTINGS = Settings()


def sigmoid_log(phi: np.ndarray) -> np.ndarray:
    return -np.log1p(np.exp(-phi))


def pictures(shift: float, *, floats: bool = False, seed: int = 0, count: int = 800) -> Candidates:
    """Images that are the easier the brighter they are, by far more than by membership, and one label is hard."""
    source = np.random.default_rng(seed)
    member = np.arange(count) % 2 == 0
    bright, label = source.uniform(60, 190, count), source.integers(3, size=count)
    pixels = np.clip(source.normal(bright[:, None, None, None], 20, (count, 8, 8, 3)), 0, 255).astype(np.uint8)
    phi = bright / 20 - 3 * (label == 2) + source.normal(scale=0.4, size=count) + shift * member
    scored = candidates(sigmoid_log(phi), [""] * count, member)
    images = [each.transpose(2, 0, 1).astype(np.float32) for each in pixels] if floats else list(pixels)
    listed = [Record(i, "", str(name), image) for i, (name, image) in enumerate(zip(label, images, strict=True))]
    return replace(scored, records=listed, task=IMAGE_CLASSIFICATION, head=HeadKind.ONE)


def area(candidates: Candidates, scores: np.ndarray) -> float:
    return auc(*candidates.table.split(scores)).value


def test_a_leak_behind_what_images_look_like() -> None:
    candidates = pictures(0.8, count=400)
    assert not quantile.ATTACK.missing(candidates)
    assert area(candidates, quantile.score(candidates, SETTINGS)) > 0.72 > 0.65 > area(candidates, candidates.mean_lp)


def test_features_are_computed_once_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def features(candidates: Candidates, seed: int) -> np.ndarray:
        computed.append(seed)
        return np.arange(2.0 * len(candidates.records)).reshape(-1, 2)

    monkeypatch.setattr(quantile, "_features", features)
    scored = pictures(0, count=120)
    scores = quantile.ATTACK.run(scored, SETTINGS).scores
    quantile.ATTACK.tested(scored, SETTINGS, scores)
    assert computed == [0]
    quantile.score(replace(scored, head=None), SETTINGS)
    assert computed == [0, 0], "other candidates have features of their own"


@pytest.mark.parametrize("label", few([None, "good"], 1))
def test_the_blind_baseline_reads_the_same_table_of_ngrams(label: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    source, count = np.random.default_rng(5), 120
    texts = ["".join(source.choice(list("abc "), 12)) for _ in range(count)]
    scored = candidates(-source.exponential(size=count), texts, np.arange(count) % 2 == 0)
    scored = replace(scored, records=[replace(record, label=label) for record in scored.records])
    apart = quantile.score(scored, SETTINGS), baseline.baseline(replace(scored), SETTINGS)
    counted: list[int] = []
    ngrams = features.ngrams

    def counting(texts: Sequence[str]) -> Any:
        counted.append(len(texts))
        return ngrams(texts)

    monkeypatch.setattr(features, "ngrams", counting)
    scored = replace(scored)
    assert (quantile.score(scored, SETTINGS) == apart[0]).all()
    together = baseline.baseline(scored, SETTINGS)
    assert together.evidence == apart[1].evidence
    assert (together.scores == apart[1].scores).all()
    # With a label in front the baseline's texts are others.
    assert counted == [count] * (1 if label is None else 2)


@pytest.mark.slow
def test_it_is_the_image_that_tells_what_to_expect() -> None:
    candidates = pictures(0.8)
    assert area(candidates, quantile.score(candidates, SETTINGS)) > 0.78
    assert area(candidates, quantile.unlabelled(candidates, SETTINGS)) > 0.78, (
        "relabelled records are tested by as much"
    )
    shuffled = np.random.default_rng(1).permutation(candidates.table.records)
    others = replace(candidates, records=[candidates.records[i] for i in shuffled])
    assert area(others, quantile.score(others, SETTINGS)) < 0.66


@pytest.mark.slow
def test_no_leak_is_found_in_images_without_one() -> None:
    nothing = [pictures(0, seed=seed, count=300) for seed in range(6)]
    areas = [area(candidates, quantile.score(candidates, SETTINGS)) for candidates in nothing]
    assert np.mean(areas) == pytest.approx(0.5, abs=4 * 0.033 / 6**0.5)


def test_images_of_either_form_look_alike() -> None:
    bytes_, floats = (image_features(pictures(0, floats=floats, count=20).records) for floats in (False, True))
    compressed = 2 * 3 + 2  # the bytes of floats compress otherwise
    assert np.delete(bytes_, compressed, 1) == pytest.approx(np.delete(floats, compressed, 1))
    assert bytes_.std(0)[: 2 * 3 + 3] == pytest.approx(1)


def test_what_labels_say() -> None:
    ones = [Record(i, "", name) for i, name in enumerate("aab")]
    assert label_features(ones, HeadKind.ONE).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    several = [Record(0, "", '["x", "y"]'), Record(1, "", "[]"), Record(2, "", '["y"]')]
    assert label_features(several, HeadKind.SEVERAL).tolist() == [[2, 1, 1], [0, 0, 0], [1, 1, 0]]
    numbers = [Record(i, "", str(value)) for i, value in enumerate((1.0, -2.0, 4.5))]
    assert label_features(numbers, HeadKind.NUMBER).tolist() == [[1, 0], [-2, 3], [4.5, 3.5]]
    many = [Record(i, "", str(i)) for i in range(100)]
    assert label_features(many, HeadKind.ONE).shape == (100, LABELS + 1)
    assert label_features(many, None).shape == (100, 0)


@pytest.mark.slow
def test_a_hard_label_is_expected_to_be_hard() -> None:
    """Texts that say nothing, of which one in three has a label that is far harder."""
    source = np.random.default_rng(3)
    count = 600
    member, label = np.arange(count) % 2 == 0, source.integers(3, size=count)
    phi = 3.0 - 6 * (label == 2) + source.normal(scale=0.5, size=count) + 0.6 * member
    scored = candidates(sigmoid_log(phi), ["same"] * count, member)
    listed = [Record(i, "same", str(name)) for i, name in enumerate(label)]
    scored = replace(scored, records=listed, task=TEXT_CLASSIFICATION, head=HeadKind.ONE)
    with_labels = area(scored, quantile.score(scored, SETTINGS))
    without = area(scored, quantile.score(replace(scored, head=None), SETTINGS))
    assert with_labels > 0.78
    assert with_labels > without + 0.08
