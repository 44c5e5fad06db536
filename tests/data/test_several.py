"""Several paths of data in one option: read in their order as one data set, each digested, none twice."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privctl.cli import run
from privctl.data.count import count_examples
from privctl.data.images import read_images
from privctl.data.recorded import data_digest, recorded_files
from privctl.data.several import SeveralPaths, data_at, paths_of
from privctl.data.texts import read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.reports.files import read_report
from tests.models.tasks.small import architecture, same_records, words

TEXTS = [f"the {a} sat on the {b} {i}" for i, (a, b) in enumerate([("cat", "mat"), ("dog", "mat"), ("cat", "dog")] * 8)]


def lines(path: Path, texts: list[str], **more: str) -> Path:
    rows = "".join(json.dumps({"text": text, **more}) + "\n" for text in texts)
    path.write_bytes(gzip.compress(rows.encode()) if path.suffix == ".gz" else rows.rstrip("\n").encode())
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeveralPaths:
    """Files of three formats."""
    monkeypatch.chdir(tmp_path)
    parquet(tmp_path / "a.parquet", [{"text": text} for text in TEXTS[:8]])
    lines(tmp_path / "b.jsonl", TEXTS[8:16])
    lines(tmp_path / "c.jsonl.gz", TEXTS[16:], who="x")
    data = data_at(["a.parquet", "b.jsonl", "c.jsonl.gz"])
    assert isinstance(data, SeveralPaths)
    return data


def test_records_come_in_the_order_of_the_paths(three: SeveralPaths) -> None:
    records = read_texts(three)
    assert [record.text for record in records] == TEXTS
    assert [record.line for record in records] == list(range(1, 25))
    assert records[8].where == "b.jsonl line 1"
    assert count_examples(three) == 24
    assert [file.path.name for file in recorded_files(three)] == ["a.parquet", "b.jsonl", "c.jsonl.gz"]
    assert data_digest(three) != data_digest(SeveralPaths(three.paths[::-1]))
    assert str(three) == "a.parquet, b.jsonl and c.jsonl.gz"
    assert str(SeveralPaths((*three.paths, Path("d")))) == "a.parquet, b.jsonl and 2 more"


def test_one_path_is_that_path() -> None:
    assert data_at("x") == data_at(["x"]) == Path("x")
    assert paths_of(Path("x")) == (Path("x"),)


def test_what_is_given_twice_is_refused(three: SeveralPaths) -> None:
    with pytest.raises(CommandError, match="b.jsonl is given twice, and each of its records would count as two"):
        data_at([*three.paths, "./b.jsonl"])
    os.link("b.jsonl", "same.jsonl")
    with pytest.raises(InputError, match="the records of b.jsonl are in same.jsonl too"):
        read_texts(data_at(["b.jsonl", "same.jsonl"]))
    with pytest.raises(InputError, match="each would count as two"):
        read_texts(data_at(["b.jsonl", "*.jsonl"]))
    with pytest.raises(InputError, match="none.jsonl"):
        read_texts(data_at(["b.jsonl", "none.jsonl"]))


def test_other_fields_in_one_of_them_are_refused(three: SeveralPaths) -> None:
    pairs = parquet(Path("pairs.parquet"), [{"prompt": "a", "response": "b"}])
    with pytest.raises(
        InputError, match="pairs.parquet has its texts in 'prompt', and b.jsonl in 'text'; give data of"
    ):
        read_texts(data_at(["b.jsonl", pairs]))
    with pytest.raises(InputError, match=r"has no column 'label' for the labels"):
        read_texts(data_at(["b.jsonl", "a.parquet"][::-1]), labelled=True)
    with pytest.raises(InputError, match="has the column 'text' of the type int64"):
        read_texts(data_at(["a.parquet", parquet(Path("numbers.parquet"), [{"text": 1}])]))


def test_images_are_joined(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(256, size=(6, 4, 4, 3), dtype=np.uint8)
    for name, part in (("a", drawn[:2]), ("b", drawn[2:]), ("wide", np.zeros((1, 4, 5, 3), np.uint8))):
        np.savez(tmp_path / f"{name}.npz", images=part, labels=np.arange(len(part)) % 2)
    both = data_at([tmp_path / "a.npz", tmp_path / "b.npz"])
    images = read_images(both)
    assert (images.pixels == drawn).all()
    assert images.labels == ("0", "1", "0", "1", "0", "1")
    assert count_examples(both) == 6
    with pytest.raises(InputError, match="of different sizes"):
        read_images(data_at([tmp_path / "a.npz", tmp_path / "wide.npz"]))
    os.link(tmp_path / "a.npz", tmp_path / "same.npz")
    with pytest.raises(InputError, match="each would count as two"):
        read_images(data_at([tmp_path / "a.npz", tmp_path / "same.npz"]))


def test_a_training_records_each_and_verify_checks_each(
    three: SeveralPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    words().tokenizer.save_pretrained(architecture(Path("start"), "gpt2", n_layer=1))
    data = [part for path in three.paths for part in ("--data", str(path))]
    few = ["--epsilon", "8", "--epochs", "1", "--batch-size", "8", "--micro-tokens", "160", "--device", "cpu", "-q"]
    few += ["--held-out", str(same_records(Path("b.jsonl")))]
    assert run(["retrain", "dp-sgd", "start", *data, *few, "-o", "out"]) == 0
    report = read_report(Path("out.report.json"))
    recorded = {a.path: a.digest for a in report.inputs if a.role == "data"}
    assert recorded == {str(path): data_digest(path) for path in three.paths}
    assert report.parameters["examples"] == 24
    assert report.parameters["data"] == "a.parquet + b.jsonl + c.jsonl.gz"
    report_path = Path("out.report.json")
    original = report_path.read_text()
    for other in ("a.parquet + b.jsonl", "a.parquet + b.jsonl + c.jsonl.gz + d.jsonl"):
        report_path.write_text(original.replace("a.parquet + b.jsonl + c.jsonl.gz", other))
        assert run(["verify", str(report_path), "-q"]) == 1
    report_path.write_text(original)
    assert run(["verify", "out", *data, "-q"]) == 0
    assert run(["verify", "out", *data[:4], "-q"]) == 1
    lines(Path("b.jsonl"), TEXTS[8:15])
    capsys.readouterr()
    assert run(["verify", "out", *data]) == 1
    assert "is not the 3 files that were trained on" in " ".join(capsys.readouterr().out.split())
    assert run(["retrain", "dp-sgd", "start", *data, *data[:2], *few, "-o", "again"]) == 2
    assert "a.parquet is given twice" in capsys.readouterr().err
    lines(Path("d.jsonl"), [f"{text} again" for text in TEXTS[16:]])
    audit = ["--members", "a.parquet", "--members", "b.jsonl", "--nonmembers", "d.jsonl", "--attack", "loss", "-q"]
    assert run(["audit", "out", *audit, "--device", "cpu"]) == 0
    audited = read_report(Path("out.audit.report.json"))
    assert [a.path for a in audited.inputs if a.role == "members"] == ["a.parquet", "b.jsonl"]
    assert run(["audit", "out", *audit[:4], "--nonmembers", "b.jsonl", *audit[6:], "--device", "cpu", "-f"]) != 0
    capsys.readouterr()
    assert run(["audit", "out", *audit[:4], "--nonmembers", "c.jsonl.gz", *audit[6:], "--device", "cpu", "-f"]) == 2
    assert "c.jsonl.gz of --nonmembers is what the model was trained on" in capsys.readouterr().err
    scored = ["audit", "score-records", "out", *audit[:4], "-o", "s.parquet", "--attack", "loss", "--device", "cpu"]
    assert run([*scored, "--nonmembers", "c.jsonl.gz", "-q"]) == 2
    assert "c.jsonl.gz of --nonmembers is what the model was trained on" in capsys.readouterr().err
    assert not Path("s.parquet").exists()
    assert run([*scored, "--nonmembers", "d.jsonl", "-q"]) == 0


@pytest.mark.slow
def test_secrets_and_canaries_take_several(three: SeveralPaths, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in three.paths]
    lines(Path("b.jsonl"), ["write to a@example.org", *TEXTS[9:15], "and to b@example.org"])
    lines(Path("c.jsonl.gz"), [*TEXTS[16:23], "again to a@example.org"])
    assert run(["secrets", "scan", *paths, "--kinds", "email", "-o", "book.jsonl", "-q"]) == 0
    book = {row["value"]: row["records"] for row in map(json.loads, Path("book.jsonl").read_text().splitlines())}
    assert book == {"a@example.org": [8, 23], "b@example.org": [15]}
    plan = ["--steps", "20", "--batch-size", "4", "-o", "plan.safetensors", "-q"]
    assert run(["secrets", "plan", *paths, "--secrets", "book.jsonl", *plan]) == 0
    assert run(["secrets", "plan", *paths[1:], "--secrets", "book.jsonl", *plan, "-f"]) == 3
    assert run(["canary", "plant", *paths, "-o", "planted.jsonl", "--count", "8", "-q"]) == 0
    assert run(["canary", "check", "planted.canaries.json", "-q"]) == 0
    planted = [json.loads(line)["text"] for line in Path("planted.jsonl").read_text().splitlines()]
    assert [text for text in planted if text in set(found := [r.text for r in read_texts(three)])] == found
    assert run(["account", "--epsilon", "8", *[p for path in paths for p in ("--data", path)],
                "--batch-size", "4", "--epochs", "1", "--delta", "1e-5", "--no-peers", "-q"]) == 0  # fmt: skip
    assert run(["canary", "plant", *paths, "-o", "b.jsonl", "-f", "-q"]) == 2
    assert "is the data itself" in capsys.readouterr().err


def test_a_settings_file_may_name_one_or_several(three: SeveralPaths, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--noise-multiplier", "4", "--delta", "1e-5", "--batch-size", "4", "--epochs", "1", "--no-peers"]
    for named, count in (('"b.jsonl"', 8), ('["b.jsonl", "a.parquet"]', 16)):
        Path("privctl.toml").write_text(f"[account]\ndata = {named}\n")
        assert run(["account", *asked]) == 0
        assert f": {count} examples" in " ".join(capsys.readouterr().err.split())


def test_records_of_one_file_share_the_name_of_their_place(tmp_path: Path) -> None:
    """A name a record would take as much memory as a short text."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}\n')
    records = read_texts(data_at([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
    assert records[2].stretch is records[3].stretch
    assert [record.where.rpartition("/")[2] for record in records] == [
        "a.jsonl line 1", "a.jsonl line 3", "b.jsonl line 1", "b.jsonl line 3",
    ]  # fmt: skip
