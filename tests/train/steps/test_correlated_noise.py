"""Correlated noise: its covariance, what is kept of it, and what happens where some of it is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privctl.accounting.banded import banded_coefficients
from privctl.accounting.buffered import BufferedMatrix
from privctl.domain.errors import InputError
from privctl.randomness import NoiseSource
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.correlated_noise import CorrelatedNoise
from privctl.train.steps.gradient_noise import CipherNoise, GradientNoise, KeyedNoise, Shard
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.step_noise import correlated, kept_noise, restore_noise

CPU = torch.device("cpu")
SOURCES = [lambda: KeyedNoise(NoiseSource(1)), lambda: CipherNoise(CPU, seed=1)]
STEPS, NUMBERS = 7, 20_000
COEFFICIENTS = banded_coefficients(3, STEPS)


@pytest.fixture(params=SOURCES, ids=["on the processor", "on the device"])
def fresh(request: pytest.FixtureRequest) -> GradientNoise:
    return request.param()  # type: ignore[no-any-return]


def matrix(coefficients: tuple[float, ...], steps: int = STEPS) -> np.ndarray:
    whole = np.zeros((steps, steps))
    for age, value in enumerate(coefficients):
        whole += value * np.eye(steps, k=-age)
    return whole


def rows(noise: GradientNoise, sums: np.ndarray, stddev: float = 2.0) -> np.ndarray:
    """What is released for ``sums`` [steps, numbers], as two tensors a step."""
    released = []
    for step, row in enumerate(sums):
        tensors = [torch.from_numpy(part.astype(np.float32)) for part in (row[:1000], row[1000:])]
        noise.release(tensors, stddev, step)
        released.append(np.concatenate([tensor.numpy() for tensor in tensors]))
    return np.array(released, np.float64)


def farthest(found: np.ndarray, covariance: np.ndarray) -> float:
    """How far the sample's covariance is from ``covariance``, in standard errors of the worst entry."""
    sample = found @ found.T / found.shape[1]
    variances = np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2
    return float((np.abs(sample - covariance) / np.sqrt(variances / found.shape[1])).max())


def test_its_covariance_is_that_of_the_inverse_matrix_and_half_the_noise_is_noticed(fresh: GradientNoise) -> None:
    inverse = np.linalg.inv(matrix(COEFFICIENTS))
    found = rows(CorrelatedNoise(fresh, COEFFICIENTS), np.zeros((STEPS, NUMBERS)))
    assert farthest(found, 4.0 * inverse @ inverse.T) < 5
    assert farthest(found, 1.0 * inverse @ inverse.T) > 50
    assert farthest(found, 4.0 * np.eye(STEPS)) > 50  # as if each step had noise of its own


def test_what_the_matrix_gives_back_is_fresh_noise_on_combined_sums(fresh: GradientNoise) -> None:
    sums = np.random.default_rng(3).normal(size=(STEPS, NUMBERS)) * 30
    recovered = matrix(COEFFICIENTS) @ (rows(CorrelatedNoise(fresh, COEFFICIENTS), sums) - sums.astype(np.float32))
    assert farthest(recovered, 4.0 * np.eye(STEPS)) < 5


def test_one_band_is_the_noise_itself() -> None:
    plain = KeyedNoise(NoiseSource(1))
    assert correlated(plain, None) is plain
    sums = np.random.default_rng(4).normal(size=(3, 2000))
    one = rows(CorrelatedNoise(KeyedNoise(NoiseSource(1)), (1.0,)), sums)
    # In float32 the same deviates: only the released numbers are rounded to it, not the sums.
    assert np.abs(one - rows(plain, sums)).max() < 1e-5


def test_sums_of_all_steps_hold_less_noise_than_independent_noise_leaves(fresh: GradientNoise) -> None:
    total = rows(CorrelatedNoise(fresh, COEFFICIENTS), np.zeros((STEPS, NUMBERS))).sum(0)
    expected = 2.0 * math.sqrt((np.linalg.inv(matrix(COEFFICIENTS)).sum(0) ** 2).sum())
    assert total.std() == pytest.approx(expected, rel=0.03)
    assert expected < 2.0 * math.sqrt(STEPS) * 0.75


