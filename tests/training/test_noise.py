"""Noise on gradients: its scale, its independence over steps, and that none of it is used twice."""

from __future__ import annotations

import math

import pytest
import torch

from privctl.randomness import BLOCK, NoiseSource
from privctl.training.noise import DeviceNoise, GradientNoise, KeyedNoise, noise_for

SOURCES = [KeyedNoise(NoiseSource(1)), DeviceNoise(torch.device("cpu"), seed=1)]


def drawn(noise: GradientNoise, stddev: float, step: int, sizes: tuple[int, ...] = (BLOCK + 5, 1000)) -> torch.Tensor:
    tensors = [torch.zeros(size) for size in sizes]
    noise.release(tensors, stddev, step)
    return torch.cat([t.reshape(-1) for t in tensors])


def off(values: torch.Tensor, stddev: float) -> float:
    """How far the sample's deviation is from ``stddev``, in standard errors."""
    return float((values.double().std() / stddev - 1) * math.sqrt(2 * len(values)))


@pytest.mark.parametrize("noise", SOURCES)
def test_the_scale_is_right_and_half_of_it_is_noticed(noise: GradientNoise) -> None:
    values = drawn(noise, 2.5, 3)
    assert abs(off(values, 2.5)) < 5
    assert abs(off(values, 5.0)) > 100
    assert abs(float(values.double().mean())) < 5 * 2.5 / math.sqrt(len(values))


@pytest.mark.parametrize("noise", SOURCES)
def test_steps_tensors_and_blocks_are_independent(noise: GradientNoise) -> None:
    first, second = drawn(noise, 1.0, 10), drawn(noise, 1.0, 11)
    for a, b in ((first, second), (first[:5], first[BLOCK : BLOCK + 5]), (first[-1000:], first[:1000])):
        assert not torch.equal(a, b)
    correlation = float((first.double() * second.double()).mean())
    assert abs(correlation) < 5 / math.sqrt(len(first))


def test_it_is_added_to_what_is_there() -> None:
    tensor = torch.full((10_000, 7), 3.0)
    KeyedNoise(NoiseSource(1)).release([tensor], 1.0, 0)
    assert float(tensor.mean()) == pytest.approx(3.0, abs=0.03)


def test_a_key_from_the_system_is_never_the_same() -> None:
    assert not torch.equal(*(drawn(noise_for(torch.device("cpu")), 1.0, 0) for _ in range(2)))
    assert "operating system" in noise_for(torch.device("cpu")).description
    assert "given seed" in noise_for(torch.device("cpu"), seed=1).description
