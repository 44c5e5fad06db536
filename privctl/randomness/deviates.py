"""Box-Muller twice: quickly in float32 within a known error, and again in float64 with more bits of the same deviate.

A pair of ideal deviates is R cos A, R sin A with R = sqrt(-2 ln U), U uniform on (0, 1) and A on (-pi, pi). A word of
32 bits fixes the leading 31 bits of U, another the leading 32 of A; 64 further bits of each are drawn only where
they matter, and more where U is so small that even these do not determine its logarithm. The bits not drawn are
uniform, so every computed pair is close to an ideal pair: within ``FAST`` in float32, within ``FINE`` R in float64.
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

#: Distance of a float32 deviate from the ideal one, at most, where U is not in the outer 2^-12 on either side. Radius:
#: 2^-24 / (u R) from u's rounding, below 2^-18.4 at the edges, and 2^-22 R from log and root; angle: R times
#: (pi 2^-23 + 2^-23). The sum stays below 2^-18.
FAST = 2.0**-17
#: Distance of a float64 deviate from the ideal one, per unit of R, at most: the angle errs by less than 2^-50, its sine
#: or cosine by a few 2^-53 more, and R relatively by less than 2^-51.
FINE = 2.0**-48
#: Uniforms this close to 0 or 1 are computed in float64 at once.
EDGE = np.float32(2.0**-12)
#: Below this, the 64 bits that follow are too few for the logarithm of a U whose leading bits are all 0.
_SHALLOW = 1 << 54

#: ``count`` words of 64 bits, always the same ones and more of them where more are asked for.
Deep = Callable[[int], list[int]]


def float32_deviates(
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    scale: float,
    work: list[NDArray[np.float32]],
    out: NDArray[np.float32],
) -> NDArray[np.intp]:
    """Fill ``out`` (n) with deviates times ``scale``, within ``scale`` FAST of ideal ones but for the pairs returned.

    ``first`` and ``second`` are the words of p = ceil(n / 2) pairs, ``work`` three arrays of at least p; pair i makes
    entries i and p + i.
    """
    pairs = len(first)
    u, angle, wave = (array[:pairs] for array in work)
    # A signed word k stands for the cell |k + 1/2| of width 1 out of 2^31.
    np.copyto(u, first, casting="unsafe")  # faster than a product of mixed types
    np.multiply(u, np.float32(2.0**-31), out=u)
    np.add(u, np.float32(2.0**-32), out=u)
    np.abs(u, out=u)
    edge: NDArray[np.intp] = ((u < EDGE) | (u > 1 - EDGE)).nonzero()[0]  # np.flatnonzero takes longer
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
    """The pairs (2, p) whose leading words are ``first`` and ``second`` (p), with ``following`` (2 p) bits of each."""
    count = len(first)
    radius = np.sqrt(-2.0 * _log_uniform(first, following[:count], deep))
    angle = second + (following[count:] * 2.0**-64)
    np.multiply(angle, math.pi * 2.0**-31, out=angle)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)])


def _log_uniform(words: NDArray[np.int32], following: NDArray[np.uint64], deep: Deep) -> NDArray[np.float64]:
    """Log of the uniforms, measured from the nearer of 0 and 1, so that it is relatively accurate at both."""
    cell = np.where(words >= 0, words, ~words).astype(np.int64)
    upper = cell >= 1 << 30
    from_edge = np.where(upper, (1 << 31) - 1 - cell, cell)
    share = (from_edge + (following * 2.0**-64 + 2.0**-65)) * 2.0**-31
    log = np.empty(len(words))
    np.log(share, out=log, where=~upper)
    np.log1p(-share, out=log, where=upper)
    shallow = np.flatnonzero((cell == 0) & (following < _SHALLOW))
    for place, value in zip(shallow, _deep_logs([int(following[i]) for i in shallow], deep), strict=True):
        log[place] = value
    return log


def _deep_logs(begun: list[int], deep: Deep) -> list[float]:
    """Log of uniforms with 31 zeros in front and then the 64 bits ``begun``: bits are added until 53 of them count."""
    numbers, bits, rounds = list(begun), [64] * len(begun), 0
    while any(short := [number < _SHALLOW for number in numbers]):
        words = deep(len(begun) * (rounds + 1))[len(begun) * rounds :]
        for i, word in enumerate(words):
            if short[i]:
                numbers[i], bits[i] = numbers[i] << 64 | word, bits[i] + 64
        rounds += 1
    return [math.log(number) - (31 + many) * math.log(2) for number, many in zip(numbers, bits, strict=True)]


@functools.cache
def float32_is_fast() -> bool:
    """Whether this machine's float32 functions keep ``FAST``, on words at the edges and a few thousand others.

    Raises PrivctlError where its float64 functions do not keep ``FINE``, held against the C library's.
    """
    words = probes()
    pairs = len(words) // 2
    middle = np.full(2 * pairs, 1 << 63, np.uint64)
    exact = float64_deviates(words[:pairs], words[pairs:], middle, _nothing)
    _require_fine(words, exact)
    quick = np.empty(2 * pairs, np.float32)
    edge = float32_deviates(words[:pairs], words[pairs:], 1.0, [np.empty(pairs, np.float32) for _ in range(3)], quick)
    error = np.abs(quick.reshape(2, pairs) - exact)
    error[:, edge] = 0.0
    return bool(error.max() < 0.75 * FAST)


def probes() -> NDArray[np.int32]:
    """Words for pairs: their first ones crowd at the edges, their second ones at multiples of a right angle."""
    inner = np.int64(1) << 19
    near = [place + step for place in (inner, (1 << 31) - inner) for step in range(-200, 200)]
    turns = [turn * (1 << 29) + step for turn in range(-4, 4) for step in range(-60, 60) if turn > -4 or step >= 0]
    # Multiples of two odd numbers, which spread evenly over all pairs of words without a generator being imported.
    spread = np.outer([0x9E3779B1, 0x85EBCA77], np.arange(1, 4097)) % (1 << 32) - (1 << 31)
    first = np.concatenate([near, spread[0], spread[0, : len(turns)]])
    second = np.concatenate([spread[1, : len(near)], spread[1], turns])
    return np.concatenate([first, second]).astype(np.int32)


def _require_fine(words: NDArray[np.int32], drawn: NDArray[np.float64]) -> None:
    pairs = len(words) // 2
    for i in range(0, pairs, 5):
        first, second = int(words[i]), int(words[pairs + i])
        cell = first if first >= 0 else ~first
        share = (cell + 0.5) * 2.0**-31
        log = math.log(share) if share < 0.5 else math.log1p(-(1 - share))
        radius, angle = math.sqrt(-2 * log), (second + 0.5) * (math.pi * 2.0**-31)
        for value, wave in zip(drawn[:, i], (math.cos(angle), math.sin(angle)), strict=True):
            if not abs(value - radius * wave) <= radius * FINE / 4:
                raise PrivctlError(
                    "this machine's double-precision logarithm, sine or cosine is less accurate than noise needs; "
                    "update numpy, or use another machine"
                )


def _nothing(count: int) -> list[int]:
    raise AssertionError(f"no probe needs {count} more words")
