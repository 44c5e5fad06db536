"""The state of a private search: drawn once, read when resumed, and rid of what lost."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from privctl.accounting.runs_law import BITS, NumberOfRuns
from privctl.domain.errors import CommandError, InputError
from privctl.train.search import folder as search_folder
from privctl.train.search.folder import SearchFolder
from privctl.train.settings.candidates import candidates_of

RUNS, FACTS = NumberOfRuns(mean=4, shape=1.0), {"method": "dp-sgd", "seed": 0}


@pytest.fixture
def coins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the operating system; the uniform number is such that three runs are drawn."""
    asked: list[str] = []

    def bits(count: int) -> int:
        asked.append("bits")
        return (1 << count) // 2

    def below(count: int) -> int:
        asked.append("below")
        return (len(asked) - 2) % count

    monkeypatch.setattr(search_folder, "secrets", SimpleNamespace(randbits=bits, randbelow=below))
    return asked


def test_it_is_drawn_once_and_read_when_resumed(tmp_path: Path, coins: list[str]) -> None:
    folder = SearchFolder.begin(tmp_path / "s", FACTS, RUNS, 2)
    assert folder.order == [0, 1, 0]  # half of a geometric law of mean 4 lies below 3
    assert coins == ["bits", "below", "below", "below"]
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "s" / "search.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandError, match=r"another process goes on with the search in .*s; wait for it, or stop it"):
        SearchFolder.resume(tmp_path / "s", FACTS, 2)
    with folder:
        pass
    again = SearchFolder.resume(tmp_path / "s", FACTS, 2)
    assert (again.order, again.done, again.best) == ([0, 1, 0], 0, None)
    with pytest.raises(CommandError, match="holds an unfinished search"):
        SearchFolder.begin(tmp_path / "s", FACTS, RUNS, 2)
    with again:
        pass
    with pytest.raises(CommandError, match="was begun with --seed 0, not 1"):
        SearchFolder.resume(tmp_path / "s", {**FACTS, "seed": 1}, 2)
    assert len(coins) == 4


def test_what_lost_is_deleted_and_what_is_no_number_loses(tmp_path: Path, coins: list[str]) -> None:
    with SearchFolder.begin(tmp_path / "s", FACTS, RUNS, 2) as folder:
        left = []
        for number, score in enumerate((math.inf, 2.0, 2.0)):
            (folder.run(number) / "model").write_text("weights")
            folder.record(number, score)
            left.append(sorted(path.name for path in (tmp_path / "s").glob("run-*")))
        assert left == [["run-1"], ["run-2"], ["run-2"]]
    with SearchFolder.resume(tmp_path / "s", FACTS, 2) as folder:
        assert folder.best == 1
        assert folder.remove() is None
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("change", [{"order": None}, {"order": []}, {"order": [0, 2]}, {"scores": ["best"]}])
def test_a_damaged_state_is_refused(tmp_path: Path, coins: list[str], change: dict[str, object]) -> None:
    with SearchFolder.begin(tmp_path / "s", FACTS, RUNS, 2) as folder:
        folder.record(0, 1.0)
    path = tmp_path / "s" / "search.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match="not the state of a search"):
        SearchFolder.resume(tmp_path / "s", FACTS, 2)


def test_candidates_are_all_combinations() -> None:
    found = candidates_of("learning-rate=1e-3,1 warmup-steps=2,4 schedule=cosine")
    assert len(found) == 4
    assert found.combinations[1] == {"learning_rate": 1e-3, "warmup_steps": 4, "schedule": "cosine"}
    assert BITS >= 256


def test_files_that_are_released_do_not_tell_when_their_run_ended(tmp_path: Path) -> None:
    model = tmp_path / "weights"
    model.write_text("numbers")
    os.utime(model, (1000, 1000))
    search_folder._linked(model, tmp_path / "released")
    assert (tmp_path / "released").stat().st_mtime > 1000
