from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audits.scores.cache import KEPT_DAYS, ScoreCache, folder_name, join_scores
from audits.scores.scorer import RowScores, compute_scores, plan_scoring
from privctl.domain.errors import FileSystemError, InputError
from privctl.domain.progress import Advance, silent
from tests.audits.turns import Turns


class Counting:
    """A scorer whose scores tell row and place, and which remembers what it was asked."""

    causal = True

    def __init__(self, offset: float = 0.0) -> None:
        self.asked: list[list[int]] = []
        self.offset = offset

    def counts(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(row) - 1 for row in rows], dtype=np.int64)

    def score(self, rows: Sequence[np.ndarray], advance: Advance = silent) -> np.ndarray:
        self.asked += [row.tolist() for row in rows]
        parts = [np.cumsum(row)[1:] + self.offset for row in rows]
        flat = np.concatenate(parts) if parts else np.zeros(0)
        advance(len(flat))
        return np.tile(flat, (6, 1)).astype(np.float32)


def row(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


ROWS = [row(5, 1, 2), row(7, 8), row(5, 1, 2, 3), row(5, 1), row(7, 8), row(5, 2, 9), row(300, 1), row(300, 1, 1)]


def read(book: RowScores, rows: list[np.ndarray]) -> list[list[float]]:
    counts = np.array([len(row) - 1 for row in rows])
    return [part.tolist() for part in np.split(book.take(rows, counts)[0], np.cumsum(counts)[:-1])]


def expected(rows: list[np.ndarray], offset: float = 0.0) -> list[list[float]]:
    return [(np.cumsum(row)[1:] + offset).tolist() for row in rows]


def test_a_row_that_begins_another_costs_nothing() -> None:
    scorer = Counting()
    score_book = plan_scoring(scorer, ROWS)
    assert score_book.work == 3 + 1 + 2 + 2
    book = compute_scores(score_book)
    assert sorted(scorer.asked) == sorted([[5, 1, 2, 3], [7, 8], [5, 2, 9], [300, 1, 1]])
    assert read(book, ROWS) == expected(ROWS)


def test_without_a_cache_processes_tell_each_other() -> None:
    scorer, workers = Counting(), Turns()
    book = compute_scores(plan_scoring(scorer, ROWS), share=(0, 3), workers=workers)
    assert workers.shares == [[1, 1, 1]]
    assert len(scorer.asked) == 4, "each row once"
    assert read(book, ROWS) == expected(ROWS)
    assert compute_scores(plan_scoring(Counting(), []), workers=workers).values.shape == (6, 0)


def test_only_causal_scorers_share_beginnings() -> None:
    scorer = Counting()
    scorer.causal = False
    compute_scores(plan_scoring(scorer, ROWS))
    assert len(scorer.asked) == 7, "equal rows are shared, beginnings are not"


def test_a_second_audit_costs_no_pass(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "c")
    compute_scores(plan_scoring(Counting(), ROWS[:4], cache))
    again = Counting()
    score_book = plan_scoring(again, ROWS, cache)
    probes = len(again.asked)
    assert probes == 2, "the probes"
    assert score_book.work == 2 + 2
    book = compute_scores(score_book)
    assert sorted(again.asked[probes:]) == [[5, 2, 9], [300, 1, 1]]
    assert read(book, ROWS) == expected(ROWS)
    full = Counting()
    assert plan_scoring(full, ROWS, ScoreCache(tmp_path / "c")).work == 0


def test_a_killed_audit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audits.scores.scorer._PIECE", 2)
    rows = [row(i, i + 1, i + 2) for i in range(10, 30)]

    class Dying(Counting):
        def score(self, rows: Sequence[np.ndarray], advance: Advance = silent) -> np.ndarray:
            if len(self.asked) == 7:
                raise KeyboardInterrupt
            return super().score(rows, advance)

    with pytest.raises(KeyboardInterrupt):
        compute_scores(plan_scoring(Dying(), rows, ScoreCache(tmp_path)))
    assert plan_scoring(Counting(), rows, ScoreCache(tmp_path)).work == 2 * 13


def test_several_processes_fill_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audits.scores.scorer._PIECE", 2)
    rows = [row(i, i + 1, i + 2) for i in range(10, 31)]
    first, second = Counting(), Counting()
    plans = [plan_scoring(scorer, rows, ScoreCache(tmp_path)) for scorer in (first, second)]
    books: list[RowScores] = []

    def meet() -> None:
        """The first process has done its share; the second does its own."""
        books.append(compute_scores(plans[1], share=(1, 2)))

    book = compute_scores(plans[0], share=(0, 2), barrier=meet)
    assert (len(first.asked), len(second.asked)) == (11, 10)
    assert read(book, rows) == expected(rows)


def test_small_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audits.scores.scorer._PIECE", 2)
    cache = ScoreCache(tmp_path)
    rows = [row(i, i + 1, i + 2) for i in range(10, 30)]
    compute_scores(plan_scoring(Counting(), rows, cache))
    assert len(list(tmp_path.iterdir())) == 20
    for _ in range(2):
        cache.tidy()
        assert len(list(tmp_path.iterdir())) == 1
        assert len(cache.load().keys) == 20
    assert plan_scoring(Counting(), rows, cache).work == 0


def test_a_broken_file_is_scored_again(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    compute_scores(plan_scoring(Counting(), ROWS, cache))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    score_book = plan_scoring(Counting(), ROWS, cache)
    assert score_book.work == 8
    assert read(compute_scores(score_book), ROWS) == expected(ROWS)
    arrays: dict[str, Any] = load_file(path)
    save_file({**arrays, "counts": arrays["counts"] + 1}, path)
    assert plan_scoring(Counting(), ROWS, cache).work == 8


def test_a_cache_of_another_model_does_not_speak(tmp_path: Path) -> None:
    compute_scores(plan_scoring(Counting(), ROWS, ScoreCache(tmp_path)))
    with pytest.raises(InputError, match="scores that this model does not give; delete it"):
        plan_scoring(Counting(offset=0.5), ROWS, ScoreCache(tmp_path))


def test_the_folder_depends_on_everything() -> None:
    identity = {"tensors": "a", "dtype": "float32"}
    names = {
        folder_name(identity),
        folder_name({**identity, "tensors": "b"}),
        folder_name({**identity, "dtype": "bfloat16"}),
        folder_name({**identity, "device": "cuda"}),
        folder_name({"tensors": "a;5:dtype=7:float32"}),
    }
    assert len(names) == 5


def test_the_cache_is_the_owners(tmp_path: Path) -> None:
    ScoreCache(tmp_path / "c")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(FileSystemError, match="give another --cache"):
        ScoreCache(tmp_path / "file" / "c")


def test_a_folder_and_a_file_are_closed_to_others_even_under_a_wide_umask(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        cache = ScoreCache(tmp_path / "c")
        compute_scores(plan_scoring(Counting(), ROWS, cache))
    finally:
        os.umask(before)
    (path,) = cache.folder.iterdir()
    assert (stat.S_IMODE(cache.folder.stat().st_mode), stat.S_IMODE(path.stat().st_mode)) == (0o700, 0o600)
    (tmp_path / "link").symlink_to(cache.folder)
    with pytest.raises(InputError, match="is a link"):
        ScoreCache(tmp_path / "link")


def test_what_has_expired_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, cache = ScoreCache(tmp_path / "other"), ScoreCache(tmp_path / "c")
    for each in (other, cache):
        compute_scores(plan_scoring(Counting(), ROWS, each))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + KEPT_DAYS * 86400 - 60)
    assert plan_scoring(Counting(), ROWS, cache).work == 0
    compute_scores(plan_scoring(Counting(), [row(90, 1, 2)], cache))
    cache.tidy()
    monkeypatch.setattr(time, "time", lambda: now + KEPT_DAYS * 86400 + 60)
    assert plan_scoring(Counting(), ROWS, cache).work == 8, "joining files does not prolong them"
    ScoreCache(tmp_path / "c")
    assert not list(tmp_path.glob("*/*.scores")), "of other models too"


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    """Planted: a folder of one's own given as --cache, whose files with the same suffix were taken for expired ones."""
    others, damaged = tmp_path / "results" / "exam.scores", tmp_path / folder_name({}) / "damaged.scores"
    for path in (others, damaged):
        path.parent.mkdir()
        path.write_text("no header")
    ScoreCache(tmp_path / folder_name({"model": "another"}))
    assert others.exists()
    assert not damaged.exists()


def test_a_value_that_changed_on_disk_is_scored_again(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    rows = [row(i, i + 1, i + 2) for i in range(10, 30)]
    compute_scores(plan_scoring(Counting(), rows, cache))
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 0x40  # one score of a row that the probes leave alone
    path.write_bytes(bytes(raw))
    score_book = plan_scoring(Counting(), rows, cache)
    assert score_book.work == 40
    assert read(compute_scores(score_book), rows) == expected(rows)


def test_nothing_joins_to_nothing() -> None:
    nothing = join_scores([])
    assert nothing.values.shape == (6, 0)
    assert nothing.begins() == {}


def test_no_rows_make_an_empty_book(tmp_path: Path) -> None:
    score_book = plan_scoring(Counting(), [], ScoreCache(tmp_path))
    assert score_book.work == 0
    assert compute_scores(score_book).values.shape == (6, 0)


def test_two_audits_may_tidy_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audits.scores.scorer._PIECE", 2)
    cache = ScoreCache(tmp_path)
    compute_scores(plan_scoring(Counting(), [row(i, i + 1, i + 2) for i in range(10, 20)], cache))
    real = ScoreCache.add

    def slow(self: ScoreCache, part: Any, expires: float | None = None) -> Path:
        """Meanwhile another audit stores, and tidies as well."""
        monkeypatch.setattr(ScoreCache, "add", real)
        compute_scores(plan_scoring(Counting(), [row(90, 1, 2)], ScoreCache(tmp_path)))
        ScoreCache(tmp_path).tidy()
        return real(self, part, expires)

    monkeypatch.setattr(ScoreCache, "add", slow)
    cache.tidy()
    assert len(ScoreCache(tmp_path).load().keys) == 11
