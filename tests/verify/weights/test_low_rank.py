"""Merged adapters move each matrix by their rank: another model's weights do not pass for such a move."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.storage.reader import SafetensorsFile
from tests.models.tasks.small import architecture, words
from tests.verify.reports import redigest
from verify.run import Verification, read, verify
from verify.weights.single_tensors import higher_rank
from verify.weights.start import Start

Array = NDArray[np.float32]


def complaints(tmp_path: Path, write_model: Callable[..., Path], before: Array, after: Array, rank: int) -> list[str]:
    start = Start(tensors={"a": before}, parameters=frozenset({"a"}), exact=True, source="made up")
    with SafetensorsFile(write_model(tmp_path / "m.safetensors", {"a": after})) as file:
        return list(higher_rank(start, file, rank))


@pytest.mark.parametrize(("rows", "columns", "rank"), [(64, 64, 1), (200, 90, 8), (90, 200, 64)])
@pytest.mark.parametrize("size", [1e-6, 1e-2, 10.0])
def test_a_product_of_the_rank_passes_and_a_larger_one_does_not(
    tmp_path: Path, write_model: Callable[..., Path], rows: int, columns: int, rank: int, size: float
) -> None:
    rng = np.random.default_rng(rank)
    before = rng.standard_normal((rows, columns)).astype(np.float32)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, rank), (rank, columns)))
    merged = before + np.float32(size) * (left @ right)
    assert complaints(tmp_path, write_model, before, merged, rank) == []
    further = merged + np.float32(size) * rng.standard_normal((rows, columns)).astype(np.float32)
    found = complaints(tmp_path, write_model, before, further, rank)
    assert bool(found) is (size > 1e-6)  # smaller moves are rounded away
    assert all(f"more than the product of two matrices of rank {rank}" in sentence for sentence in found)


def test_weights_that_were_not_moved_or_are_small_are_not_judged(
    tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    before = np.ones((20, 20), np.float32)
    assert complaints(tmp_path, write_model, before, before, 1) == []
    noise = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    assert complaints(tmp_path, write_model, before, before + noise, 12) == []


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a training whose adapters were merged into its weights."""
    folder = tmp_path_factory.mktemp("merged")
    words().tokenizer.save_pretrained(architecture(folder / "start", "gpt2"))
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps({"text": f"the old cat sat on mat {i}"}) + "\n" for i in range(40)))
    asked = ["--epsilon", "8", "--batch-size", "8", "--epochs", "1", "--device", "cpu", "-q"]
    usual = [*asked, "--data", str(data)]
    assert run(["retrain", "dp-sgd", str(folder / "start"), *usual, "-o", str(folder / "base")]) == 0
    more = ["--lora-rank", "2", "-o", str(folder / "model")]
    other = folder / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"a very old dog sat {i}"}) + "\n" for i in range(40)))
    assert run(["retrain", "dp-sgd", str(folder / "base"), *asked, "--data", str(other), *more]) == 0
    return folder / "model.report.json"


def judged(report_path: Path) -> Verification:
    return verify(report_path, read(report_path))


def test_merged_adapters_pass_and_other_matrices_do_not(merged: Path, write_model: Callable[..., Path]) -> None:
    found = judged(merged)
    assert found.exit_code is ExitCode.OK
    place = merged.with_name("model") / "model.safetensors"
    with SafetensorsFile(place) as file:
        tensors = {info.name: np.frombuffer(file.read(info), "<f4").reshape(info.shape) for info in file.tensors}
        metadata = dict(file.metadata)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2 and "mlp.c_fc" in name)
    drawn = np.random.default_rng(0).standard_normal(tensors[name].shape).astype(np.float32)
    write_model(place, {**tensors, name: tensors[name] + np.float32(1e-3) * drawn}, metadata)
    redigest(merged, place)
    found = judged(merged)
    assert found.exit_code is ExitCode.REFUTED
    (reason,) = [v.reason for v in found.verdicts if v.subject == "weights"]
    assert reason.startswith(f"matrix {name!r} differs from what it began as by more than the product of two matrices")
