"""The self-test that an engine must pass on a device before it draws noise there; repeatable, with public keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from privctl.domain.errors import PrivctlError
from privctl.randomness.deviates import FINE
from privctl.randomness.device.engine import (
    ENOUGH,
    FOLLOWING,
    LANES,
    MOST_TENSORS,
    TILE,
    ElementRange,
    NoiseEngine,
    Place,
)
from privctl.randomness.device.joined import tiles_of
from privctl.randomness.device.tensor_engine import key_words
from privctl.randomness.gridded import spacing

#: RFC 8439, 2.3.2 and A.1 (vector 1): key; counter and nonce as a 64-bit block number and a step; and the block.
VECTORS = (
    (
        bytes(range(32)), 0x09000000_00000001, 0x4A000000,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32), 0, 0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
)  # fmt: skip

#: Tiles that are drawn, under the first vector's key, in a step in which some pairs at either edge of U need more bits.
_TILES, _STEP = 64, 157
#: Pairs compared with the C library, besides those that need more bits.
_PAIRS = 250
_STDDEV = 0.37
#: A stretch of a tensor that begins and ends within a tile, with another key, step, tensor and standard deviation.
_OTHER_KEY, _OTHER = bytes(range(32, 64)), Place(step=90_001, tensor=70_003)
_OFFSET, _LENGTH, _OTHER_STDDEV = 5 * TILE + 333, 300_007, 11.3
#: Stretches that begin and end at the edges of tiles and within them, of the same tensor and of several.
_JOINED = tuple(
    ElementRange(tensor=tensor, offset=offset, count=count)
    for tensor, offset, count in (
        (_OTHER.tensor, _OFFSET, 3 * TILE), (5, 0, 1), (_OTHER.tensor, 0, TILE), (MOST_TENSORS - 1, 2 * TILE - 1, 2),
        (0, 7, 5000),
    )
)  # fmt: skip
#: The number of deviates per sample variance, and its allowed distance from 1: eight standard deviations.
_RUN, _NEAR = 4096, 8 * math.sqrt(2 / 4096)


def require_sound(engine: NoiseEngine, device: torch.device) -> None:
    """Raise PrivctlError if ``engine`` draws wrong noise on ``device``.

    Its keystream is compared with the vectors of RFC 8439 and with OpenSSL's, its deviates with the C library's
    functions, and its releases with these deviates, their first four moments and the grid. Then the noise on a stretch
    of float32 and of float64 numbers is compared with OpenSSL and the C library, for another key, step and tensor, and
    joined stretches with the same stretches one by one.
    """
    _require_keystream(engine, device)
    place, key = Place(step=_STEP, tensor=0), key_words(VECTORS[0][0], device)
    drawn = engine.deviates(key, place, _TILES).cpu()
    _require_fine(drawn.tolist(), device)
    released = torch.zeros(_TILES * TILE, device=device)
    engine.release(released, key, place, 0, _STDDEV)
    _require_released(released.double().cpu(), drawn, engine, device)
    for kind in (torch.float32, torch.float64):
        _require_placed(engine, device, kind)
        _require_joined(engine, device, kind)


def openssl_words(key: bytes, place: Place, count: int, lane: int = 0) -> Tensor:
    """The same keystream from block 0 on (``count``, 16), drawn by OpenSSL through the cryptography library."""
    nonce = bytes(8) + place.step.to_bytes(4, "little") + (lane << 24 | place.tensor).to_bytes(4, "little")
    stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(64 * count))
    return torch.frombuffer(bytearray(stream), dtype=torch.int32).view(count, 16)


def _require_keystream(engine: NoiseEngine, device: torch.device) -> None:
    for key, number, step, block in VECTORS:
        words = engine.words(key_words(key, device), Place(step=step, tensor=0), number, 1).cpu()
        if words.numpy().tobytes().hex() != block:
            raise _failed(engine, device, "its keystream is not that of RFC 8439")
    place, key = Place(step=_STEP, tensor=3), VECTORS[0][0]
    for lane in range(FOLLOWING + 1):
        words = engine.words(key_words(key, device), place, 0, 3 * LANES, lane).cpu()
        if not torch.equal(words, openssl_words(key, place, 3 * LANES, lane)):
            raise _failed(engine, device, "its keystream is not that of OpenSSL")


def _require_fine(drawn: Sequence[float], device: torch.device) -> None:
    """Raise unless the deviates agree with the C library within R FINE / 4, also where further bits are needed."""
    for element, words in _chosen_pairs():
        wave, other = exact_pair(words)
        radius = math.hypot(wave, other)
        for value, exact in ((drawn[element], wave), (drawn[element + LANES], other)):
            if not abs(value - exact) <= radius * FINE / 4:
                raise PrivctlError(f"double precision on {device} is less accurate than noise needs; give --device cpu")


def _chosen_pairs() -> Iterator[tuple[int, list[int]]]:
    """Pairs to compare: the element that gets the first deviate, and the pair's words in all lanes."""
    place, key, blocks = Place(step=_STEP, tensor=0), VECTORS[0][0], _TILES * LANES
    lanes = [openssl_words(key, place, blocks, lane).view(blocks, 4, 4) for lane in range(FOLLOWING + 1)]
    few = (lanes[0][:, :, 1] & 0x7FFFFFFF) < 1 << (ENOUGH - 32)
    few.view(-1)[:_PAIRS] = True
    for block, pair in few.nonzero().tolist():
        words = [word & 0xFFFFFFFF for lane in lanes for word in lane[block, pair].tolist()]
        yield block // LANES * TILE + 2 * pair * LANES + block % LANES, words


