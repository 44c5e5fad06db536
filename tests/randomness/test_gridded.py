"""Noise on a grid: its law against the Gaussian's, cell by cell, and every point against 60 digits of the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import stats

from privctl.randomness import BLOCK, NoiseSource, deviates, gridded
from privctl.randomness.deviates import FAST, FINE
from privctl.randomness.gridded import increments, spacing
from privctl.randomness.keystream import BlockKeystream
from tests.few import few

LEVEL = 1e-9
ZEROS = memoryview(bytes(4 * BLOCK))


# The law: counts of cells against the Gaussian's mass in them, by mpmath.


def masses(offset: float, step: float, reach: int) -> np.ndarray:
    """The probability that the integer nearest to (offset + Z) / step is -reach, ..., reach; last, any other."""
    with mpmath.workdps(30):
        edges = [mpmath.ncdf((k - mpmath.mpf(1) / 2) * step - offset) for k in range(-reach, reach + 2)]
        inner = [float(b - a) for a, b in pairwise(edges)]
    return np.array([*inner, 1 - sum(inner)])


def surprise(draw: Callable[[np.ndarray, int], np.ndarray], offset: float, dtype: type = np.float32) -> float:
    """The p-value of a chi-square test of what ``draw`` makes of ``offset`` at standard deviation 1."""
    step, reach, blocks = spacing(1.0), 96, 12
    expected = masses(float(dtype(offset)), step, reach) * blocks * BLOCK
    counts = np.zeros(2 * reach + 2)
    for block in range(blocks):
        n = np.rint(draw(np.full(BLOCK, offset, dtype), block).astype(np.float64) / step).astype(int)
        n = np.where(np.abs(n) <= reach, n + reach, 2 * reach + 1)
        counts += np.bincount(n, minlength=2 * reach + 2)
    assert expected.min() > 5
    return float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)


def ours(values: np.ndarray, block: int) -> np.ndarray:
    NoiseSource(11).release(0, block, values, 1.0)
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", few([0.0, 0.37 * 2.0**-5, -0.5 * 2.0**-5, 1.234], 0, 1))
def test_cells_have_the_gaussian_mass(offset: float, dtype: type) -> None:
    assert surprise(ours, offset, dtype) > LEVEL


def half_the_noise(values: np.ndarray, block: int) -> np.ndarray:
    return np.where(np.arange(BLOCK) % 2, ours(values.copy(), block), values)


def rounded_down(values: np.ndarray, block: int) -> np.ndarray:
    noise = np.random.default_rng(block).normal(size=BLOCK)
    return np.floor((values + noise) / spacing(1.0)) * spacing(1.0)


def values_first(values: np.ndarray, block: int) -> np.ndarray:
    """Rounds value and noise apart: the law no longer moves with a value inside its cell."""
    noise = np.random.default_rng(block).normal(size=BLOCK)
    step = spacing(1.0)
    return (np.rint(values / step) + np.rint(noise / step)) * step


def one_percent_less(values: np.ndarray, block: int) -> np.ndarray:
    return np.rint((values + 0.99 * np.random.default_rng(block).normal(size=BLOCK)) / spacing(1.0)) * spacing(1.0)


def doubtful_ones_go_up(values: np.ndarray, block: int) -> np.ndarray:
    """Who is within a quarter of an edge is put above it instead of being refined."""
    sums = (values + np.random.default_rng(block).normal(size=BLOCK)) / spacing(1.0)
    return np.floor(sums + 0.75) * spacing(1.0)


@pytest.mark.parametrize("planted", [half_the_noise, rounded_down, values_first, one_percent_less, doubtful_ones_go_up])
def test_a_planted_fault_is_noticed(planted: Callable[[np.ndarray, int], np.ndarray]) -> None:
    assert surprise(planted, 0.37 * 2.0**-5) < LEVEL


# Every point: 60 digits of the bits that were drawn.


def exact_pair(first: int, second: int, following: Sequence[int], deep: Sequence[int] = ()) -> tuple[mpmath.mpf, ...]:
    """The deviates that these bits stand for, each number in the middle of what they leave open."""
    cell = first if first >= 0 else ~first
    upper = cell >= 1 << 30
    edge = (1 << 31) - 1 - cell if upper else cell
    bits, number = 95, edge << 64 | following[0]
    for word in deep:
        bits, number = bits + 64, number << 64 | word
    share = (mpmath.mpf(number) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** bits
    radius = mpmath.sqrt(-2 * (mpmath.log1p(-share) if upper else mpmath.log(share)))
    angle = mpmath.pi * (second + (mpmath.mpf(following[1]) + 0.5) / 2**64) / 2**31
    return radius * mpmath.cos(angle), radius * mpmath.sin(angle), radius


def test_float64_deviates_are_within_their_bound_of_exact_ones() -> None:
    ends = [0, -1, 1, -2, 2**30 - 1, -(2**30), 2**30, 2**31 - 1, -(2**31), 2**31 - 2, 2**19, 2**31 - 2**19]
    turns = [0, -(2**31), 2**31 - 1, 2**30, -(2**30), 2**29, 7, -1, 2**30 - 1, 12345, 3 * 2**29, -5]
    source = np.random.default_rng(0)
    first = np.array(ends * 3 + source.integers(-(2**31), 2**31, 300).tolist(), np.int32)
    second = np.array(turns * 3 + source.integers(-(2**31), 2**31, 300).tolist(), np.int32)
    following = source.integers(0, 1 << 64, 2 * len(first), np.uint64)
    following[: len(ends)], following[len(ends) : 2 * len(ends)] = 1 << 54, (1 << 64) - 1
    found = deviates.float64_deviates(first, second, following, lambda count: [])
    with mpmath.workdps(60):
        for i in range(len(first)):
            *pair, radius = exact_pair(
                int(first[i]), int(second[i]), (int(following[i]), int(following[len(first) + i]))
            )
            for value, exact in zip(found[:, i], pair, strict=True):
                assert abs(mpmath.mpf(float(value)) - exact) <= FINE * radius, (first[i], second[i])


@pytest.mark.parametrize("word", [0, -1])
def test_a_radius_reaches_as_far_as_its_bits_have_zeros(word: int) -> None:
    """Bits are added until 53 of them count: ten words of zeros go past 37 standard deviations."""
    words = [[5, 1], [0] * 9 + [1 << 63, 12345], [0, 77, 99]]

    def deep(count: int) -> list[int]:
        rounds = count // len(words)
        return [word[r] if r < len(word) else 1 << 40 for r in range(rounds) for word in words]

    following = np.array([3, 0, 0, 9, 9, 9], np.uint64)
    first, second = np.full(3, word, np.int32), np.full(3, 1 << 28, np.int32)
    found = deviates.float64_deviates(first, second, following, deep)
    with mpmath.workdps(60):
        for i, each in enumerate(words):
            *pair, radius = exact_pair(word, 1 << 28, (int(following[i]), 9), each)
            for value, exact in zip(found[:, i], pair, strict=True):
                assert abs(mpmath.mpf(float(value)) - exact) <= FINE * radius
    assert np.hypot(*found)[1] > 29


def test_float32_deviates_keep_their_bound_on_any_words() -> None:
    assert deviates.float32_is_fast()
    pairs = 1 << 17
    words = np.random.default_rng(1).integers(-(2**31), 2**31, 2 * pairs).astype(np.int32)
    found = np.empty(2 * pairs, np.float32)
    edge = deviates.float32_deviates(
        words[:pairs], words[pairs:], 1.0, [np.empty(pairs, np.float32) for _ in range(3)], found
    )
    for bits in (0, 1 << 63, (1 << 64) - 1):
        following = np.full(2 * pairs, bits, np.uint64)
        error = np.abs(
            found.reshape(2, -1) - deviates.float64_deviates(words[:pairs], words[pairs:], following, lambda count: [])
        )
        error[:, edge] = 0
        assert error.max() < 0.75 * FAST
    assert len(edge) < pairs / 500


@pytest.mark.parametrize("stddevs", [(0.0123,), (1.7e-5, 0.02, 0.0201), (5.0, 300.0)])
@pytest.mark.parametrize("size", [BLOCK, 4097])
def test_float32_finds_the_points_that_float64_finds(
    stddevs: tuple[float, ...], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: near the cells' edges as well, and for weights of thousands of grid steps."""
    values = (np.random.default_rng(2).normal(size=size) * np.geomspace(1e-3, 3e3, size)).astype(np.float32)
    quick = [values.copy() for _ in stddevs]
    NoiseSource(3).release_nested(range(len(stddevs)), 0, values, stddevs, quick)
    exact = [np.empty(size) for _ in stddevs]
    NoiseSource(3).release_nested(range(len(stddevs)), 0, values.astype(np.float64), stddevs, exact)
    for one, other in zip(quick, exact, strict=True):
        assert np.array_equal(one, other.astype(np.float32))
    monkeypatch.setattr(gridded, "_release_float64", lambda *_: None)
    bare = [values.copy() for _ in stddevs]
    NoiseSource(3).release_nested(range(len(stddevs)), 0, values, stddevs, bare)
    assert any((one != other).any() for one, other in zip(quick, bare, strict=True)), "some are refined"


