"""Processes that were started with other files or options than the main one: no step is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import Ended, Forked
from tests.models.tasks.small import architecture, words

#: A machine for each process: it begins in a folder named after its rank, where relative paths lead.
SCRIPT = """
import os, sys
from privctl.cli import run

rank = os.environ["RANK"]
os.environ["LOCAL_RANK"] = "0"
os.chdir(rank)
more = open("more").read().split() if os.path.exists("more") else []
sys.exit(run([*sys.argv[1:], *more]))
"""


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of two machines, with the same records and model in each."""
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir()
        words().tokenizer.save_pretrained(architecture(folder / "gpt2", "gpt2"))
        lines = [json.dumps({"text": "the cat sat on the mat"[: 5 + i % 17]}) for i in range(24)]
        (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "worker.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return folders


def train(folder: Path, forked: Forked) -> list[Ended]:
    call = ["retrain", "dp-sgd", "gpt2", "--data", "train.jsonl", "-o", str(folder / "out"), "--device", "cpu", "-q"]
    settings = ["--noise-multiplier", "1", "--steps", "2", "--batch-size", "6"]
    return forked.together(2, [*call, *settings], script=str(folder / "worker.py"))


def require_refused(ended: list[Ended], words: str, output: Path) -> None:
    for each in ended:
        assert each.code == 3, each.errors[-2000:]
        assert words in each.errors
        assert "unlike process 1" in each.errors
    assert not list(output.parent.glob(f"{output.name}*"))


def test_the_same_records_in_another_order_are_other_data(machines: list[Path], tmp_path: Path, forked: Forked) -> None:
    """A record would have two places, of which each process draws its own: a step could use it twice."""
    place = machines[1] / "train.jsonl"
    place.write_text("".join(reversed(place.read_text().splitlines(keepends=True))))
    require_refused(train(tmp_path, forked), "was begun with another file as --data", tmp_path / "out")


def test_a_larger_clip_norm_in_one_process_is_refused(machines: list[Path], tmp_path: Path, forked: Forked) -> None:
    (machines[1] / "more").write_text("--clip-norm 5")
    require_refused(train(tmp_path, forked), "was begun with --clip-norm 1, not 5", tmp_path / "out")


def test_machines_with_the_same_files_train(machines: list[Path], tmp_path: Path, forked: Forked) -> None:
    for each in train(tmp_path, forked):
        assert each.code == 0, each.errors[-2000:]
    assert (tmp_path / "out.report.json").is_file()
