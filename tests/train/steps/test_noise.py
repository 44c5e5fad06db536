"""Noise on gradients: its scale, its independence over steps, and that none of it is used twice."""

from __future__ import annotations

import copy
import math
import pickle
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from privctl.domain.errors import PrivctlError
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.device.engine import TILE
from privctl.randomness.gridded import spacing
from privctl.train.steps import gradient_noise
from privctl.train.steps.gradient_noise import CipherNoise, GradientNoise, KeyedNoise, Shard, noise_for

CPU = torch.device("cpu")
SOURCES = [lambda: KeyedNoise(NoiseSource(1)), lambda: CipherNoise(CPU, seed=1)]


def drawn(noise: GradientNoise, stddev: float, step: int, sizes: tuple[int, ...] = (BLOCK + 5, 1000)) -> torch.Tensor:
    tensors = [torch.zeros(size) for size in sizes]
    noise.release(tensors, stddev, step)
    return torch.cat([t.reshape(-1) for t in tensors])


def deviation_error(values: torch.Tensor, stddev: float) -> float:
    """How far the sample's deviation is from ``stddev``, in standard errors."""
    return float((values.double().std() / stddev - 1) * math.sqrt(2 * len(values)))


@pytest.fixture(params=SOURCES, ids=["on the processor", "on the device"])
def noise(request: pytest.FixtureRequest) -> GradientNoise:
    return request.param()  # type: ignore[no-any-return]


def test_the_scale_is_right_and_half_of_it_is_noticed(noise: GradientNoise) -> None:
    values = drawn(noise, 2.5, 3)
    assert abs(deviation_error(values, 2.5)) < 5
    assert abs(deviation_error(values, 5.0)) > 100
    assert abs(float(values.double().mean())) < 5 * 2.5 / math.sqrt(len(values))


def test_steps_tensors_and_blocks_are_independent(noise: GradientNoise) -> None:
    first, second = drawn(noise, 1.0, 10), drawn(noise, 1.0, 11)
    for a, b in ((first, second), (first[:5], first[BLOCK : BLOCK + 5]), (first[-1000:], first[:1000])):
        assert not torch.equal(a, b)
    correlation = float((first.double() * second.double()).mean())
    assert abs(correlation) < 5 / math.sqrt(len(first))


