"""ChaCha20 in tensor operations: its keystream, its deviates, where each lies, and the test that finds it faulty."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from privctl.domain.errors import PrivctlError
from privctl.randomness.deviates import FINE
from privctl.randomness.device import Place, engine_for, tensor_engine
from privctl.randomness.device.engine import ENOUGH, FOLLOWING, LANES, MOST_STEPS, MOST_TENSORS, TILE
from privctl.randomness.device.selftest import exact_pair, require_sound
from privctl.randomness.device.tensor_engine import TensorEngine, key_words
from privctl.randomness.gridded import spacing
from tests.launches import Launches

CPU = torch.device("cpu")
KEY = bytes(range(32))

#: RFC 8439, A.1, vectors 2 to 5: key, counter, last word of the nonce, keystream.
RFC = {
    "second block": (
        bytes(32), 1, 0,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "last bit of the key": (
        bytes(31) + b"\x01", 1, 0,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "first bits of the key": (
        b"\x00\xff" + bytes(30), 2, 0,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "nonce": (
        bytes(32), 0, 2,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RFC)
def test_the_keystream_is_that_of_the_rfc(name: str) -> None:
    key, counter, last, block = RFC[name]
    found = TensorEngine().words(key_words(key, CPU), Place(step=0, tensor=0), counter, 1, lane=last)
    assert found.numpy().tobytes().hex() == block


def test_the_keystream_is_openssls_across_the_counters_first_word() -> None:
    key, step, tensor, lane, high = os.urandom(32), 0x1234567, 0xABCDEF, 2, 5
    last = (lane << 24 | tensor).to_bytes(4, "little")

    def openssl(first: int, high: int, count: int) -> bytes:
        nonce = first.to_bytes(4, "little") + high.to_bytes(4, "little") + step.to_bytes(4, "little") + last
        return Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64 * count))

    place = Place(step=step, tensor=tensor)
    found = TensorEngine().words(key_words(key, CPU), place, (high << 32) - 700, 1500, lane)
    assert found.numpy().tobytes() == openssl(2**32 - 700, high - 1, 700) + openssl(0, high, 800)


def test_places_that_would_share_a_stream_are_refused() -> None:
    for step, tensor in ((MOST_STEPS, 0), (-1, 0), (0, MOST_TENSORS), (0, -1)):
        with pytest.raises(ValueError, match="no place in the keystream"):
            Place(step=step, tensor=tensor)


def deviates(of: list[tuple[int, ...]]) -> torch.Tensor:
    """The pairs (n, 2) of 12 words each: those of the leading lane, and of the two that follow."""
    words = torch.tensor(of, dtype=torch.int64)
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()

    def follow(blocks: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        assert not pairs.any()  # there is one a block
        return signed[blocks, 4:].view(-1, FOLLOWING, 4).permute(1, 2, 0)

    return tensor_engine.deviates(signed[:, :4].T[None], follow)[0].T


def test_deviates_are_those_that_60_digits_confirm() -> None:
    drawn = np.random.default_rng(1).integers(0, 1 << 32, (300, 12))
    drawn[:40, 1] &= 0x800001FF  # few leading bits that count, at either edge
    drawn[:20, 0] = drawn[:20, 1] = 0  # none
    drawn[10:20, 4:6] = 0
    drawn[20:25, :2] = (0xFFFFFFFF, 0x7FFFFFFF)  # in the middle, from below
    drawn[25:30, :2] = (0xFFFFFFFF, 0xFFFFFFFF)  # and from above
    drawn[30:40, 1] |= 0x80000000
    drawn[35:40, 2:4] = [[0, 0], [0, 1 << 31], [0, 1 << 30], [0xFFFFFFFF, 0x7FFFFFFF], [1, 0]]
    words = [tuple(map(int, row)) for row in drawn]
    with mpmath.workdps(60):
        for row, found in zip(words, deviates(words).tolist(), strict=True):
            number, bits = (row[1] & 0x7FFFFFFF) << 32 | row[0], 64
            for lane in (4, 8):
                if number < 1 << ENOUGH:
                    for high, low in ((row[lane + 1], row[lane]), (row[lane + 3], row[lane + 2])):
                        number, bits = number << 64 | high << 32 | low, bits + 64
            share = (mpmath.mpf(number) + 0.5) / mpmath.mpf(2) ** bits
            radius = mpmath.sqrt(-2 * (mpmath.log1p(-share) if row[1] >> 31 else mpmath.log(share)))
            turn = (row[3] << 32 | row[2]) - (row[3] >> 31 << 64)
            angle = mpmath.pi * turn / mpmath.mpf(2) ** 63
            for value, own, exact in zip(found, exact_pair(row), (mpmath.cos(angle), mpmath.sin(angle)), strict=True):
                assert abs(value - radius * exact) <= FINE / 2 * radius, row
                assert abs(own - radius * exact) <= FINE / 4 * radius, row


# What is released.


def released(size: int, step: int = 0, offset: int = 0, stddev: float = 1.0, tensor: int = 0) -> torch.Tensor:
    flat = torch.zeros(size)
    TensorEngine().release(flat, key_words(KEY, CPU), Place(step=step, tensor=tensor), offset, stddev)
    return flat


def test_it_is_normal_and_half_of_it_is_not() -> None:
    """Of a fixed key: Kolmogorov and Smirnov's test, and counts in the tails and between by chi square."""
    edges = np.array([-np.inf, -4, -3.5, -3, -2, -1, 0, 1, 2, 3, 3.5, 4, np.inf])

    def p_values(values: np.ndarray) -> tuple[float, float]:
        counts, expected = np.histogram(values, edges)[0], len(values) * np.diff(stats.norm.cdf(edges))
        return stats.kstest(values, "norm").pvalue, stats.chisquare(counts, expected).pvalue

    # As drawn, not rounded: a grid of 32 steps a deviation is seen by so many numbers.
    drawn = TensorEngine().deviates(key_words(KEY, CPU), Place(step=3, tensor=1), 1 << 8).numpy()
    assert min(p_values(drawn)) > 0.01
    assert max(p_values(drawn / 2)) < 1e-100
    clipped = np.where(np.abs(drawn) > 3.5, np.sign(drawn) * 3.2, drawn)  # no tails: the counts alone see it
    assert p_values(clipped)[1] < 1e-6
    mixed = np.concatenate([drawn[: len(drawn) // 2], drawn[: len(drawn) // 2]])
    assert abs(float((drawn[::2] * drawn[1::2]).mean())) < 4 / math.sqrt(len(drawn) / 2)
    assert float((mixed[: len(drawn) // 2] * mixed[len(drawn) // 2 :]).mean()) > 0.9  # a stream drawn twice


def test_shards_join_to_the_whole_wherever_they_are_cut() -> None:
    whole = released(5 * TILE + 300, stddev=0.3)
    for cuts in ((0, len(whole)), (0, 1, 700, TILE, 3 * TILE + 129, len(whole)), (0, 2 * TILE - 1, len(whole))):
        parts = [released(end - start, offset=start, stddev=0.3) for start, end in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)
    far = released(2000, offset=(1 << 36) + 5)  # block numbers of more than 32 bits
    assert not torch.equal(far, released(2000, offset=5))


def test_no_block_is_drawn_for_two_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, tensors, shards and lanes: every block of the keystream is asked for once, as no shard ends in a tile."""
    asked: list[tuple[int, ...]] = []
    keystream: Callable[..., torch.Tensor] = tensor_engine._keystream

    def noted(key: torch.Tensor, step: int, nonce: Any, numbers: torch.Tensor) -> torch.Tensor:
        nonces = torch.as_tensor(nonce).expand(len(numbers)).tolist()
        blocks = zip(numbers.tolist(), nonces, strict=True)
        asked.extend((step, n & 0xFFFFFF, number, n >> 24) for number, n in blocks)
        return keystream(key, step, nonce, numbers)

    monkeypatch.setattr(tensor_engine, "_keystream", noted)
    monkeypatch.setitem(tensor_engine._TILES, "cpu", 2)
    for step in range(2):
        for tensor in range(2):
            for offset in range(2):
                released(3 * TILE, step, 3 * TILE * offset, tensor=tensor)
    leading = [block for block in asked if block[3] == 0]
    assert len(leading) == len(set(leading)) == 8 * 3 * LANES
    assert {block[3] for block in asked} == set(range(FOLLOWING + 1))


def test_values_of_all_kinds_come_out_on_the_grid() -> None:
    grid = spacing(0.3)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = torch.randn(3000, generator=torch.Generator().manual_seed(1)).to(dtype)
        noised = values.clone()
        TensorEngine().release(noised, key_words(KEY, CPU), Place(step=0, tensor=0), 0, 0.3)
        assert torch.equal(noised / grid, (noised / grid).round())
        assert ((noised / grid) % 2 == 1).any()  # no coarser one
        assert 0.2 < float((noised - values).double().std()) < 0.4
    off = released(3000, stddev=0.3) + 1e-3
    assert not torch.equal(off / grid, (off / grid).round())


def test_the_host_never_waits() -> None:
    with Launches() as counted:
        released(3 * TILE)
    assert sum(counted.kernels.values()) > 100
    assert not counted.syncs


# The test before the first draw.


class OtherStep(TensorEngine):
    """A keystream whose words are all drawn under another step."""

    def words(self, key: torch.Tensor, place: Place, first: int, count: int, lane: int = 0) -> torch.Tensor:
        return super().words(key, Place(step=place.step + 1, tensor=place.tensor), first, count, lane)


class OneLane(TensorEngine):
    """Bits that follow are those that came before."""

    def words(self, key: torch.Tensor, place: Place, first: int, count: int, lane: int = 0) -> torch.Tensor:
        return super().words(key, place, first, count, 0 if place.step != 0 else lane)


class Half(TensorEngine):
    def release(self, flat: torch.Tensor, key: torch.Tensor, place: Place, offset: int, stddev: float) -> None:
        super().release(flat, key, place, offset, stddev / 2)


class OtherNoise(TensorEngine):
    """Sound deviates, but others are released than were shown."""

    def release(self, flat: torch.Tensor, key: torch.Tensor, place: Place, offset: int, stddev: float) -> None:
        super().release(flat, key, Place(step=place.step, tensor=1), offset, stddev)


class ReleasesWrongly(TensorEngine):
    """Sound in all that it shows, and for the float32 zeros of tensor 0 from their beginning."""

    key: ClassVar[torch.Tensor | None] = None
    place: ClassVar[Place | None] = None
    offset: ClassVar[int | None] = None
    stddev: ClassVar[float | None] = None
    longest: ClassVar[int | None] = None
    skips: ClassVar[torch.dtype | None] = None

    def release(self, flat: torch.Tensor, key: torch.Tensor, place: Place, offset: int, stddev: float) -> None:
        if flat.dtype == self.skips:
            return
        key, place = key if self.key is None else self.key, self.place or place
        offset = offset if self.offset is None else self.offset
        super().release(flat[: self.longest], key, place, offset, self.stddev or stddev)


class PublicKey(ReleasesWrongly):
    key = key_words(bytes(range(32)), CPU)


class OneStep(ReleasesWrongly):
    place = Place(step=157, tensor=0)


class FromTheBeginning(ReleasesWrongly):
    offset = 0


class OneDeviation(ReleasesWrongly):
    stddev = 0.37


class Short(ReleasesWrongly):
    longest = 1 << 17


class Float32Alone(ReleasesWrongly):
    skips = torch.float64


class OneTensorForAll(TensorEngine):
    """Of tensors in one buffer, all have the stream of the first."""

    def release_joined(
        self, flat: torch.Tensor, key: torch.Tensor, step: int, tiles: torch.Tensor, stddev: float
    ) -> None:
        tiles = torch.cat([tiles[:1, :1].expand(len(tiles), 1), tiles[:, 1:]], 1)
        super().release_joined(flat, key, step, tiles, stddev)


class LastTileLeftOut(TensorEngine):
    def release_joined(
        self, flat: torch.Tensor, key: torch.Tensor, step: int, tiles: torch.Tensor, stddev: float
    ) -> None:
        super().release_joined(flat, key, step, tiles[:-1], stddev)


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (OtherStep, "not that of RFC 8439"),
        (OneLane, "not that of OpenSSL"),
        (Half, "its deviates rounded onto"),
        (OtherNoise, "its deviates rounded onto"),
        (PublicKey, "other noise than its key, step and place"),
        (OneStep, "other noise than its key, step and place"),
        (FromTheBeginning, "other noise than its key, step and place"),
        (OneDeviation, "not on the grid"),
        (Short, "not on the grid"),
        (Float32Alone, "torch.float64 is not on the grid"),
        (OneTensorForAll, "in one buffer get other noise than alone"),
        (LastTileLeftOut, "in one buffer get other noise than alone"),
    ],
)
def test_an_engine_with_a_fault_is_refused(engine: type[TensorEngine], fault: str) -> None:
    with pytest.raises(PrivctlError, match=fault):
        require_sound(engine(), CPU)


@pytest.mark.parametrize("function", ["log", "log1p", "cos", "sin"])
def test_a_device_whose_functions_are_coarse_is_refused(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = getattr(torch, function)
    monkeypatch.setattr(torch, function, lambda values: exact(values) * (1 + 2.0**-45))
    with pytest.raises(PrivctlError, match="less accurate than noise needs"):
        require_sound(TensorEngine(), CPU)


def test_bits_that_do_not_follow_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_engine, "ENOUGH", 0)
    with pytest.raises(PrivctlError, match="less accurate than noise needs"):
        require_sound(TensorEngine(), CPU)


def test_moments_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were pairs made wrongly in all places at once, their moments would still tell."""
    monkeypatch.setattr("privctl.randomness.device.selftest._require_fine", lambda *_: None)
    cos = torch.cos
    monkeypatch.setattr(torch, "cos", lambda values: cos(values).abs())
    with pytest.raises(PrivctlError, match="to the power of 1 is not 0"):
        require_sound(TensorEngine(), CPU)


def test_a_device_that_cannot_compute_is_refused_in_a_sentence() -> None:
    with pytest.raises(PrivctlError, match="meta cannot draw noise: .*; give --device cpu"):
        engine_for(torch.device("meta"))


def test_a_processor_has_no_triton() -> None:
    assert engine_for(CPU).name == "tensor operations"