def exact_pair(words: Sequence[int]) -> tuple[float, float]:
    """The pair of deviates of 12 unsigned 32-bit words, by exact integers and the C library's functions."""
    number, bits = (words[1] & 0x7FFFFFFF) << 32 | words[0], 64
    following = list(words[4:])
    while following and number < 1 << ENOUGH:
        for high, low in ((following[1], following[0]), (following[3], following[2])):
            number, bits = number << 64 | high << 32 | low, bits + 64
        del following[:4]
    share = math.ldexp(2 * number + 1, -bits - 1)
    radius = math.sqrt(-2 * (math.log1p(-share) if words[1] >> 31 else math.log(share)))
    turn = (words[3] << 32 | words[2]) - (words[3] >> 31 << 64)
    angle = turn * (math.pi * 2.0**-63)
    return radius * math.cos(angle), radius * math.sin(angle)


def _require_released(released: Tensor, drawn: Tensor, engine: NoiseEngine, device: torch.device) -> None:
    grid = spacing(_STDDEV)
    if not torch.equal(released, (drawn * (_STDDEV / grid)).round() * grid):
        raise _failed(engine, device, "what it releases is not its deviates rounded onto the grid")
    unit, error = released / _STDDEV, 1 / math.sqrt(len(released))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        if not abs(float((unit**power).mean()) - moment) < 5 * error * math.sqrt(variance):
            raise _failed(engine, device, f"the mean of its deviates to the power of {power} is not {moment}")


def _require_placed(engine: NoiseEngine, device: torch.device, kind: torch.dtype) -> None:
    """Raise unless all numbers get noise, and it is that of their key, step, tensor and element."""
    grid = spacing(_OTHER_STDDEV)
    values = (torch.arange(_LENGTH) % 1001 - 500).to(kind) * 3.3
    released = values.to(device, copy=True)
    engine.release(released, key_words(_OTHER_KEY, device), _OTHER, _OFFSET, _OTHER_STDDEV)
    actual = released.double().cpu()
    if not torch.equal(actual, (actual / grid).round() * grid):
        raise _failed(engine, device, f"what it releases of {kind} is not on the grid")
    noise = (actual - values.double()) / _OTHER_STDDEV
    runs = noise[: _LENGTH // _RUN * _RUN].view(-1, _RUN).square().mean(1)
    if not bool(((runs - 1).abs() < _NEAR).all()):
        raise _failed(engine, device, f"not all {kind} numbers get noise of its standard deviation")
    for element, exact in _exact_elements():
        if not abs(float(noise[element]) - exact) * _OTHER_STDDEV <= 0.5001 * grid:
            raise _failed(engine, device, f"a {kind} number gets other noise than its key, step and place give it")


def _require_joined(engine: NoiseEngine, device: torch.device, kind: torch.dtype) -> None:
    """Raise unless each stretch in a joint buffer gets the same noise as alone."""
    key = key_words(_OTHER_KEY, device)
    alone = torch.linspace(-9, 9, sum(stretch.count for stretch in _JOINED)).to(device, kind)
    together = alone.clone()
    engine.release_joined(together, key, _OTHER.step, tiles_of(_JOINED, device), _OTHER_STDDEV)
    for stretch, piece in zip(_JOINED, torch.split(alone, [stretch.count for stretch in _JOINED]), strict=True):
        engine.release(piece, key, Place(step=_OTHER.step, tensor=stretch.tensor), stretch.offset, _OTHER_STDDEV)
    if not torch.equal(together.cpu(), alone.cpu()):
        raise _failed(engine, device, f"{kind} numbers of many tensors in one buffer get other noise than alone")


def _exact_elements() -> Iterator[tuple[int, float]]:
    """Indices spread over the stretch, with their deviates by OpenSSL and the C library."""
    blocks = -(-(_OFFSET + _LENGTH) // TILE) * LANES
    lanes = [openssl_words(_OTHER_KEY, _OTHER, blocks, lane).view(blocks, 4, 4) for lane in range(FOLLOWING + 1)]
    for number in (*range(0, _LENGTH, _LENGTH // _PAIRS), _LENGTH - 1):
        tile, within = divmod(_OFFSET + number, TILE)
        (pair, second), lane = divmod(within // LANES, 2), within % LANES
        words = [word & 0xFFFFFFFF for lane_words in lanes for word in lane_words[tile * LANES + lane, pair].tolist()]
        yield number, exact_pair(words)[second]


def _failed(engine: NoiseEngine, device: torch.device, fault: str) -> PrivctlError:
    return PrivctlError(f"the noise of {engine.name} on {device} failed its test: {fault}; give --device cpu")
