"""The DPQuant example: its data, its grid, its table and plot, and the whole of it on few small examples."""

from __future__ import annotations

import io
import json
import random
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.examples.parts import modules


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    """The example's modules; sums of one thread are the same bits each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield modules("dpquant")
    torch.set_num_threads(threads)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder as ``--data-dir`` names it: invented signs of six classes, of which two are taken, and sentences."""
    folder = tmp_path / "data"
    (folder / "vision").mkdir(parents=True)
    (folder / "text" / "sst2").mkdir(parents=True)
    draw = np.random.default_rng(0)
    with tarfile.open(folder / "vision" / "gtsrb-train-subset.tar.gz", "w:gz") as tar:
        for name in "abcdef":
            for track in range(10):
                for picture in range(2):
                    file = io.BytesIO()
                    Image.fromarray(draw.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(file, "PPM")
                    entry = tarfile.TarInfo(f"Images/{name}/{track:05d}_{picture:05d}.ppm")
                    entry.size = file.tell()
                    file.seek(0)
                    tar.addfile(entry, file)
    coin = random.Random(0)
    for name in ("train", "dev", "test"):
        lines = [f"{' '.join(coin.choices(['good', 'bad', 'film', 'very', 'a'], k=6))}\t{i % 2}\n" for i in range(40)]
        (folder / "text" / "sst2" / f"{name}.tsv").write_text("".join(lines))
    return folder


def test_no_track_is_on_both_sides(example: SimpleNamespace, data: Path, tmp_path: Path) -> None:
    task = example.records.signs(data / example.records.SIGNS, tmp_path / "signs")
    train, held_out = (np.load(path) for path in (task.train, task.held_out))
    assert (len(train["images"]), len(held_out["images"]), task.examples) == (32, 8, 32)  # tracks 0 and 5 held out
    assert set(train["labels"]) == set(held_out["labels"]) == {"a", "f"}
    known = {image.tobytes() for image in train["images"]}
    assert not any(image.tobytes() in known for image in held_out["images"])


def test_public_and_private_sentences_are_apart(
    example: SimpleNamespace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example.records, "PUBLIC", 15)
    task = example.records.sentences(data / example.records.SENTENCES, tmp_path / "sentences", 20)
    assert [len(path.read_text().splitlines()) for path in (task.public, task.train, task.held_out)] == [15, 20, 40]
    assert set(task.vocabulary.read_text().split()) == {"good", "bad", "film", "very", "a"}


def test_the_grid_has_every_cell_once(example: SimpleNamespace) -> None:
    cells = example.settings.grid(["signs", "sentences"], (0.5, 0.75, 0.9), 3, 4)
    assert len({cell.key for cell in cells}) == len(cells) == 2 * (3 * (4 + 6) + 4 * 3)
    assert sum(cell.layers == "static" for cell in cells) == 2 * 4 * 3
    assert all(cell.private for cell in cells if cell.fraction is not None)


def small(example: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    less = {"epochs": 2, "batch_size": 8, "plain_epochs": 1, "plain_batch_size": 8}
    for name, found in example.settings.TRAININGS.items():
        changed = replace(found, **less, public_epochs=min(1, found.public_epochs))
        monkeypatch.setitem(example.settings.TRAININGS, name, changed)
    monkeypatch.setattr(example.records, "PUBLIC", 15)


@pytest.mark.slow
def test_the_whole_example(
    example: SimpleNamespace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(example, monkeypatch)
    call = ["--data-dir", str(data), "-o", str(tmp_path / "out"), "--quick", "--examples", "24"]
    example.run.main(call)
    results: dict[str, Any] = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["runs"]) == 2 * (4 + 3)
    private = [row for row in results["runs"] if row["private"]]
    assert all(7.9 < row["epsilon"] <= 8 for row in private)
    for row in private:
        assert (row["share_of_measurements"] is not None) == (row["layers"] == "dpquant")
    assert all(row["epsilon"] is None for row in results["runs"] if not row["private"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.count("\n| s") == 14
    assert "signs, all layers in LUQ-FP4: with privacy" in table
    ElementTree.fromstring((tmp_path / "out" / "plot.svg").read_text())
    # It goes on where it was, and refuses results of other settings.
    before = results["runs"]
    example.run.main(call)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["runs"] == before
    with pytest.raises(SystemExit, match="other settings"):
        example.run.main([*call[:-1], "20"])
