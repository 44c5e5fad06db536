"""``privctl retrain`` in two processes: one reads the data, and the result is that of one process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from privctl.cli import run
from privctl.reports.files import read_report
from tests.forked import Forked
from tests.models.tasks.small import TEXTS, architecture

#: The command, in which the data are closed to every process but the first.
SCRIPT = """
import os, sys
from privctl.cli import run
from privctl.train.preparation import reading

def closed(*_, **__):
    raise AssertionError("this process has no business with the data")
    yield

if os.environ["RANK"] != "0":
    reading.iter_texts = closed
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Labelled records with a damaged copy, and a BERT that has neither weights nor words."""
    architecture(tmp_path / "start", "bert")
    drawn = random.Random(0)
    others, rows = (
        [json.dumps({"text": " ".join(drawn.sample(TEXTS, 2)), "label": ["no", "yes"][i % 2]}) for i in range(count)]
        for count in (6, 20)
    )
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "held-out.jsonl").write_text("\n".join(others) + "\n")
    rows[12] = rows[12][:-1]
    (tmp_path / "bad.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "worker.py").write_text(SCRIPT)
    return tmp_path


def call(folder: Path, data: str, output: str) -> list[str]:
    options = ["--task", "text-classification", "--vocabulary", "private", "--epochs", "1", "--batch-size", "5"]
    held_out = ["--held-out", str(folder / "held-out.jsonl")]
    files = ["--optimizer", "sgd", "--data", str(folder / data), *held_out, "-o", str(folder / output)]
    return ["retrain", "clipped", str(folder / "start"), *files, *options, "--device", "cpu", "-q"]


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_one_of_them_reads(folder: Path, forked: Forked) -> None:
    """Labels and words are collected from the data too; nothing is left of the tokens."""
    assert run(call(folder, "train.jsonl", "one")) == 0
    for process in forked.together(2, call(folder, "train.jsonl", "two"), script=str(folder / "worker.py")):
        assert process.code == 0, process.errors[-2000:]
    one, two = (load_file(folder / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    assert (folder / "one/tokenizer.json").read_bytes() == (folder / "two/tokenizer.json").read_bytes()
    labels = [json.loads((folder / name / "config.json").read_text())["id2label"] for name in ("one", "two")]
    assert labels[0] == labels[1] == {"0": "no", "1": "yes"}
    first, second = (read_report(folder / f"{name}.report.json") for name in ("one", "two"))
    assert first.inputs == second.inputs
    assert not list(folder.glob(".*"))


def test_a_damaged_row_ends_all_processes_with_its_sentence(
    folder: Path, forked: Forked, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert run(call(folder, "bad.jsonl", "out")) == 3
    alone = capsys.readouterr().err
    assert alone.startswith(f"privctl: {folder / 'bad.jsonl'} line 13 is not valid JSON")
    for process in forked.together(2, call(folder, "bad.jsonl", "out"), script=str(folder / "worker.py")):
        assert (process.code, process.errors) == (3, alone)
    assert sorted(folder.rglob("*")) == before