def test_a_run_that_was_saved_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    sums = np.zeros((STEPS, NUMBERS))
    first = CorrelatedNoise(KeyedNoise(NoiseSource(1)), COEFFICIENTS)
    before = rows(first, sums[:4])
    with RunFolder.begin(tmp_path / "run", {}) as folder:
        folder.save(SavedState(updates=4, steps_begun=4, tensors=first.tensors()))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "run").iterdir())
    _, found = RunFolder.resume(tmp_path / "run", {})
    assert found is not None
    second = CorrelatedNoise(KeyedNoise(NoiseSource(2)), COEFFICIENTS)
    second.restore(found.tensors)
    after = []
    for step in range(4, STEPS):
        tensors = [torch.zeros(1000), torch.zeros(NUMBERS - 1000)]
        second.release(tensors, 2.0, step)
        after.append(np.concatenate([tensor.numpy() for tensor in tensors]))
    inverse = np.linalg.inv(matrix(COEFFICIENTS))
    assert farthest(np.vstack([before, after]), 4.0 * inverse @ inverse.T) < 5


def test_noise_of_lost_steps_counts_as_none(fresh: GradientNoise) -> None:
    """Step 3 began and was lost: later rows of the matrix have nothing in its column, and keep the others."""
    noise = CorrelatedNoise(fresh, COEFFICIENTS)
    found = []
    for step in (0, 1, 2, 4, 5, 6):
        tensors = [torch.zeros(NUMBERS)]
        noise.release(tensors, 2.0, step)
        found.append(tensors[0].double().numpy())
    left = np.delete(np.delete(matrix(COEFFICIENTS), 3, 0), 3, 1)
    assert np.sqrt((left**2).sum(0)).max() <= 1
    inverse = np.linalg.inv(left)
    assert farthest(np.array(found), 4.0 * inverse @ inverse.T) < 5


def test_noise_that_was_correlated_otherwise_is_refused() -> None:
    noise = CorrelatedNoise(KeyedNoise(NoiseSource(1)), COEFFICIENTS)
    noise.release([torch.zeros(5)], 1.0, 0)
    with pytest.raises(InputError, match="resume with the settings"):
        CorrelatedNoise(KeyedNoise(NoiseSource(1)), (0.8, 0.6)).restore(noise.tensors())


def test_a_step_is_never_drawn_twice(fresh: GradientNoise) -> None:
    noise = CorrelatedNoise(fresh, COEFFICIENTS)
    noise.release([torch.zeros(5)], 1.0, 3)
    with pytest.raises(ValueError, match="may have been drawn"):
        noise.release([torch.zeros(5)], 1.0, 3)


class OfShards:
    """The noise of a process that holds the rows ``held`` of every tensor, as of one cipher for all processes."""

    description, cryptographic = "known", False

    def __init__(self, held: slice, rows: int) -> None:
        self._held, self._rows, self._cipher = held, rows, CipherNoise(CPU, seed=1)

    def release(self, tensors: Iterable[torch.Tensor], stddev: float, step: int) -> None:
        begin = self._held.indices(self._rows)[0]
        parts = [Shard(values=each, tensor=i, offset=begin * each[0].numel()) for i, each in enumerate(tensors)]
        self._cipher.release_shards(parts, stddev, step)


@pytest.mark.parametrize("matrix", [None, BufferedMatrix(first=0.7, weights=(0.2, 0.1), decays=(0.9, 0.4))])
def test_shards_release_the_bits_of_the_whole(matrix: BufferedMatrix | None) -> None:
    """Also after a resume in another number of processes, which parts the saved noise anew."""

    def released(shards: list[slice], saved: Mapping[str, torch.Tensor], steps: range) -> tuple[Any, Any]:
        sums = torch.from_numpy(np.random.default_rng(3).normal(size=(STEPS, 2, 9, 5))).float()
        processes = [correlated(OfShards(held, 9), COEFFICIENTS, matrix) for held in shards]
        out, kept = [], []
        for held, noise in zip(shards, processes, strict=True):
            restore_noise(noise, saved, lambda _, each, held=held: each[held].clone())
            for step in steps:
                tensors = [each[held].clone() for each in sums[step]]
                noise.release(tensors, 2.0, step)
                out.append(tensors)
            kept.append(kept_noise(noise, lambda _, each: each))
        whole = {
            name: torch.cat([each[name] for each in kept]) if each.dim() > 1 else each for name, each in kept[0].items()
        }
        by_step = [out[i :: len(steps)] for i in range(len(steps))]
        return [[torch.cat(parts) for parts in zip(*each, strict=True)] for each in by_step], whole

    one, three = [slice(0, 9)], [slice(0, 3), slice(3, 6), slice(6, 9)]
    expected, _ = released(one, {}, range(STEPS))
    first, saved = released([slice(0, 5), slice(5, 9)], {}, range(4))
    assert saved
    then, _ = released(three, saved, range(4, STEPS))
    for mine, theirs in zip(expected, [*first, *then], strict=True):
        assert all(map(torch.equal, mine, theirs))
