"""Converts stored weights to numbers, and recovers the noise in them before rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]

#: Formats that noise is added to, with the numpy view of their bytes.
VIEWS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def numbers(stored: NDArray[Any], dtype: str) -> Floats:
    """The weights as float64, which represents all formats exactly."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def count_off_grid(stored: NDArray[Any], dtype: str, grid: float) -> int:
    """The number of weights that are not multiples of ``grid``, a power of two.

    Where the format's spacing is larger, all its numbers are multiples; where it is smaller, it represents every grid
    point. So this is correct for half-precision formats too.
    """
    quick = dtype == "F32" and 1e-30 < grid < 1e30
    with np.errstate(over="ignore"):
        steps = stored * np.float32(1 / grid) if quick else numbers(stored, dtype) / grid
    return int(np.count_nonzero(steps != np.rint(steps)))


def deviates(
    before: NDArray[Any], after: NDArray[Any], dtype: str, stddev: float, coins: Floats, grid: float = 0.0
) -> Floats:
    """The noise in standard deviations, exactly N(0, 1) if it is Gaussian with ``stddev`` and was rounded as described.

    Sums are rounded once, to the format, or first to a ``grid``. A stored weight stands for all sums that round to it:
    ``coins``, uniform on (0, 1), choose the noise among them in proportion to the Gaussian's mass. All shapes are (n,).
    """
    start, end = numbers(before, dtype), numbers(after, dtype)
    down, up = neighbours(after, dtype)
    # Relative to the stored number, since F64 cannot represent the midpoint of two adjacent numbers.
    low, high = (down - end) / 2, (up - end) / 2
    if grid:
        low, high = _cells(low, high, grid, after.view(f"<u{after.itemsize}") % 2 == 0)
    low, high = (end - start + low) / stddev, (end - start + high) / stddev
    # Computed from the nearer tail, to preserve precision for large noise.
    mirrored = low + high > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    mass_low, mass_high = ndtr(low), ndtr(high)
    place = np.where(mass_high > 0, ndtri(mass_low + coins * (mass_high - mass_low)), (low + high) / 2)
    place = np.where(np.isfinite(place), place, (low + high) / 2)
    return np.where(mirrored, -place, place)


def _cells(low: Floats, high: Floats, grid: float, even: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The union of the grid cells whose points round into (low, high); ties at the ends go to the even number.

    All values are relative to the stored number, which is a grid point.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        first, last = np.ceil(low / grid), np.floor(high / grid)
        first += (first * grid == low) & ~even
        last -= (last * grid == high) & ~even
        return (first - 0.5) * grid, (last + 0.5) * grid


def neighbours(stored: NDArray[Any], dtype: str) -> tuple[Floats, Floats]:
    """The next numbers below and above ``stored`` (n,) that the format can represent."""
    if dtype != "BF16":
        ends = [np.nextafter(stored, stored.dtype.type(limit)) for limit in (-np.inf, np.inf)]
        return ends[0].astype(np.float64), ends[1].astype(np.float64)
    negative = stored >> 15 == 1
    towards, away = stored - np.uint16(1), stored + np.uint16(1)
    zero = stored & np.uint16(0x7FFF) == 0
    down = np.where(zero, np.uint16(0x8001), np.where(negative, away, towards))
    up = np.where(zero, np.uint16(0x0001), np.where(negative, towards, away))
    return numbers(down.astype(np.uint16), dtype), numbers(up.astype(np.uint16), dtype)
