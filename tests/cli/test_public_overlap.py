"""Public records that stand among the private ones: what is compared before training, and what the report claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from tests.cli.public_files import mixed, prepared_publicly, write
from tests.models.tasks.small import architecture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_publicly(tmp_path_factory.mktemp("public"))


def test_a_public_record_that_is_private_too_is_refused_unless_it_may_be(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "both.jsonl", ["the dog sat", "The  CAT sat on the mat\n"])
    assert run(mixed(folder, tmp_path / "a", public="both.jsonl")) == 2
    stderr = capsys.readouterr().err
    assert "record 2 of --public" in stderr
    assert "--public-overlap keep" in stderr
    assert not list(tmp_path.iterdir())
    assert run(mixed(folder, tmp_path / "a", "--public-overlap", "keep", public="both.jsonl")) == 0
    report = read_report(tmp_path / "a.report.json")
    assert "separate public data" not in {assumption.name for assumption in report.guarantees[0].assumptions}
    files = ["--data", str(folder / "train.jsonl"), "--public", str(folder / "both.jsonl")]
    assert run(["verify", str(tmp_path / "a.report.json"), "-q", *files]) == 0
    capsys.readouterr()
    compared = ["--members", str(folder / "train.jsonl"), "--nonmembers", str(folder / "both.jsonl"), "--device", "cpu"]
    assert run(["audit", str(tmp_path / "a"), *compared, "-q"]) == 2
    assert "both.jsonl of --nonmembers is what the model was trained on" in capsys.readouterr().err


@pytest.mark.slow
def test_an_altered_copy_or_a_part_is_not_found_and_the_report_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A character changed, a beginning, and a longer text that is cut to the tokens of a private one."""
    write(folder / "near.jsonl", ["the cat sat on the mat.", "the cat sat on the", "the cat sat on the dog the mat"])
    assert run(mixed(folder, tmp_path / "a", "--max-length", "6", "--long", "truncate", public="near.jsonl")) == 0
    (apart,) = [
        assumption for assumption in read_report(tmp_path / "a.report.json").guarantees[0].assumptions
        if assumption.name == "separate public data"
    ]  # fmt: skip
    assert "whole records were compared" in apart.statement
    assert "an altered copy or a part of a record is not found" in apart.statement
    capsys.readouterr()
    files = ["--data", str(folder / "train.jsonl"), "--public", str(folder / "near.jsonl")]
    assert run(["verify", str(tmp_path / "a.report.json"), "-q", "-v", *files]) == 0
    assert "whole texts were compared" in " ".join(capsys.readouterr().out.split())


def test_a_public_image_that_is_private_too_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (18, 16, 16, 3)).astype(np.uint8), np.arange(18) % 2
    images[17] = images[0]
    images[17, 3, 3, 0] ^= 1  # one number of one pixel
    for name, chosen, of in (("private", slice(0, 12), labels), ("both", [*range(12, 17), 0], 1 - labels),
                             ("public", slice(12, 18), labels)):  # fmt: skip
        np.savez(tmp_path / f"{name}.npz", images=images[chosen], labels=of[chosen])
    net = architecture(tmp_path / "resnet", "resnet")
    call = ["retrain", "dp-sgd", str(net), "--data", str(tmp_path / "private.npz"), "-o", str(tmp_path / "a"),
            "--task", "image-classification", "--norm", "frozen", "--batch-size", "4", "--steps", "2", "--epsilon",
            "8", "--device", "cpu", "-q"]  # fmt: skip
    assert run([*call, "--public", str(tmp_path / "both.npz")]) == 2
    printed = capsys.readouterr().err
    assert "record 6 of --public" in printed
    assert "case and white space" not in printed
    assert not list(tmp_path.glob("a*"))
    assert run([*call, "--public", str(tmp_path / "public.npz")]) == 0
    capsys.readouterr()
    files = ["--data", str(tmp_path / "private.npz"), "--public", str(tmp_path / "both.npz")]
    assert run(["verify", str(tmp_path / "a.report.json"), "-q", *files]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "is not what was mixed in" in printed
    assert "stands in the private data" not in printed, "verify compares texts alone"


def test_a_search_with_shared_records_begins_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that was begun counts beside the next one."""
    write(folder / "shared.jsonl", ["the dog sat", "the cat sat on the mat"])
    write(folder / "held.jsonl", ["a dog sat", "a dog sat on the mat"])
    search = ["--search", "learning-rate=1e-3,3e-3", "--expected-runs", "2", "--held-out", str(folder / "held.jsonl")]
    for more in ([], ["--dry-run"]):
        assert run([*mixed(folder, tmp_path / "a", *search, public="shared.jsonl"), *more]) == 2
        assert "record 2 of --public" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
