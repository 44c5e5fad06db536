"""The Triton engine: keystream, deviates, sum and rounding in one kernel, which reads and writes each entry once."""

# mypy: disable-error-code="misc, no-any-return, no-untyped-call, no-untyped-def, untyped-decorator"
# ruff: noqa: N803 (compile-time constants of kernels are arguments in capitals)

from __future__ import annotations

import math
import struct
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from privctl.randomness.device.engine import ENOUGH, FOLLOWING, LANES, TILE, Place
from privctl.randomness.gridded import spacing

#: Arguments that differ from call to call, for whose values no kernel is specialized.
_NUMBERS = ("step", "tensor", "first", "count", "offset", "ratio", "grid", "inverse")


@triton.jit
def _rotated(word, bits: tl.constexpr):
    return (word << bits) | (word >> (32 - bits))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _block(key, numbers, step, nonce):
    """The 16 words of each of the blocks ``numbers`` (n,) int64; ``nonce`` is word 15."""
    zero = numbers.to(tl.uint32) * 0
    k0 = zero + tl.load(key).to(tl.uint32, bitcast=True)
    k1 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    low, high = (numbers & 0xFFFFFFFF).to(tl.uint32), (numbers >> 32).to(tl.uint32)
    n1, n2 = zero + step.to(tl.uint32), zero + nonce.to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, low, high, n1, n2
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3,
        x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + low, x13 + high, x14 + n1, x15 + n2,
    )  # fmt: skip


@triton.jit
def _wide(low, high):
    """Two words as one 64-bit number in float64, rounded once."""
    return high.to(tl.float64) * 4294967296.0 + low.to(tl.float64)


@triton.jit
def _log1p_minus(share):
    """ln(1 - share) within a few units in the last place, given an accurate logarithm (Kahan)."""
    rest = 1.0 - share
    taken = 1.0 - rest
    return tl.where(taken == 0.0, -share, tl.log(rest) * (share / tl.where(taken == 0.0, 1.0, taken)))


@triton.jit
def _pair(w0, w1, w2, w3, m0, m1, m2, m3, o0, o1, o2, o3, ENOUGH: tl.constexpr):
    """A pair of deviates from its leading words w; m is appended if w has too few bits, and o if these are too few."""
    unit: tl.constexpr = 2.0**-64
    first: tl.constexpr = 2.0**-192
    second: tl.constexpr = 2.0**-320
    enough: tl.constexpr = 2.0**ENOUGH
    share = _wide(w0, w1 & 0x7FFFFFFF) * unit
    short = share < unit * enough
    half = tl.where(short, first / 2, unit / 2)
    share = tl.where(short, share + (_wide(m0, m1) * (unit * unit) + _wide(m2, m3) * first), share)
    short = short & (share < first * enough)
    half = tl.where(short, second / 2, half)
    share = tl.where(short, share + (_wide(o0, o1) * (first * unit) + _wide(o2, o3) * second), share) + half
    radius = tl.sqrt(-2.0 * tl.where((w1 >> 31) != 0, _log1p_minus(share), tl.log(share)))
    turn = w3.to(tl.int32, bitcast=True).to(tl.float64) * 4294967296.0 + w2.to(tl.float64)
    angle = turn * 3.4061215800865545e-19  # pi / 2^63
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _rounded(out, at, inside, deviate, ratio, grid, inverse):
    """Add ``ratio`` * ``deviate`` steps to each entry and round; whole steps are kept apart, so no sum loses bits."""
    value = tl.load(out + at, mask=inside)
    double: tl.constexpr = value.dtype == tl.float64
    wide = value if double else value.to(tl.float32).to(tl.float64)  # GPUs cannot convert 16 bits to 64 directly
    steps = wide * inverse
    held = tl.floor(steps)
    rounded = (held + tl.floor((steps - held) + deviate * ratio + 0.5)) * grid
    # An infinite value, or one whose number of steps overflows, stays unchanged.
    kept = tl.where(tl.abs(steps) == float("inf"), wide, rounded)
    tl.store(out + at, kept if double else kept.to(tl.float32).to(value.dtype), mask=inside)


@triton.jit
def _stored(out, at, inside, deviate, ratio, grid, inverse, RAW: tl.constexpr):
    if RAW:
        tl.store(out + at, deviate, mask=inside)
    else:
        _rounded(out, at, inside, deviate, ratio, grid, inverse)


