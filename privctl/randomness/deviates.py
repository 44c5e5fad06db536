"""Box-Muller twice: in float32 with a known error bound, and in float64 with more bits of the same deviates.

A pair of ideal deviates is R cos A, R sin A with R = sqrt(-2 ln U), U uniform on (0, 1) and A on (-pi, pi). One word of
32 bits fixes the leading 31 bits of U, another the leading 32 bits of A; 64 further bits of each are drawn only where
they matter, and more if U is so small that even these do not determine its logarithm. The bits not drawn are uniform,
so every computed pair is close to an ideal pair: within ``FAST`` in float32, within ``FINE`` R in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.errors import PrivctlError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bound on the error of a float32 deviate if U is at least 2^-12 away from 0 and 1. Radius: 2^-24 / (u R) from rounding
#: u, below 2^-18.4 at the edges, and 2^-22 R from logarithm and root; angle: R (pi 2^-23 + 2^-23). The sum stays below
#: 2^-18.
FAST = 2.0**-17
#: Bound on the error of a float64 deviate, per unit of R: the error of the angle is below 2^-50, that of its sine or
#: cosine a few 2^-53 more, and the relative error of R below 2^-51.
FINE = 2.0**-48
#: Deviates with U this close to 0 or 1 are always computed in float64.
EDGE = np.float32(2.0**-12)
#: Below this, the 64 following bits are too few for the logarithm of a U whose leading bits are all 0.
_SHALLOW = 1 << 54

#: Returns ``count`` words of 64 bits; a larger count returns the same words first.
Deep = Callable[[int], list[int]]


def float32_deviates(
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    scale: float,
    work: list[NDArray[np.float32]],
    out: NDArray[np.float32],
) -> NDArray[np.intp]:
    """Fill ``out`` (n,) with deviates times ``scale``; returns the pairs whose error may exceed ``scale`` * FAST.

    ``first`` and ``second`` are the words of p = ceil(n / 2) pairs, ``work`` three arrays of at least p; pair i gives
    entries i and p + i.
    """
    pairs = len(first)
    u, angle, wave = (array[:pairs] for array in work)
    # A signed word k stands for the cell with centre |k + 1/2| and width 1, in units of 2^-31.
    np.copyto(u, first, casting="unsafe")  # faster than a product of mixed types
    np.multiply(u, np.float32(2.0**-31), out=u)
    np.add(u, np.float32(2.0**-32), out=u)
    np.abs(u, out=u)
    edge: NDArray[np.intp] = ((u < EDGE) | (u > 1 - EDGE)).nonzero()[0]  # faster than np.flatnonzero
    np.log(u, out=u)
    np.multiply(u, np.float32(-2.0 * scale * scale), out=u)
    np.sqrt(u, out=u)
    np.copyto(angle, second, casting="unsafe")
    np.multiply(angle, np.float32(math.pi * 2.0**-31), out=angle)
    np.cos(angle, out=wave)
    np.multiply(wave, u, out=out[:pairs])
    np.sin(angle, out=angle)
    second_half = len(out) - pairs
    np.multiply(angle[:second_half], u[:second_half], out=out[pairs:])
    return edge


def float64_deviates(
    first: NDArray[np.int32], second: NDArray[np.int32], following: NDArray[np.uint64], deep: Deep
) -> NDArray[np.float64]:
    """The pairs (2, p) of the leading words ``first`` and ``second`` (p,) and the ``following`` words (2 p,)."""
    count = len(first)
    radius = np.sqrt(-2.0 * _log_uniform(first, following[:count], deep))
    angle = second + (following[count:] * 2.0**-64)
    np.multiply(angle, math.pi * 2.0**-31, out=angle)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)])


def _log_uniform(words: NDArray[np.int32], following: NDArray[np.uint64], deep: Deep) -> NDArray[np.float64]:
    """Logarithm of the uniforms, computed from the nearer of 0 and 1, so that its relative error is small at both."""
    cell = np.where(words >= 0, words, ~words).astype(np.int64)
    upper = cell >= 1 << 30
    from_edge = np.where(upper, (1 << 31) - 1 - cell, cell)
    distance = (from_edge + (following * 2.0**-64 + 2.0**-65)) * 2.0**-31
    log = np.empty(len(words))
    np.log(distance, out=log, where=~upper)
    np.log1p(-distance, out=log, where=upper)
    shallow = np.flatnonzero((cell == 0) & (following < _SHALLOW))
    for index, value in zip(shallow, _deep_logs([int(following[i]) for i in shallow], deep), strict=True):
        log[index] = value
    return log


def _deep_logs(following: list[int], deep: Deep) -> list[float]:
    """Logarithms of uniforms with 31 leading zeros, then the 64 bits ``following``; draws more bits where needed."""
    numbers, bits, rounds = list(following), [64] * len(following), 0
    while any(short := [number < _SHALLOW for number in numbers]):
        words = deep(len(following) * (rounds + 1))[len(following) * rounds :]
        for i, word in enumerate(words):
            if short[i]:
                numbers[i], bits[i] = numbers[i] << 64 | word, bits[i] + 64
        rounds += 1
    return [math.log(number) - (31 + count) * math.log(2) for number, count in zip(numbers, bits, strict=True)]


@functools.cache
def float32_is_fast() -> bool:
    """Whether numpy's float32 functions here meet the bound ``FAST``, on words at the edges and a few thousand others.

    Raises PrivctlError if its float64 functions do not meet ``FINE``, compared with the C library's.
    """
    words = probes()
    pairs = len(words) // 2
    middle = np.full(2 * pairs, 1 << 63, np.uint64)
    exact = float64_deviates(words[:pairs], words[pairs:], middle, _no_deep_words)
    _require_fine(words, exact)
    quick = np.empty(2 * pairs, np.float32)
    edge = float32_deviates(words[:pairs], words[pairs:], 1.0, [np.empty(pairs, np.float32) for _ in range(3)], quick)
    error = np.abs(quick.reshape(2, pairs) - exact)
    error[:, edge] = 0.0
    return bool(error.max() < 0.75 * FAST)


def probes() -> NDArray[np.int32]:
    """Words of test pairs: first words dense at the edges, second words dense at multiples of pi / 4."""
    inner = np.int64(1) << 19
    near = [word + step for word in (inner, (1 << 31) - inner) for step in range(-200, 200)]
    turns = [turn * (1 << 29) + step for turn in range(-4, 4) for step in range(-60, 60) if turn > -4 or step >= 0]
    # Multiples of two odd numbers are spread evenly over all pairs of words, without importing a generator.
    spread = np.outer([0x9E3779B1, 0x85EBCA77], np.arange(1, 4097)) % (1 << 32) - (1 << 31)
    first = np.concatenate([near, spread[0], spread[0, : len(turns)]])
    second = np.concatenate([spread[1, : len(near)], spread[1], turns])
    return np.concatenate([first, second]).astype(np.int32)


def _require_fine(words: NDArray[np.int32], drawn: NDArray[np.float64]) -> None:
    pairs = len(words) // 2
    for i in range(0, pairs, 5):
        first, second = int(words[i]), int(words[pairs + i])
        cell = first if first >= 0 else ~first
        uniform = (cell + 0.5) * 2.0**-31
        log = math.log(uniform) if uniform < 0.5 else math.log1p(-(1 - uniform))
        radius, angle = math.sqrt(-2 * log), (second + 0.5) * (math.pi * 2.0**-31)
        for value, wave in zip(drawn[:, i], (math.cos(angle), math.sin(angle)), strict=True):
            if not abs(value - radius * wave) <= radius * FINE / 4:
                raise PrivctlError(
                    "this machine's double-precision logarithm, sine or cosine is less accurate than noise needs; "
                    "update numpy, or use another machine"
                )


def _no_deep_words(count: int) -> list[int]:
    raise AssertionError(f"no probe needs {count} more words")
