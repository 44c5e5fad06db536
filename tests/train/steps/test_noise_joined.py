"""Small tensors share a launch of noise: each still gets the bits of its own stream, and no bit is drawn twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from privctl.randomness.device import tensor_engine
from privctl.randomness.device.engine import LANES, TILE
from privctl.randomness.device.tensor_engine import TensorEngine
from privctl.train.steps import gradient_noise
from privctl.train.steps.gradient_noise import CipherNoise, Shard
from tests.launches import Launches

CPU = torch.device("cpu")
SIZES = (1, 2 * TILE, 0, 700, TILE + 1, 33)
KINDS = (torch.float32, torch.bfloat16, torch.float64)


def tensors() -> list[Tensor]:
    """Of all sizes in every type, in turns."""
    return [torch.full((size,), 0.25, dtype=kind) for size in SIZES for kind in KINDS]


def test_the_bits_are_those_of_a_launch_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone, cut = tensors(), tensors(), tensors()
    CipherNoise(CPU, seed=3).release(together, 0.7, 4)
    monkeypatch.setattr(gradient_noise, "_BUFFER", 2 * TILE)  # several buffers of each type
    CipherNoise(CPU, seed=3).release(cut, 0.7, 4)
    monkeypatch.setattr(gradient_noise, "_SHARED_BELOW", 0)
    CipherNoise(CPU, seed=3).release(alone, 0.7, 4)
    for one, other, several in zip(together, alone, cut, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(several, other)
        assert not len(one) or bool((one != 0.25).any())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int, int, int]]:
    """(Key, step, nonce, counter) of each block of the keystream that is drawn."""
    blocks: list[tuple[bytes, int, int, int]] = []
    keystream = tensor_engine._keystream

    def noted(key: Tensor, step: int, nonce: Any, numbers: Tensor) -> Tensor:
        nonces = torch.as_tensor(nonce).expand(len(numbers)).tolist()
        drawn = zip(nonces, numbers.tolist(), strict=True)
        blocks.extend((key.numpy().tobytes(), step, word, number) for word, number in drawn)
        return keystream(key, step, nonce, numbers)

    monkeypatch.setattr(tensor_engine, "_keystream", noted)
    return blocks


def _steps(seeds: tuple[int, ...], shards: list[list[Shard]]) -> None:
    for seed, held in zip(seeds, shards, strict=True):
        noise = CipherNoise(CPU, seed=seed)
        for step in range(2):
            noise.release_shards(held, 1.0, step)


def _held(offset: int = 0, large: int = 3 * TILE) -> list[Shard]:
    """Small tensors that are joined, between large ones that are not."""
    sizes = (5, large, TILE, 40, large)
    return [Shard(values=torch.zeros(size), tensor=i, offset=offset) for i, size in enumerate(sizes)]


def _leading(blocks: list[tuple[bytes, int, int, int]]) -> list[tuple[bytes, int, int, int]]:
    return [block for block in blocks if block[2] >> 24 == 0]


def test_no_block_is_drawn_twice_over_steps_tensors_and_processes(
    asked: list[tuple[bytes, int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes with a key each, which hold the same places, or one key and other elements."""
    monkeypatch.setattr(gradient_noise, "_SHARED_BELOW", 2 * TILE)
    _steps((1, 2), [_held(), _held()])
    _steps((3, 3), [_held(), _held(offset=3 * TILE)])
    leading = _leading(asked)
    assert len(leading) == len(set(leading)) == 4 * 2 * (3 * 1 + 2 * 3) * LANES


def test_the_check_sees_a_stream_of_a_buffers_own_place(
    asked: list[tuple[bytes, int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a buffer were a tensor of its own, numbered by its place: two processes would draw the same."""
    release = TensorEngine.release_joined

    def by_place(self: TensorEngine, flat: Tensor, key: Tensor, step: int, tiles: Tensor, stddev: float) -> None:
        tiles = tiles.clone()
        tiles[:, 0], tiles[:, 1] = 0, torch.arange(len(tiles))
        release(self, flat, key, step, tiles, stddev)

    monkeypatch.setattr(TensorEngine, "release_joined", by_place)
    _steps((3, 3), [_held(large=2 * TILE), _held(offset=3 * TILE, large=2 * TILE)])
    leading = _leading(asked)
    assert len(set(leading)) < len(leading)


class Counted(TensorEngine):
    """Counts launches, as Triton would make them."""

    launches = 0

    def release(self, *arguments: Any) -> None:
        self.launches += 1
        super().release(*arguments)

    def release_joined(self, *arguments: Any) -> None:
        self.launches += 1
        super().release_joined(*arguments)


def test_many_small_tensors_take_few_launches_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_noise, "_SHARED_BELOW", 2 * TILE)
    noise = CipherNoise(CPU, seed=1)
    noise._engine = engine = Counted()
    tensors = [torch.zeros(50 + i) for i in range(40)] + [torch.zeros(2 * TILE)]
    noise.release(tensors, 1.0, 0)
    assert engine.launches == 2
    with Launches() as counted:
        noise.release(tensors, 1.0, 1)
    assert engine.launches == 4
    assert not counted.syncs
    assert len(noise._tiles) == 1  # which is sent to the device once


def test_buffers_hold_every_shard_once_and_no_more_than_they_may() -> None:
    sizes = [*range(1, 400, 7), 1 << 17, (1 << 17) - 1, 0] * 40
    shards = [Shard(values=torch.empty(size, dtype=kind), tensor=i) for i, (size, kind) in enumerate(_pairs(sizes))]
    packs = list(gradient_noise._packs(shards))
    assert sorted(itertools.chain(*packs)) == [i for i, shard in enumerate(shards) if shard.values.numel()]
    for pack in packs:
        assert len({shards[i].values.dtype for i in pack}) == 1
        small = [shards[i].values.numel() for i in pack]
        assert len(small) == 1 or (sum(small) <= 1 << 22 and max(small) < 1 << 17)
    assert 40 < len(packs) <= 40 + 4  # those too large, and two buffers of each type at most


def _pairs(sizes: list[int]) -> Iterator[tuple[int, torch.dtype]]:
    return zip(sizes, itertools.cycle((torch.float32, torch.float64)))