@triton.jit
def _tile(
    out, key, step, tensor, tile, start, low, end, ratio, grid, inverse,
    LANES: tl.constexpr, ENOUGH: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """One tile, whose first element is at index ``start`` of ``out``, restricted to indices ``low`` to ``end``.

    ``ratio``, ``grid`` and ``inverse`` are the bit patterns of float64 numbers.
    """
    lane = tl.arange(0, LANES)
    numbers = tile * LANES + lane
    ratio = ratio.to(tl.float64, bitcast=True)
    grid = grid.to(tl.float64, bitcast=True)
    inverse = inverse.to(tl.float64, bitcast=True)
    w = _block(key, numbers, step, tensor)
    fewest = tl.minimum(
        tl.minimum(w[1] & 0x7FFFFFFF, w[5] & 0x7FFFFFFF), tl.minimum(w[9] & 0x7FFFFFFF, w[13] & 0x7FFFFFFF)
    )
    m, o = w, w  # used only for pairs that need further bits
    if tl.min(fewest.to(tl.int64), axis=0) < 2.0 ** (ENOUGH - 32):
        m = _block(key, numbers, step, tensor + (1 << 24))
        o = _block(key, numbers, step, tensor + (2 << 24))
    for q in tl.static_range(4):
        wave, other = _pair(
            w[4 * q], w[4 * q + 1], w[4 * q + 2], w[4 * q + 3], m[4 * q], m[4 * q + 1], m[4 * q + 2], m[4 * q + 3],
            o[4 * q], o[4 * q + 1], o[4 * q + 2], o[4 * q + 3], ENOUGH,
        )  # fmt: skip
        at = start + lane + (2 * q) * LANES
        _stored(out, at, (at >= low) & (at < end), wave, ratio, grid, inverse, RAW)
        at += LANES
        _stored(out, at, (at >= low) & (at < end), other, ratio, grid, inverse, RAW)


@triton.jit(do_not_specialize=_NUMBERS)
def _release(
    out, key, step, tensor, first, count, offset, ratio, grid, inverse,
    LANES: tl.constexpr, ENOUGH: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """One tile of a stretch of one tensor."""
    tile = first + tl.program_id(0).to(tl.int64)
    start = tile * (8 * LANES) - offset
    _tile(out, key, step, tensor, tile, start, 0, count, ratio, grid, inverse, LANES, ENOUGH, RAW)


@triton.jit(do_not_specialize=_NUMBERS)
def _release_joined(
    out, key, tiles, step, ratio, grid, inverse, LANES: tl.constexpr, ENOUGH: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """One tile of concatenated stretches."""
    row = tiles + 5 * tl.program_id(0).to(tl.int64)
    tensor, tile, start = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    low, end = tl.load(row + 3), tl.load(row + 4)
    _tile(out, key, step, tensor, tile, start, low, end, ratio, grid, inverse, LANES, ENOUGH, RAW)


@triton.jit(do_not_specialize=_NUMBERS)
def _words(out, key, step, tensor, first, count, LANES: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    w = _block(key, first + lane, step, tensor)
    for i in tl.static_range(16):
        tl.store(out + lane * 16 + i, w[i].to(tl.int32, bitcast=True), mask=lane < count)


class TritonEngine:
    """See ``NoiseEngine``."""

    name = "Triton"

    def words(self, key: Tensor, place: Place, first: int, count: int, lane: int = 0) -> Tensor:
        """See ``NoiseEngine``."""
        out = torch.empty(count, 16, dtype=torch.int32, device=key.device)
        with _on_device(key.device):
            grid = (triton.cdiv(count, LANES),)
            _words[grid](out, key, place.step, lane << 24 | place.tensor, first, count, LANES=LANES)
        return out

    def deviates(self, key: Tensor, place: Place, tiles: int) -> Tensor:
        """See ``NoiseEngine``."""
        out = torch.empty(tiles * TILE, dtype=torch.float64, device=key.device)
        _launch(out, key, place, 0, 1.0, raw=True)
        return out

    def release(self, flat: Tensor, key: Tensor, place: Place, offset: int, stddev: float) -> None:
        """See ``NoiseEngine``."""
        if len(flat):
            _launch(flat, key, place, offset, stddev, raw=False)

    def release_joined(self, flat: Tensor, key: Tensor, step: int, tiles: Tensor, stddev: float) -> None:
        """See ``NoiseEngine``."""
        width = spacing(stddev)
        with _on_device(key.device):
            _release_joined[(len(tiles),)](
                flat, key, tiles, step, _bits(stddev / width), _bits(width), _bits(1 / width),
                LANES=LANES, ENOUGH=ENOUGH, RAW=False,
            )  # fmt: skip


def _launch(flat: Tensor, key: Tensor, place: Place, offset: int, stddev: float, *, raw: bool) -> None:
    step, first = spacing(stddev), offset // TILE
    tiles = -(-(offset + len(flat)) // TILE) - first
    with _on_device(key.device):
        _release[(tiles,)](
            flat, key, place.step, place.tensor, first, len(flat), offset,
            _bits(stddev / step), _bits(step), _bits(1 / step), LANES=LANES, ENOUGH=ENOUGH, RAW=raw,
        )  # fmt: skip


def _bits(number: float) -> int:
    """The bit pattern as an integer, since kernels take floats in single precision only."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _on_device(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


assert FOLLOWING == 2  # as _pair assumes
assert math.pi * 2.0**-63 == 3.4061215800865545e-19