def test_small_tensors_are_drawn_together_and_keep_their_places() -> None:
    """As one tensor of them in their order; what is larger than half a block, or of another type, is drawn alone."""
    sizes = [(3, 5), (7,), (BLOCK // 2 + 1,), (40,), (6,)]
    kinds = [torch.float32] * 4 + [torch.float64]
    tensors = [torch.arange(math.prod(s), dtype=k).view(s) for s, k in zip(sizes, kinds, strict=True)]
    small, large, other = tensors[:2] + tensors[3:4], tensors[2], tensors[4]
    expected = [large.clone(), torch.cat([t.flatten() for t in small]), other.clone()]
    KeyedNoise(NoiseSource(1)).release(tensors, 1.0, 0)
    source = NoiseSource(1)
    for block, values in enumerate(expected):
        source.release(0, block, values.numpy(), 1.0)
    found = [large, torch.cat([t.flatten() for t in small]), other]
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(tensors[0].flatten()[:7], tensors[1])


def test_it_is_added_to_what_is_there() -> None:
    tensor = torch.full((10_000, 7), 3.0)
    KeyedNoise(NoiseSource(1)).release([tensor], 1.0, 0)
    assert float(tensor.mean()) == pytest.approx(3.0, abs=0.03)


@pytest.mark.parametrize("make", [lambda: noise_for(CPU), lambda: CipherNoise(CPU)])
def test_a_key_from_the_system_is_never_the_same(make: Callable[[], GradientNoise]) -> None:
    assert not torch.equal(*(drawn(make(), 1.0, 0, (1000,)) for _ in range(2)))
    assert "under a key from the operating system" in make().description
    assert make().cryptographic


@pytest.mark.parametrize("make", [lambda: noise_for(CPU, seed=1), lambda: CipherNoise(CPU, seed=1)])
def test_a_seed_is_no_secret(make: Callable[[], GradientNoise]) -> None:
    assert "given seed" in make().description
    assert not make().cryptographic


def test_off_the_processor_noise_is_a_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def refusing(device: torch.device) -> None:
        asked.append(device)
        raise PrivctlError("failed its test")

    monkeypatch.setattr(gradient_noise, "engine_for", refusing)
    for device in ("meta", "cuda:1", "xpu"):
        with pytest.raises(PrivctlError, match="failed its test"):
            noise_for(torch.device(device))
    assert [str(device) for device in asked] == ["meta", "cuda:1", "xpu"]


# None of it is drawn twice.


def test_no_step_is_drawn_twice_or_later_than_the_next(noise: GradientNoise) -> None:
    drawn(noise, 1.0, 4, (8,))
    for step in (4, 3, 0):
        values = torch.zeros(8)
        with pytest.raises(ValueError, match="the next step is 5"):
            noise.release([values], 1.0, step)
        assert not values.any()
    drawn(noise, 1.0, 7, (8,))


def test_a_resumed_run_has_another_key() -> None:
    """Whatever step it begins with; a process draws what another drew only where it was handed the key."""
    values = [torch.zeros(500) for _ in range(3)]
    for value in values[:2]:
        CipherNoise(CPU).release([value], 1.0, 6)
    key = bytes(range(32))
    CipherNoise(CPU, key=key).release([values[2]], 1.0, 6)
    assert len({tuple(value.tolist()) for value in values}) == 3
    assert torch.equal(values[2], drawn(CipherNoise(CPU, key=key), 1.0, 6, (500,)))


def test_shards_of_processes_join_to_what_one_would_draw() -> None:
    """Two processes under one key hold rows of a matrix and parts of a vector."""
    sizes, cut = ((40, 70), (3 * TILE,)), 13
    whole = [torch.full(size, 0.25) for size in sizes]
    CipherNoise(CPU, seed=5).release(whole, 0.7, 2)
    matrix, vector = (torch.full(size, 0.25) for size in sizes)
    first = [Shard(values=matrix[:cut], tensor=0), Shard(values=vector[:1001], tensor=1)]
    second = [Shard(values=matrix[cut:], tensor=0, offset=cut * 70), Shard(values=vector[1001:], tensor=1, offset=1001)]
    for shards in (first, second):
        CipherNoise(CPU, seed=5).release_shards(shards, 0.7, 2)
    assert torch.equal(matrix, whole[0])
    assert torch.equal(vector, whole[1])
    wrong = torch.full(sizes[0], 0.25)[cut:]
    CipherNoise(CPU, seed=5).release_shards([Shard(values=wrong, tensor=0)], 0.7, 2)
    assert torch.equal(wrong, whole[0][: 40 - cut])  # without its offset a shard has another's noise


def test_shards_that_overlap_are_refused() -> None:
    flat = torch.zeros(20)
    shards = [Shard(values=flat[8:], tensor=3, offset=8), Shard(values=flat[:9], tensor=3)]
    with pytest.raises(ValueError, match="share element 8"):
        CipherNoise(CPU).release_shards(shards, 1.0, 0)
    assert not flat.any()


def test_secret_noise_is_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor sent"):
            copied(CipherNoise(CPU))


def test_noise_that_floats_do_not_hold_is_refused() -> None:
    for stddev in (0.0, 1e-300, math.inf, math.nan):
        with pytest.raises(PrivctlError, match="out of range"):
            CipherNoise(CPU).release([torch.zeros(4)], stddev, 0)


# The grid.


def test_every_entry_is_a_point_of_the_grid(noise: GradientNoise) -> None:
    tensors = [torch.randn(BLOCK + 7), torch.randn(30, 40), torch.randn(()), torch.empty(0)]
    noise.release(tensors, 0.3, 20)
    for tensor in tensors:
        assert torch.equal(tensor / spacing(0.3), (tensor / spacing(0.3)).round())
        assert not ((tensor == 0) & tensor.signbit()).any()


def test_what_is_not_finite_stays_so(noise: GradientNoise) -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 0.0])
    noise.release([tensor], 1e-3, 21)
    assert tensor[0].isnan()
    assert tensor[1:4].tolist() == [math.inf, -math.inf, pytest.approx(3e38)]
    assert tensor[4].isfinite()


def test_working_memory_is_let_go_of_after_a_step() -> None:
    noise, tensor = KeyedNoise(NoiseSource(1)), torch.zeros(BLOCK)
    noise.release([tensor], 1.0, 0)  # what is made once
    tracemalloc.start()
    try:
        noise.release([tensor], 1.0, 1)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 17 < 1 << 20 < most
