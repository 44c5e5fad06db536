"""Releases a block of numbers by the compiled kernel, and in float64 the pairs that it leaves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privctl.randomness import gridded
from privctl.randomness.formats import narrow, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The kernel's deviates are within (R + 1) ``CLOSE`` of the ideal ones, R the radius of the pair; see ``program``.
CLOSE = 2.0**-20
#: The tolerated distance of a float64 sum from a grid point, in steps, before the deviate's error is subtracted. The
#: sum is below 2^9 steps, so its rounding error is at most 2^-44.
_FINE_NEAR = 0.5 - 2.0**-40
#: Pairs that the kernel processes at a time; the remaining pairs are computed in float64.
GROUP = 16
#: Blocks with fewer numbers are faster without the kernel.
LEAST = 2048


class Kernel(Protocol):
    """The part of ``program.MachineCode`` that releases numbers of one format."""

    def release(self, *arguments: int) -> int:
        """See ``program``."""
        ...


def suits_kernel(stored: NDArray[np.generic], stddev: float) -> bool:
    """Whether the kernel can, and should, add noise of ``stddev`` to the array ``stored``."""
    return len(stored) >= LEAST and stored.flags.carray and gridded.suits_float32([stddev])


def release(
    stored: NDArray[np.generic],
    kind: str,
    stddev: float,
    bits: gridded.BlockBits,
    scratch: gridded.BlockBuffers,
    code: Kernel,
) -> float:
    """Replace numbers (n,) ``stored`` as ``kind`` by their sums with noise, on its grid, as ``gridded.release`` does.

    Returns the largest magnitude among the original numbers; not finite if one of them is not.
    """
    count, pairs = len(stored), (len(stored) + 1) // 2
    groups = (count - pairs) // GROUP
    words, doubtful = bits.leading(2 * pairs, scratch.zeros, scratch.stream(0)), scratch.marks(pairs)
    step = gridded.spacing(stddev)
    singles = np.array([-2 * stddev * stddev, step, 1 / step, gridded.TO_STEPS * step, *_near(stddev)], np.float32)
    doubles = np.array([-2 * stddev * stddev, 1.5 * 2.0**52 * step, _FINE_NEAR * step])
    places = stored.ctypes.data, words.ctypes.data
    largest = code.release(
        places[0], places[0] + pairs * stored.itemsize, places[1], places[1] + pairs * words.itemsize,
        doubtful.ctypes.data, singles.ctypes.data, doubles.ctypes.data, groups,
    )  # fmt: skip
    doubtful[groups * GROUP :] = True
    of_groups = float(np.array(largest, np.uint32).view(np.float32))
    if not doubtful.any():
        return of_groups
    chosen = doubtful.nonzero()[0]
    seconds = chosen + pairs
    remaining = np.concatenate([chosen, seconds[seconds < count]])
    values = np.empty(len(remaining), np.float32)
    widen(stored[remaining], kind, values)
    (exact,) = gridded.refined(values, chosen, [stddev], [words], [bits])
    released = np.empty(len(remaining), stored.dtype)
    narrow(exact, kind, released)
    stored[remaining] = released
    return max(of_groups, gridded.largest(values)) if math.isfinite(of_groups) else of_groups


def _near(stddev: float) -> tuple[float, float]:
    """(a, b): a float32 sum within a - b R stddev of a grid point has the same nearest grid point as the exact sum.

    The deviate's error is (R + 1) ``CLOSE``. The value is reduced exactly to at most half a step, so the rounding error
    of the sum is 2^-24 of half a step and the noise.
    """
    step = gridded.spacing(stddev)
    fixed = 1.001 * (CLOSE * stddev + 2.0**-25 * step)
    return (0.5 - 2.0**-23) * step - fixed, 1.001 * (CLOSE + 2.0**-24)
