"""The blind baseline in memory that hardly grows with the records, and with the results of all in memory at once."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audits.membership import features
from audits.membership.baseline import blind_scores
from audits.statistics import cross_fit
from audits.statistics.relabel import areas, relabellings
from privctl.data.records import Record


def records_of(count: int) -> list[Record]:
    source = random.Random(0)
    return [Record(line, "".join(source.choices("abcdefgh ", k=12))) for line in range(1, count + 1)]


def peak_mb(call: Callable[[], Any]) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return (tracemalloc.get_traced_memory()[1] - before) / 1e6
    finally:
        tracemalloc.stop()


def in_blocks(monkeypatch: pytest.MonkeyPatch, block: int, directions: int) -> None:
    for module in (features, cross_fit):
        monkeypatch.setattr(module, "_BLOCK", block, raising=False)
    monkeypatch.setattr(features, "_KEPT", 0, raising=False)
    monkeypatch.setattr(cross_fit, "DIRECTIONS", directions)


@pytest.mark.parametrize("directions", [40, 4000])
def test_blocks_give_the_scores_of_all_at_once(monkeypatch: pytest.MonkeyPatch, directions: int) -> None:
    """With fewer columns than n-grams, which are summed, and with as many."""
    records, labels = records_of(300), relabellings(np.arange(300) < 140, 0)[:20]
    monkeypatch.setattr(cross_fit, "DIRECTIONS", directions)
    whole = blind_scores(records, labels)
    in_blocks(monkeypatch, 7, directions)
    assert blind_scores(records, labels) == pytest.approx(whole, abs=1e-12)


def test_a_baseline_needs_little_memory_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows at once would be 4000 times 400 numbers: 13 MB; one block of them is 0.8 MB."""
    in_blocks(monkeypatch, 256, 400)
    records, labels = records_of(4000), relabellings(np.arange(4000) < 2000, 0)[:2]
    blind_scores(records[:50], labels[:, 1975:2025])  # what is imported on the way
    assert peak_mb(lambda: blind_scores(records, labels)) < 12


def test_areas_of_fitted_scores_rank_one_row_at_a_time() -> None:
    source = np.random.default_rng(0)
    scores, labels = source.normal(size=(40, 20_000)), source.random((40, 20_000)) < 0.5
    assert peak_mb(lambda: areas(scores, labels)) < 6, "one copy of the scores is 6.4 MB"
