"""Commands on data that are not JSON lines: what they read, what they record, and what verify finds again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.reports.files import read_report
from tests.cli.test_inferred_task import retrain, saved
from tests.models.tasks.small import architecture

ROWS: list[dict[str, Any]] = [
    {"body": f"the old cat sat on {'a mat' if i % 2 else 'the dog'}", "gold": i % 2} for i in range(12)
]
NAMED = ("--text-column", "body", "--label-column", "gold")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    for i in range(2):
        pq.write_table(pa.Table.from_pylist(ROWS[6 * i : 6 * i + 6]), folder / f"train-0000{i}-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[:4]), folder / "test-00000-of-00001.parquet")
    return tmp_path / "hub"


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    stderr = capsys.readouterr().err.strip()
    assert "\n" not in stderr
    return stderr


@pytest.mark.slow
def test_shards_are_trained_on_recorded_and_verified(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path / "m", "text-classification")
    data, output = shards / "train", tmp_path / "out"
    capsys.readouterr()
    assert retrain(model, shards, output, *NAMED) == ExitCode.BAD_INPUT
    assert sentence(capsys).endswith(f"holds the splits test, train; give one of them, such as {data}")
    assert retrain(model, data, output, "--text-column", "body") == ExitCode.BAD_INPUT
    assert "has no 'label' in its first record, which holds 'body', " in sentence(capsys)
    assert retrain(model, data, output, *NAMED, "--held-out", str(shards / "test")) == 0
    report = read_report(tmp_path / "out.report.json")
    names = [Path(a.path).name for a in report.inputs if a.role == "data"]
    assert names == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    assert report.parameters["examples"] == 12
    capsys.readouterr()

    def verified(path: Path) -> str:
        found = run(["verify", str(tmp_path / "out.report.json"), "--data", str(path), *NAMED[:2], "-q", "-v"])
        stdout = " ".join(capsys.readouterr().out.split())
        assert (found == 0) == ("REFUTED" not in stdout)
        return stdout

    assert "is the 2 files that were trained on" in verified(data)
    assert "is the 2 files that were trained on" in verified(shards / "data" / "train-*")
    assert "is not the 2 files that were trained on: their digests differ" in verified(shards / "test")
    one = shards / "data" / names[0]
    pq.write_table(pa.Table.from_pylist([{"body": "a mat", "gold": 1}] * 6), one)
    assert "is not the 2 files" in verified(data), "as many records, and others"


def test_an_audit_reads_what_a_training_reads(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(tmp_path / "m", "text-classification")
    others = tmp_path / "others.csv"
    others.write_text("body,gold\n" + "".join(f'"the dog sat, on mat {i}",{i % 2}\n' for i in range(12)))
    call = ["audit", str(model), "--members", str(shards / "train"), "--nonmembers", str(others), *NAMED, "-q"]
    assert run([*call, "--device", "cpu"]) in (ExitCode.OK, ExitCode.BAD_INPUT)
    report = read_report(tmp_path / "m.audit.report.json")
    assert [a.role for a in report.inputs if a.role in ("members", "nonmembers")] == [
        "members",
        "members",
        "nonmembers",
    ]


def test_a_scan_and_its_plan_agree_on_shards(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.jsonl"
    call = ["secrets", "scan", str(shards / "train"), "-o", str(book), "--pattern", r"mat=\bmat\b", "--kinds", "none"]
    assert run([*call, *NAMED[:2], "-q"]) == 0
    plan = ["--secrets", str(book), "--steps", "4", "--batch-size", "4", "--text-column", "body", "-q"]
    capsys.readouterr()
    assert run(["secrets", "plan", str(shards / "train"), *plan]) == 0
    capsys.readouterr()
    one = shards / "data" / "train-00001-of-00002.parquet"
    pq.write_table(pa.Table.from_pylist([{"body": "another mat", "gold": 1}] * 6), one)
    assert run(["secrets", "plan", str(shards / "train"), *plan]) == ExitCode.BAD_INPUT
    assert "was made from other data" in sentence(capsys)


def test_long_texts_are_truncated_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = saved(tmp_path / "m", "masked-lm"), tmp_path / "d.jsonl"
    rows = [{"text": "the old cat sat " * (1 if i else 40)} for i in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = [
        "retrain",
        "plain",
        str(model),
        "--data",
        str(data),
        "--steps",
        "1",
        "--max-length",
        "16",
        "--batch-size",
        "4",
        "--device",
        "cpu",
    ]
    assert run([*call, "-o", str(tmp_path / "a")]) == 0
    stderr = " ".join(capsys.readouterr().err.split())
    assert "1 of the 8 records of --data (12.5 %) have more than 16 tokens and are truncated to them" in stderr
    assert run([*call, "-o", str(tmp_path / "b"), "--long", "split"]) == 0
    assert "are truncated" not in capsys.readouterr().err
    assert run([*call, "-o", str(tmp_path / "c"), "--long", "refuse"]) == ExitCode.BAD_INPUT
    assert "d.jsonl line 1 has 1" in capsys.readouterr().err


def test_canaries_are_planted_into_lines_made_of_a_table(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, planted = tmp_path / "t.parquet", tmp_path / "planted.jsonl"
    pq.write_table(pa.Table.from_pylist([{"text": row["body"], "id": i} for i, row in enumerate(ROWS)]), table)
    assert run(["canary", "plant", str(table), "-o", str(planted), "--count", "10", "-q"]) == 0
    rows = [json.loads(line) for line in planted.read_text().splitlines()]
    assert all(row.keys() == {"text"} for row in rows)
    own = [row["text"] for row in rows if row["text"] in {row["body"] for row in ROWS}]
    assert own == [row["body"] for row in ROWS]
    assert len(rows) > 12
    capsys.readouterr()
    assert run(["canary", "check", str(tmp_path / "planted.canaries.json"), "-q"]) == 0


def test_a_folder_of_images_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(8):
        (tmp_path / "images" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (i, 0, 200 * (i % 2))).save(tmp_path / "images" / "ab"[i % 2] / f"{i}.png")
    architecture(tmp_path / "resnet", "resnet")
    call = ["retrain", "clipped", str(tmp_path / "resnet"), "--data", str(tmp_path / "images"), "--norm", "frozen"]
    assert run([*call, "--epochs", "1", "--batch-size", "4", "-o", str(tmp_path / "out"), "-q"]) == 0
    report = tmp_path / "out.report.json"
    assert [Path(a.path).name for a in read_report(report).inputs if a.role == "data"] == ["images"]
    capsys.readouterr()
    assert run(["verify", str(report), "--data", str(tmp_path / "images"), "-q", "-v"]) == 0
    assert "images is what was trained on" in " ".join(capsys.readouterr().out.split())
    Image.new("RGB", (16, 16), (9, 9, 9)).save(tmp_path / "images" / "a" / "0.png")
    assert run(["verify", str(report), "--data", str(tmp_path / "images"), "-q", "-v"]) == ExitCode.REFUTED
    assert "is not what was trained on" in " ".join(capsys.readouterr().out.split())
