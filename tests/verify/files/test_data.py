"""``privctl verify --data``: examples are counted as a training counts them, and the file is the one trained on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from privctl.cli import run
from privctl.data.count import count_examples
from privctl.data.images import read_images
from privctl.domain.errors import InputError
from tests.verify.reports import noise, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("data")
    trained(folder, "dp-sgd")
    lines = (folder / "train.jsonl").read_text().splitlines()
    people = [{**json.loads(line), "who": str(i % 20)} for i, line in enumerate(lines)]
    (folder / "people.jsonl").write_text("".join(json.dumps(each) + "\n" for each in people))
    call = ["retrain", "clipped", str(folder / "start"), "--data", str(folder / "people.jsonl"), "--unit", "who"]
    more = ["-o", str(folder / "people"), "--batch-size", "5", "--epochs", "1", "--optimizer", "sgd", "--device", "cpu"]
    assert run([*call, *more, "-q"]) == 0
    assert run(["noise", str(folder / "people"), "--epsilon", "1", "-q"]) == 0
    return folder


def verify_with_data(capsys: pytest.CaptureFixture[str], report: Path, data: Path) -> tuple[int, str]:
    capsys.readouterr()
    code = run(["verify", str(report), "--data", str(data), "-q", "-v"])
    return code, " ".join(capsys.readouterr().out.split())


def forged(report: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    data = json.loads(report.read_text())
    change(data)
    path = report.with_name(name)
    path.write_text(json.dumps(data))
    return path


def test_the_data_trained_on_are_counted_and_recognised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = verify_with_data(capsys, folder / "dp-sgd.report.json", folder / "train.jsonl")
    assert code == 0
    assert "train.jsonl holds 60 examples, as the report says" in output
    assert "train.jsonl is what was trained on" in output


@pytest.mark.parametrize("report", ["people.report.json", "people.private.report.json"])
def test_all_records_of_one_person_are_one_example(
    folder: Path, capsys: pytest.CaptureFixture[str], report: str
) -> None:
    code, output = verify_with_data(capsys, folder / report, folder / "people.jsonl")
    assert code == 0
    assert "people.jsonl holds 20 examples, as the report says" in output


def test_more_examples_on_paper_than_in_the_data_are_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the examples halve the rate, and with it what a step gives away."""

    def doubled(report: dict[str, Any]) -> None:
        parameters = report["parameters"]
        parameters.update(examples=120, sample_rate=parameters["batch_size"] / 120)
        report["mechanism"]["events"][0]["sample_rate"] = parameters["batch_size"] / 120

    code, output = verify_with_data(
        capsys, forged(folder / "dp-sgd.report.json", "doubled.report.json", doubled), folder / "train.jsonl"
    )
    assert code == 1
    assert "holds 60 examples, and the report says 120: batches of 12 draw each at a rate of 0.2" in output
    assert "where the ledger has 0.1" in output


def test_other_data_of_the_same_size_are_not_the_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(reversed((folder / "train.jsonl").read_text().splitlines(keepends=True))))
    code, output = verify_with_data(capsys, folder / "dp-sgd.report.json", other)
    assert code == 1
    assert "other.jsonl holds 60 examples, as the report says" in output
    assert "other.jsonl is not what was trained on" in output


def test_a_report_without_a_number_and_data_without_records_are_one_sentence(
    folder: Path, tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.report.json"
    asked = ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "10", "--delta", "1e-5"]
    assert run(["account", *asked, "--json", "-q", "-o", str(plan)]) == 0
    report = folder / "dp-sgd.report.json"
    before = report.read_bytes()
    log = plan.with_suffix(".log")
    log.touch()
    calls = {
        (plan, folder / "train.jsonl"): (2, "the report states no number of examples"),
        (report, tmp_path / "gone.jsonl"): (3, "gone.jsonl"),
        (report, log): (2, "give texts as one of them"),
    }
    for (path, data), (code, says) in calls.items():
        capsys.readouterr()
        assert run(["verify", str(path), "--data", str(data), "-q"]) == code
        assert says in capsys.readouterr().err
    assert report.read_bytes() == before
    facts = noise(tmp_path, write_model)  # its owner said 100
    assert verify_with_data(capsys, facts, folder / "train.jsonl")[0] == 1


def test_counting_finds_what_the_reading_finds(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "train.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "train.jsonl").read_bytes()))
    assert count_examples(packed) == 60
    for name, count in (("dark", 2), ("light", 3)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4), i).save(tmp_path / "images" / name / f"{i}.png")
    assert count_examples(tmp_path / "images") == len(read_images(tmp_path / "images")) == 5
    np.savez(tmp_path / "images.npz", images=np.zeros((7, 4, 4, 3), np.uint8), labels=np.arange(7))
    assert count_examples(tmp_path / "images.npz") == len(read_images(tmp_path / "images.npz")) == 7
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        count_examples(tmp_path / "empty")


def test_a_folder_of_data_is_not_called_absent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def moved(data: dict[str, Any]) -> None:
        (train,) = (each for each in data["inputs"] if each["path"] == "train.jsonl")
        train["path"] = "start"

    path = forged(folder / "dp-sgd.report.json", "folder.report.json", moved)
    output = verify_with_data(capsys, path, folder / "train.jsonl")[1]
    assert "digest of the input start: only --data compares a folder" in output
