"""A measurement is a sampled Gaussian: by example, clipped, summed, noised afresh; and faults that would break it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privctl.randomness import NoiseSource
from privctl.train.clipping.factors import ROUNDING_MARGIN
from privctl.train.methods.dpquant import sensitivity as module
from privctl.train.methods.dpquant.sensitivity import PLACES, clipped
from privctl.train.quantized import rounding
from privctl.train.steps.sampling import PoissonBatches
from tests.train.methods.dpquant.support import NAMES, Blobs, network, public_sensitivity, sensitivity

pytestmark = pytest.mark.usefixtures("one_thread")


def test_differences_are_those_of_one_layer_alone() -> None:
    net, task = network(), Blobs(5)
    measurement = sensitivity(net, task)
    found = measurement.differences(range(5), 7)
    assert found.shape == (5, len(NAMES))
    assert (found.abs() > 1e-6).all()
    # With one layer to measure, the others are left alone.
    alone = replace(measurement, names=("2",)).differences(range(5), 7)
    assert torch.equal(alone[:, 0], found[:, 1])
    # Nothing was trained, and nothing stays quantized.
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(net[0].weight, network()[0].weight)


def worst_coupling() -> float:
    """How much an example's differences move when others leave its batch."""
    task = Blobs(9)
    measurement = sensitivity(network(), task)
    whole = measurement.differences(range(9), 3)
    return max(
        float((measurement.differences(some, 3) - whole[list(some)]).abs().max())
        for some in ([4], [0, 8], [8, 0, 3], list(range(1, 9)))
    )


def test_an_example_is_measured_the_same_whatever_is_beside_it() -> None:
    assert worst_coupling() < 1e-12


def test_a_scale_for_the_whole_batch_would_couple_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As LUQ has it, and so what DPQuant measures and trains with as published."""

    def of_all(values: Tensor) -> Tensor:
        return values.abs().max().expand(len(values), 1).contiguous()

    from privctl.train.quantized import floating

    assert floating.largest is rounding.largest
    monkeypatch.setattr(floating, "largest", of_all)
    assert worst_coupling() > 1e-3


def test_words_by_row_would_couple_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blobs, "keys", lambda _, examples: list(range(len(examples))))
    assert worst_coupling() > 1e-3


def moved_by_one(norm: float) -> float:
    """The most that one example's leaving moves a release without noise, as a sum, in clip norms."""
    task = Blobs(12)
    measurement = sensitivity(network(), task, clip_norm=norm, size=1.0, noise_multiplier=1e-300)
    whole = measurement.release(0)
    most = 0.0
    for gone in range(12):
        left = np.delete(np.arange(12), gone)
        other = replace(measurement, batches=Fixed(left))
        most = max(most, float(np.linalg.norm(whole - other.release(0))))
    return most


class Fixed:
    """Batches that are always the same."""

    kind: Any = None

    def __init__(self, examples: np.ndarray) -> None:
        self.examples = examples

    def batch(self, step: int) -> np.ndarray:
        return self.examples


def test_one_example_moves_the_sum_by_the_clip_norm_at_most() -> None:
    assert 0.99 < moved_by_one(0.01) <= 1 - ROUNDING_MARGIN / 2  # and the bound is met, less what is left for rounding


def test_without_clipping_it_would_move_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "clipped", lambda rows, norm: rows)
    assert moved_by_one(0.01) > 1.5


def test_clipping_the_mean_would_move_twice_as_much() -> None:
    """The published way: the vector of a batch is clipped, and one example may turn it around."""

    def turned(examples: Sequence[int]) -> Tensor:
        row = torch.tensor([[1.0, 0.0, 0.0]]) if len(examples) > 1 else torch.tensor([[-1.0, 0.0, 0.0]])
        return row.double()

    both, one = (clipped(turned(batch), 0.01)[0] / 0.01 for batch in ([0, 1], [0]))
    assert float((both - one).norm()) == 2
    rows = torch.cat([turned([0, 1]), turned([0])])
    summed = clipped(rows, 0.01).sum(0) - clipped(rows[:1], 0.01).sum(0)
    assert float(summed.norm()) <= 0.01 * (1 + 1e-12)


