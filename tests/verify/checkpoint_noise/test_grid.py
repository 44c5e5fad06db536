"""Noise that was rounded onto a grid: every weight is held against it, and what it hides is undone exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from privctl.cli import run
from privctl.storage.reader import SafetensorsFile
from tests.few import few
from verify.checkpoint_noise.measure import complaints, measure
from verify.checkpoint_noise.values import VIEWS, count_off_grid, deviates

STDDEV, GRID = 0.01, 2.0**-12
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
COUNT = 20_000


def released(before: torch.Tensor, seed: int, grid: float = GRID, spread: float = STDDEV) -> torch.Tensor:
    noise = np.random.default_rng(seed).normal(size=before.shape) * spread
    total = before.double().numpy() + noise
    return torch.from_numpy(np.rint(total / grid) * grid if grid else total).to(before.dtype)


def found(folder: Path, before: torch.Tensor, after: torch.Tensor) -> list[str]:
    paths = folder / "a.safetensors", folder / "b.safetensors"
    for path, tensor in zip(paths, (before, after), strict=True):
        save_file({"w": tensor}, path)
    with SafetensorsFile(paths[0]) as old, SafetensorsFile(paths[1]) as new:
        return complaints([measure(old, new, STDDEV, (), grid=GRID)], STDDEV)


def weights(dtype: str, scale: float = 0.1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=COUNT) * scale).to(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_what_lies_on_the_grid_passes(dtype: str, scale: float, tmp_path: Path) -> None:
    before = weights(dtype, scale)
    assert found(tmp_path, before, released(before, 1)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_was_left_as_a_float_is_refused(dtype: str, tmp_path: Path) -> None:
    before = weights(dtype)
    (wrong,) = found(tmp_path, before, released(before, 1, grid=0.0))
    assert "no points of the grid" in wrong


def test_one_weight_off_the_grid_is_found_among_all(tmp_path: Path) -> None:
    before = weights("F32")
    after = released(before, 1)
    after[777] += GRID / 8
    (wrong,) = found(tmp_path, before, after)
    assert wrong.startswith("1 of 20000 weights")


@pytest.mark.parametrize("spread", [0.9, 1.1])
def test_a_wrong_deviation_shows_on_the_grid_too(spread: float, tmp_path: Path) -> None:
    before = weights("F32")
    (wrong,) = found(tmp_path, before, released(before, 1, spread=spread * STDDEV))
    assert "standard deviation" in wrong


@pytest.mark.parametrize("dtype", few(DTYPES, 1, 3))
@pytest.mark.parametrize("scale", few([0.0, 0.3, 30.0], 0, 2))
def test_deviates_are_normal_whatever_the_grid_and_the_format_hide(dtype: str, scale: float) -> None:
    """Half formats round several points to one number, ties to the even one."""
    generator = np.random.default_rng(3)
    before = torch.from_numpy(generator.normal(size=200_000) * scale).to(DTYPES[dtype])
    after = released(before, 4, grid=4 * GRID)
    bits = [t.contiguous().view(torch.uint8).numpy().view(VIEWS[dtype]) for t in (before, after)]
    assert count_off_grid(bits[1], dtype, 4 * GRID) == 0
    recovered_deviates = deviates(*bits, dtype, STDDEV, generator.random(200_000), 4 * GRID)
    assert stats.kstest(recovered_deviates, "norm").pvalue > 1e-6
    blind = deviates(*bits, dtype, STDDEV, generator.random(200_000))
    if scale == 0.0:  # all sums lie in the same few cells
        assert stats.kstest(blind, "norm").pvalue < 1e-6


def test_verify_refutes_a_model_whose_weights_left_the_grid(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": weights("F32").numpy()})
    facts = "--epochs 10 --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5"
    assert run(["noise", str(model), "-q", *facts.split()]) == 0
    report = tmp_path / "m.private.report.json"
    assert run(["verify", str(report), "-q"]) == 0
    capsys.readouterr()
    forged = json.loads(report.read_text())
    forged["mechanism"]["grid"] *= 2
    report.write_text(json.dumps(forged))
    assert run(["verify", str(report), "-q"]) == 1
    assert "no points of the grid" in " ".join(capsys.readouterr().out.split())
    assert load_file(tmp_path / "m.private.safetensors")["w"].shape == (COUNT,)