def test_points_near_an_edge_are_those_of_60_digits() -> None:
    """Values are put where the sum lies closest to an edge by float32; the points must be the exact sums' own."""
    source, size, stddev = NoiseSource(4), 2000, 1.0
    step, pairs = spacing(stddev), size // 2
    place = BlockKeystream(source.keystream, 0, 0)
    words = place.leading(size, ZEROS, bytearray(4 * BLOCK + 16)).copy()
    noise = np.empty(size, np.float32)
    edge = deviates.float32_deviates(
        words[:pairs], words[pairs:], 1 / step, [np.empty(pairs, np.float32) for _ in range(3)], noise
    )
    # x / g = 1/2 - noise + a hair: the float32 sum cannot decide.
    hairs = np.random.default_rng(5).choice([-1, 0, 1], size) * 2.0**-16
    values = ((0.5 - noise.astype(np.float64) + hairs) * step).astype(np.float32)
    released = values.copy()
    source.release(0, 0, released, stddev)
    following = place.following(np.arange(pairs))
    wrong = 0
    with mpmath.workdps(60):
        for i in range(pairs):
            bits = int(following[i]), int(following[pairs + i])
            *pair, _ = exact_pair(int(words[i]), int(words[pairs + i]), bits)
            for entry, deviate in zip((i, pairs + i), pair, strict=True):
                point = mpmath.nint((mpmath.mpf(float(values[entry])) + deviate) / step) * step
                assert float(point) == released[entry], entry
                wrong += float(point) != np.rint((values[entry] + np.float32(step) * noise[entry]) / step) * step
    assert len(edge) < 10
    assert wrong > 100, "float32 alone would get many of these wrong"


