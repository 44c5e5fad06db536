"""The secrets example: its split, its order, its tables and plot, and the whole of it on a tiny corpus."""

from __future__ import annotations

import csv
import io
import json
import lzma
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.audits.canaries.small import WORDS, new_model
from tests.examples.parts import modules


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    """The example's modules."""
    return modules("secrets")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder as ``--data-dir`` names it, with a tiny model and invented abstracts."""
    folder = tmp_path / "data"
    (folder / "text").mkdir(parents=True)
    new_model(folder / "stories260k")
    drawn = random.Random(0)
    table = io.StringIO()
    writer = csv.writer(table, delimiter="\t")
    writer.writerow(["", "abstract", "title"])
    for i in range(90):
        writer.writerow([i, "  ".join(drawn.choices(WORDS, k=10)), f"title {i}"])
    with lzma.open(folder / "text" / "20200101-cs.CR.tsv.xz", "wt", encoding="utf-8", newline="") as file:
        file.write(table.getvalue())
    return folder


def test_the_parts_of_a_split_have_nothing_in_common(example: SimpleNamespace, data: Path) -> None:
    texts = example.records.abstracts(data / "text" / "20200101-cs.CR.tsv.xz")
    assert len(texts) == 90
    assert all("  " not in text for text in texts)
    found = example.records.split([*texts, *texts], 50, 20, words=6)
    parts = [*found.private, *found.test, *found.public]
    assert (len(found.private), len(found.test), len(found.public)) == (50, 20, 20)
    assert len(set(parts)) == len(parts)
    assert {len(text.split()) for text in parts} == {6}
    assert found == example.records.split(texts, 50, 20, words=6)
    with pytest.raises(ValueError, match="90 different abstracts are too few"):
        example.records.split(texts, 70, 20, words=6)


def test_the_vocabulary_has_what_occurs_twice(example: SimpleNamespace) -> None:
    words = example.records.vocabulary(["A key, a lock", "The key; the lock, the door"], 3)
    assert words[-3:] == ["the", "a", "key"]
    assert "door" not in example.records.vocabulary(["A key, a lock", "The key; the lock, the door"], 99)


def test_every_training_once_and_shuffled_within_a_seed(example: SimpleNamespace) -> None:
    keys = [str(i) for i in range(8)]
    found = example.settings.grid(keys, 2)
    assert sorted(found) == sorted((key, seed) for key in keys for seed in (0, 1))
    assert [seed for _, seed in found] == [0] * 8 + [1] * 8
    assert [key for key, _ in found[:8]] != [key for key, _ in found[8:]]


def results() -> dict[str, Any]:
    private = {"epsilon": 0.5, "delta": 1e-5, "posterior": 0.5, "test_accuracy": 0.25, "seed": 0}
    base = {"secrets": 9, "seed": 0, "told_before": [0.1, 0.0, 0.4], "greedy": [0.2, 0.1, 0.5], "epsilon": 3.0}
    return {
        "settings": {
            "weights": {"steps": 5, "batch_size": 4, "posterior": 0.5, "prior": 0.001},
            "extraction": {"digits": 5, "copies": 8, "steps": 5, "batch_size": 4, "candidates": 100},
        },
        "weights": {
            "secrets": 7, "records_with_a_secret": 6, "largest_secret": 3,
            "caps": [
                {"cap": None, "kept": 1.0, "noise_multiplier": 2.0, "largest_probability": 0.1, "gap": 0.0},
                {"cap": 3.0, "kept": 0.5, "noise_multiplier": 1.0, "largest_probability": 0.2, "gap": 1e-9},
            ],
            "runs": [
                {"key": "3.0", "kept": 0.5, "noise_multiplier": 1.0, "test_loss": 6.0, **private},
                {"key": "3.0", "kept": 0.5, "noise_multiplier": 1.0, "test_loss": 7.0, **private},
                {"key": "none", "kept": 1.0, "noise_multiplier": 2.0, "test_loss": 6.8, **private},
                {"key": "uniform", "kept": 1.0, "noise_multiplier": 2.0, "test_loss": 6.9, **private},
                {**private, "key": "plain", "kept": 1.0, "noise_multiplier": 0.0, "test_loss": 5.0, "epsilon": None,
                 "delta": None},
            ],
        },
        "extraction": {
            "records": 50, "needed": 18.0,
            "runs": [
                {"noise_multiplier": 3.0, "told": [0.5, 0.4, 0.6], "curve": 0.7, "fano": 1.0, **base},
                {"noise_multiplier": 0.0, "told": [0.9, 0.7, 1.0], "curve": 1.0, "fano": 1.0, **base, "epsilon": None},
                {"noise_multiplier": 3.0, "told": [0.3, 0.2, 0.5], "curve": 0.7, "fano": 1.0, **base},
            ],
        },
    }  # fmt: skip


def test_tables(example: SimpleNamespace) -> None:
    lines = [line.strip("| ").split(" | ") for line in example.showing.table(results()).splitlines() if line[:1] == "|"]
    caps, models, reconstruction = lines[2:4], lines[6:10], lines[12:]
    assert caps[1][:3] == ["3", "50 %", "1"]
    assert [row[0] for row in models] == [
        "plain",
        "DP-SGD at the noise of no cap",
        "plan without a cap",
        "plan of cap 3",
    ]
    assert models[0][2:] == ["–", "5", "0.25", "–", "1"]
    assert models[3][3:] == ["6.5 (6 to 7)", "0.25 (0.25 to 0.25)", "0.5", "2"]
    assert reconstruction[0][:2] == ["0 (plain)", "0.900 (0.700 to 1.000)"]
    assert reconstruction[1] == [
        "3",
        "0.400 (0.200 to 0.600)",
        "0.200 (0.100 to 0.500)",
        "0.7",
        "1 (no bound)",
        "3",
        "2",
    ]
    assert "at which Fano's bound is 0.1 is 18." in example.showing.table(results())


@pytest.mark.slow
def test_plot_is_svg_and_the_same_each_time(example: SimpleNamespace) -> None:
    drawn = example.showing.plot(results())
    assert drawn == example.showing.plot(results())
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


@pytest.mark.slow
def test_whole_run_and_going_on(
    example: SimpleNamespace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain of commands works, bounds fall as noise rises, and a second start trains nothing again."""
    small = example.settings.Weights(
        private=50, test=20, words=8, vocabulary=60, least=2, most=4, steps=2, batch_size=4, hidden=8, caps=2
    )
    planted = example.settings.Extraction(
        records=40, canaries=20, steps=2, batch_size=4, candidates=20, noises=(0.0, 5.0)
    )
    monkeypatch.setattr(example.settings, "QUICK_WEIGHTS", small)
    monkeypatch.setattr(example.settings, "QUICK_EXTRACTION", planted)
    output = tmp_path / "out"
    arguments = ["--data-dir", str(data), "-o", str(output), "--quick"]
    example.run.main(arguments)
    found = json.loads((output / "results.json").read_text())
    caps, runs = found["weights"]["caps"], {row["key"]: row for row in found["weights"]["runs"]}
    assert set(runs) == {"plain", "uniform", "none", repr(caps[1]["cap"])}
    assert runs["plain"]["epsilon"] is None
    assert runs["uniform"]["noise_multiplier"] == runs["none"]["noise_multiplier"] == caps[0]["noise_multiplier"]
    assert runs["uniform"]["epsilon"] == pytest.approx(runs["none"]["epsilon"], rel=1e-6)
    capped = runs[repr(caps[1]["cap"])]
    assert capped["kept"] == pytest.approx(caps[1]["kept"])
    assert capped["kept"] < 1
    assert capped["noise_multiplier"] < runs["none"]["noise_multiplier"]
    # What floating-point noise costs comes on top of what the plan was made for.
    assert capped["posterior"] <= small.posterior * (1 + 1e-7)
    by_noise = {row["noise_multiplier"]: row for row in found["extraction"]["runs"]}
    assert by_noise[0.0]["curve"] == by_noise[0.0]["fano"] == 1
    assert 1 / 20 < by_noise[5.0]["curve"] < by_noise[5.0]["fano"] < 1
    assert all(0 <= row["told"][1] <= row["told"][0] <= row["told"][2] <= 1 for row in by_noise.values())
    assert "plan without a cap" in (output / "table.md").read_text()
    assert not list((output / "runs").glob("*/*/model.safetensors"))

    def must_not(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(example.measuring, "weighed", must_not)
    monkeypatch.setattr(example.measuring, "extracted", must_not)
    example.run.main(arguments)
    assert json.loads((output / "results.json").read_text()) == found
    with pytest.raises(SystemExit, match="other settings"):
        example.run.main(["--data-dir", str(data), "-o", str(output)])
