"""Noise on gradients: its scale, its independence over steps, and that none of it is used twice."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from privctl.domain.errors import PrivctlError
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.deviates import FINE
from privctl.randomness.gridded import spacing
from privctl.train.gradient_noise import DeviceNoise, GradientNoise, KeyedNoise, deviates, noise_for

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


# The grid, and the device's own way to it.


@pytest.mark.parametrize("noise", SOURCES)
def test_every_entry_is_a_point_of_the_grid(noise: GradientNoise) -> None:
    tensors = [torch.randn(BLOCK + 7), torch.randn(30, 40), torch.randn(()), torch.empty(0)]
    noise.release(tensors, 0.3, 20)
    for tensor in tensors:
        assert torch.equal(tensor / spacing(0.3), (tensor / spacing(0.3)).round())
        assert not ((tensor == 0) & tensor.signbit()).any()


@pytest.mark.parametrize("noise", SOURCES)
def test_what_is_not_finite_stays_so(noise: GradientNoise) -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 0.0])
    noise.release([tensor], 1e-3, 21)
    assert tensor[0].isnan()
    assert tensor[1:4].tolist() == [math.inf, -math.inf, pytest.approx(3e38)]
    assert tensor[4].isfinite()


def test_a_device_computes_deviates_that_60_digits_confirm() -> None:
    ends = [0, 1, 5, (1 << 40) + 3, 1 << 52, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, (1 << 63) - (1 << 30)]
    spread = torch.empty(300, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(1)).tolist()
    first, second = ends + spread, spread[: len(ends)] + spread[::-1]
    followers = iter([1 << 60, 17, (1 << 62) + 1, 99, 5, 3] + [12345678901234567] * 1000)
    drawn: list[int] = []

    def more(count: int) -> torch.Tensor:
        drawn.extend(next(followers) for _ in range(count))
        return torch.tensor(drawn[-count:], dtype=torch.int64)

    found = deviates(torch.tensor(first + second), more).double().view(2, -1)
    few = [i for i, word in enumerate(first) if min(word, (1 << 63) - 1 - word) < 1 << 52]
    assert len(few) >= 6
    with mpmath.workdps(60):
        for i, (word, turn) in enumerate(zip(first, second, strict=True)):
            edge = min(word, (1 << 63) - 1 - word)
            number, bits = (edge << 63 | drawn[few.index(i)], 126) if i in few else (edge, 63)
            if word == 0:  # all bits that were drawn are zeros: the next ones are asked for one by one
                number, bits = drawn[len(few)], 126
            share = (mpmath.mpf(number) + 0.5) / mpmath.mpf(2) ** bits
            log = mpmath.log(share) if word < 1 << 62 else mpmath.log1p(-share)
            radius, angle = mpmath.sqrt(-2 * log), mpmath.pi * (turn - 2**62) / mpmath.mpf(2) ** 62
            for value, exact in zip(found[:, i].tolist(), (mpmath.cos(angle), mpmath.sin(angle)), strict=True):
                assert abs(value - radius * exact) <= FINE * radius, (word, turn)


def test_a_device_whose_functions_are_coarse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cos = torch.cos
    monkeypatch.setattr(torch, "cos", lambda values: cos(values).float().double())
    with pytest.raises(PrivctlError, match="less accurate than noise needs"):
        DeviceNoise(torch.device("cpu"))