# Signs of zero, huge and tiny numbers, what is not finite.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, -1.0])
def test_no_zero_has_a_sign(dtype: type, offset: float) -> None:
    values = np.full(BLOCK, offset, dtype)
    NoiseSource(6).release(0, 0, values, 1.0)
    zeros = values[values == 0]
    assert len(zeros) > 100
    assert not np.signbit(zeros).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_too_large_for_the_grid_stays(dtype: type) -> None:
    large = np.array([1e30, -3e38, 2.0**60, np.finfo(dtype).max], dtype)
    for stddev in (1e-38, 1e-3, 1.0):
        values = large.copy()
        NoiseSource(7).release(0, 0, values, stddev)
        assert np.array_equal(values, large)


def test_what_is_not_finite_stays_so_and_harms_no_other() -> None:
    values = np.zeros(1000, np.float32)
    values[[3, 500, 999]] = math.nan, math.inf, -math.inf
    NoiseSource(8).release(0, 0, values, 1.0)
    assert np.isnan(values[3])
    assert values[500] == math.inf
    assert values[999] == -math.inf
    assert np.isfinite(values).sum() == 997
    assert 0.9 < values[np.isfinite(values)].std() < 1.1


@pytest.mark.parametrize("stddev", [1.0, 0.00976052988, 3e-7, 1e-300, 4.0])
def test_the_grid_is_a_power_of_two_between_a_32nd_and_a_64th(stddev: float) -> None:
    step = spacing(stddev)
    assert math.frexp(step)[0] == 0.5
    assert stddev / 64 < step <= stddev / 32


def test_increments_are_never_rounded_down() -> None:
    stddevs = (0.1, 0.1000001, 0.7, 3.0)
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for increment, stddev in zip(increments(stddevs), stddevs, strict=True):
            total += mpmath.mpf(increment) ** 2
            assert total >= mpmath.mpf(stddev) ** 2
            assert total <= mpmath.mpf(stddev) ** 2 * (1 + mpmath.mpf(2) ** -30)
