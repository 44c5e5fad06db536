"""Noise by buffers: its covariance, what is kept of it, and what happens where some of it is lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from privctl.domain.errors import InputError
from privctl.randomness import NoiseSource
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.buffered_noise import BufferedNoise
from privctl.train.steps.gradient_noise import CipherNoise, GradientNoise, KeyedNoise
from privctl.train.steps.sampling import FixedOrder
from privctl.train.steps.saved_state import SavedState
from privctl.train.steps.step_noise import correlated
from tests.accounting.test_buffered import MATRIX, dense
from tests.train.steps.test_correlated_noise import farthest, rows

STEPS, NUMBERS = 7, 20_000
#: Any two others do as well: a search for the best ones takes time in every process that collects tests.
OTHERS = (replace(MATRIX, weights=(0.3, 0.1)), replace(MATRIX, weights=(0.2,), decays=(0.9,)))
SOURCES = [lambda: KeyedNoise(NoiseSource(1)), lambda: CipherNoise(torch.device("cpu"), seed=1)]


@pytest.fixture(params=SOURCES, ids=["on the processor", "on the device"])
def fresh(request: pytest.FixtureRequest) -> GradientNoise:
    return request.param()  # type: ignore[no-any-return]


def test_its_covariance_is_that_of_the_inverse_matrix_and_half_the_noise_is_noticed(fresh: GradientNoise) -> None:
    inverse = np.linalg.inv(dense(MATRIX, STEPS))
    sums = np.random.default_rng(3).normal(size=(STEPS, NUMBERS)) * 30
    found = rows(correlated(fresh, None, MATRIX), sums) - sums.astype(np.float32)
    assert farthest(found, 4.0 * inverse @ inverse.T) < 5
    assert farthest(found, 1.0 * inverse @ inverse.T) > 50
    assert farthest(found, 4.0 * np.eye(STEPS)) > 50  # as if each step had noise of its own


def test_a_run_that_was_saved_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    first = BufferedNoise(KeyedNoise(NoiseSource(1)), MATRIX)
    before = rows(first, np.zeros((4, NUMBERS)))
    with RunFolder.begin(tmp_path / "run", {}) as folder:
        folder.save(SavedState(updates=4, steps_begun=4, tensors=first.tensors()))
    _, found = RunFolder.resume(tmp_path / "run", {})
    assert found is not None
    second = BufferedNoise(KeyedNoise(NoiseSource(2)), MATRIX)
    second.restore(found.tensors)
    after = []
    for step in range(4, STEPS):
        tensors = [torch.zeros(1000), torch.zeros(NUMBERS - 1000)]
        second.release(tensors, 2.0, step)
        after.append(np.concatenate([tensor.numpy() for tensor in tensors]))
    inverse = np.linalg.inv(dense(MATRIX, STEPS))
    assert farthest(np.vstack([before, after]), 4.0 * inverse @ inverse.T) < 5


def test_noise_of_lost_steps_counts_as_none(fresh: GradientNoise) -> None:
    """Steps 2 and 3 began and were lost: later rows have nothing in their columns, and keep the others."""
    noise, found = BufferedNoise(fresh, MATRIX), []
    for step in (0, 1, 4, 5, 6):
        tensors = [torch.zeros(NUMBERS)]
        noise.release(tensors, 2.0, step)
        found.append(tensors[0].double().numpy())
    left = np.delete(np.delete(dense(MATRIX, STEPS), (2, 3), 0), (2, 3), 1)
    inverse = np.linalg.inv(left)
    assert farthest(np.array(found), 4.0 * inverse @ inverse.T) < 5


def test_it_keeps_as_many_buffers_as_the_matrix_has_however_many_steps_there_were() -> None:
    noise = BufferedNoise(KeyedNoise(NoiseSource(1)), MATRIX)
    for step in range(20):
        noise.release([torch.zeros(5), torch.zeros(3)], 1.0, step)
    held = [each for each in noise.tensors().values() if each.dim() == 1 and len(each) in (5, 3)]
    assert sum(each.numel() for each in held) == 2 * (5 + 3) + 5  # and the five numbers of the matrix


@pytest.mark.parametrize("other", [*OTHERS, None])
def test_noise_that_was_correlated_otherwise_is_refused(other: object) -> None:
    noise = BufferedNoise(KeyedNoise(NoiseSource(1)), MATRIX)
    noise.release([torch.zeros(5)], 1.0, 0)
    saved = correlated(KeyedNoise(NoiseSource(1)), (0.8, 0.6) if other is None else None, other)  # type: ignore[arg-type]
    saved.release([torch.zeros(5)], 1.0, 0)
    with pytest.raises(InputError, match="resume with the settings"):
        noise.restore(saved.tensors())  # type: ignore[attr-defined]


def test_every_pass_has_every_record_once_and_in_the_same_step() -> None:
    source = FixedOrder(23, 4, 7)
    batches = [source.batch(step).tolist() for step in range(12)]
    assert sorted(chain(*batches[:4])) == list(range(23))
    assert batches[:4] == batches[4:8] == batches[8:]
    assert {len(batch) for batch in batches} == {5, 6}
    assert batches[:4] != [FixedOrder(23, 4, 8).batch(step).tolist() for step in range(4)]
