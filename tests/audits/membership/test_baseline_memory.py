"""The blind baseline in memory that hardly grows with the records, and with the results of all in memory at once."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import sparse

from audits.membership import features, group_features
from audits.membership.baseline import blind_scores
from audits.membership.group_features import GroupFeatures
from audits.statistics import cross_fit
from audits.statistics.relabel import areas, relabellings
from privctl.data.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    for module in (features, group_features, cross_fit):
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


def group_scores(records: list[Record], index: NDArray[np.int64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """As an audit of groups compares them; here a group has the digest of its first record."""
    firsts = [records[place] for place in np.unique(index, return_index=True)[1]]
    return blind_scores(firsts, labels, GroupFeatures(features.record_features(records), index))


@pytest.mark.parametrize("directions", [40, 4000])
def test_blocks_of_groups_give_the_scores_of_all_at_once(monkeypatch: pytest.MonkeyPatch, directions: int) -> None:
    """Of groups that lie apart, of one record to forty: some fill several blocks, some share one."""
    records = records_of(300)
    index = np.random.default_rng(0).permutation(np.repeat(np.arange(60), [40, 40, *[4] * 50, *[2] * 6, 1, 7]))[:300]
    index = np.unique(index, return_inverse=True)[1]
    labels = relabellings(np.arange(60) < 25, 0)[:20]
    whole_rows = features.record_features(records)[np.arange(300)].toarray()
    means = np.stack([whole_rows[index == group].mean(axis=0) for group in range(60)])
    sizes = np.bincount(index)
    wanted = np.concatenate([means, group_features._of_size(sizes)], axis=1)
    in_blocks(monkeypatch, 7, directions)
    made = GroupFeatures(features.record_features(records), index)
    some = np.array([5, 0, 59, 1])
    assert made.shape == wanted.shape
    assert made[some].toarray() == pytest.approx(wanted[some], abs=1e-6)
    matrix = sparse.csr_array(np.random.default_rng(1).normal(size=(wanted.shape[1], 3)))
    assert made.times(some, matrix) == pytest.approx(wanted[some] @ matrix.toarray(), abs=1e-5)
    firsts = [records[place] for place in np.unique(index, return_index=True)[1]]
    whole = blind_scores(firsts, labels, sparse.csr_array(wanted))
    assert group_scores(records, index, labels) == pytest.approx(whole, abs=1e-6)


@pytest.mark.slow  # 16 s
def test_a_baseline_of_groups_needs_little_memory_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-grams of all records would be 16 000 times some 35 numbers of 8 bytes, and those of groups as many."""
    in_blocks(monkeypatch, 256, 400)
    records, index = records_of(16_000), np.arange(16_000) // 8
    labels = relabellings(np.arange(2000) < 1000, 0)[:2]
    group_scores(records[:400], index[:400], labels[:, 950:1050])  # what is imported on the way
    assert peak_mb(lambda: group_scores(records, index, labels)) < 12, "all at once they took 24 MB"
