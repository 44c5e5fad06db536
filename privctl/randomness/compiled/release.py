"""A block of numbers released by the kernel, and in float64 what it leaves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privctl.randomness import gridded
from privctl.randomness.formats import narrow, widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A deviate of the kernel's is within (R + 1) ``CLOSE`` of the ideal one, R its pair's radius; see ``program``.
CLOSE = 2.0**-20
#: How far from a grid point a sum in float64 may be, in steps, less the error of its deviate. It is below 2^9 steps, so
#: rounded by 2^-44 at most.
_FINE_NEAR = 0.5 - 2.0**-40
#: Pairs that the kernel takes at once; those that are left over are computed in float64.
GROUP = 16
#: Blocks of fewer numbers are quicker without it.
LEAST = 2048


class Kernel(Protocol):
    """What ``program.MachineCode`` does for numbers of one format."""

    def release(self, *arguments: int) -> int:
        """See ``program``."""
        ...


def takes(stored: NDArray[np.generic], stddev: float) -> bool:
    """Whether the kernel is for an array ``stored`` that gets noise of ``stddev``."""
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

    Returns the size of the largest number there was, which is not finite where one was not.
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
    if not doubtful.any():  # as in most blocks
        return of_groups
    chosen = doubtful.nonzero()[0]
    seconds = chosen + pairs
    left = np.concatenate([chosen, seconds[seconds < count]])
    values = np.empty(len(left), np.float32)
    widen(stored[left], kind, values)
    (exact,) = gridded.refined(values, chosen, [stddev], [words], [bits])
    released = np.empty(len(left), stored.dtype)
    narrow(exact, kind, released)
    stored[left] = released
    return max(of_groups, gridded.largest(values)) if math.isfinite(of_groups) else of_groups


def _near(stddev: float) -> tuple[float, float]:
    """How far from a grid point a float32 sum may be, so that the exact one is nearest to it too: a - b R stddev.

    The deviate errs by (R + 1) ``CLOSE``. The value is reduced to half a step at most, exactly, so the sum is rounded
    by 2^-24 of half a step and the noise.
    """
    step = gridded.spacing(stddev)
    fixed = 1.001 * (CLOSE * stddev + 2.0**-25 * step)
    return (0.5 - 2.0**-23) * step - fixed, 1.001 * (CLOSE + 2.0**-24)