def test_rows_are_clipped_in_their_direction() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0], [3e300, -4e300], [math.nan, 1.0], [math.inf, 1.0]])
    rows = rows.double()
    rows[3] = torch.tensor([3e300, -4e300], dtype=torch.float64)
    found = clipped(rows, 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.03, 0.04], [0, 0], [0.6, -0.8], [0, 0], [0, 0]], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-12)


def releases(multiplier: float, count: int = 700) -> np.ndarray:
    measurement = sensitivity(
        network(), Blobs(4), batches=PoissonBatches(4, 0.0, NoiseSource(1)), noise_multiplier=multiplier, size=8.0
    )
    return np.stack([measurement.release(i) for i in range(count)])


def test_noise_has_the_stated_scale_and_half_of_it_would_not() -> None:
    """An empty subsample is one like others; the mean is by the expected size, in clip norms."""
    found, stated = releases(1.5), 1.5 / 8
    error = stated / math.sqrt(2 * found.size)
    assert abs(found.std() - stated) < 5 * error
    assert abs(found.mean()) < 5 * stated / math.sqrt(found.size)
    assert abs(releases(0.75).std() - stated) > 20 * error


def test_every_release_has_noise_of_its_own_and_two_processes_share_none() -> None:
    found = releases(1.0, 200)
    assert len(np.unique(found, axis=0)) == len(found)
    assert abs((found[1:] * found[:-1]).mean()) < 6 / 64 / math.sqrt(found[1:].size)
    # A run that goes on elsewhere has another key: the same number is other noise.
    fresh = [sensitivity(network(), Blobs(4), noise=NoiseSource(), noise_multiplier=1.0).release(0) for _ in "ab"]
    assert not np.array_equal(fresh[0], fresh[1])


def test_a_subsample_is_drawn_anew_each_time_with_the_stated_rate() -> None:
    batches = PoissonBatches(1000, 0.05, NoiseSource(3))
    sizes = [len(batches.batch(number)) for number in range(200)]
    assert abs(np.mean(sizes) - 50) < 5 * math.sqrt(50 * 0.95 / 200)
    measurement = sensitivity(network(), Blobs(40), batches=PoissonBatches(40, 0.5, NoiseSource(3)), size=20.0)
    found = [measurement.release(number) for number in range(4)]
    assert len({tuple(one) for one in found}) == 4


def test_draws_of_a_measurement_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    task = Blobs(4)
    measurement = sensitivity(network(), task)
    monkeypatch.setattr(measurement.layers.__class__, "begin", lambda self, step: places.append(step))
    monkeypatch.setattr(measurement.layers.__class__, "active", lambda self, keys: pytest.MonkeyPatch.context())
    measurement.release(5)
    assert set(places) == {PLACES + 5}


def test_micro_batches_do_not_matter_and_a_spoiled_example_counts_as_zero() -> None:
    task = Blobs(10)
    whole = sensitivity(network(), task).release(0)
    cut = sensitivity(network(), task, micro_examples=3).release(0)
    assert whole == pytest.approx(cut, abs=1e-9)
    task.rows[3] = math.nan
    spoiled = sensitivity(network(), task).release(0)
    assert np.isfinite(spoiled).all()
    without = sensitivity(network(), task, batches=Fixed(np.delete(np.arange(10), 3))).release(0)
    assert spoiled == pytest.approx(without, abs=1e-9)


def test_public_records_are_measured_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    net, task = network(), Blobs(9)
    whole = public_sensitivity(net, task)
    expected = sensitivity(net, task).differences(range(9), PLACES + 4)
    np.testing.assert_allclose(whole.measure(4), expected.mean(0).numpy() / 0.01, rtol=1e-12)
    assert not np.allclose(whole.measure(5), whole.measure(4), rtol=1e-6), "each measurement rounds anew"
    assert expected.norm(dim=1).max() > 0.01, "what noise would need clipped is not"
    np.testing.assert_allclose(public_sensitivity(net, task, 2).measure(4), whole.measure(4), rtol=1e-12)
    # Nothing stays quantized, and of many records only the first are used.
    batch = task.batch(range(9), whole.device, 0)
    assert torch.equal(task.losses(net, batch), task.losses(network(), batch))
    monkeypatch.setattr(module, "MOST_PUBLIC", 3)
    np.testing.assert_allclose(whole.measure(4), expected[:3].mean(0).numpy() / 0.01, rtol=1e-12)
