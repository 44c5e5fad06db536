"""Correlated noise: its covariance, what is kept of it, and what happens where some of it is lost."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from privctl.accounting.banded import banded_coefficients
from privctl.domain.errors import InputError
from privctl.randomness import NoiseSource
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.correlated_noise import CorrelatedNoise
from privctl.train.steps.gradient_noise import CipherNoise, GradientNoise, KeyedNoise
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.step_noise import correlated

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
        released.append(np.concatenate([each.numpy() for each in tensors]))
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
    seen = matrix(COEFFICIENTS) @ (rows(CorrelatedNoise(fresh, COEFFICIENTS), sums) - sums.astype(np.float32))
    assert farthest(seen, 4.0 * np.eye(STEPS)) < 5


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
    assert all(each.stat().st_mode & 0o077 == 0 for each in (tmp_path / "run").iterdir())
    _, found = RunFolder.resume(tmp_path / "run", {})
    assert found is not None
    second = CorrelatedNoise(KeyedNoise(NoiseSource(2)), COEFFICIENTS)
    second.restore(found.tensors)
    after = []
    for step in range(4, STEPS):
        tensors = [torch.zeros(1000), torch.zeros(NUMBERS - 1000)]
        second.release(tensors, 2.0, step)
        after.append(np.concatenate([each.numpy() for each in tensors]))
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
