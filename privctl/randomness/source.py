"""Noise drawn from a cryptographic keystream, under a key from the operating system.

Every deviate has a fixed place in the keystream, given by (stream, position). So threads draw without sharing state,
and drawing a stream twice gives the same noise, which tied weights need.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privctl.randomness import gridded
from privctl.randomness.compiled.release import release as release_compiled
from privctl.randomness.compiled.release import suits_kernel
from privctl.randomness.keystream import WORDS, BlockKeystream, Keystream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.randomness.compiled.release import Kernel

#: The most values per block; each block has its own part of the keystream.
BLOCK = 1 << 18
#: Compiling machine code takes about as long as it saves on this many values.
WORTH_COMPILING = 1 << 25


class NoiseSource:
    """Independent Gaussian noise, addressed by stream and position."""

    def __init__(self, seed: int | None = None, *, key: bytes | None = None) -> None:
        """Use a fresh key from the operating system or, for tests and without privacy, one derived from ``seed``.

        ``key`` is the key of another source, for a process that must draw the same noise.
        """
        self.seeded = seed is not None
        fresh = os.urandom(32) if seed is None else hashlib.sha256(b"privctl noise seed %d" % seed).digest()
        self._key = fresh if key is None else key
        self.keystream = Keystream(self._key)
        self._local = threading.local()
        self._code: Mapping[str, Kernel] = {}

    def compile(self, kinds: Collection[str]) -> str:
        """Use machine code for numbers stored as ``kinds``, if llvmlite is installed; it gives the same numbers faster.

        Returns the reason if the code fails its self-test and is not used, else "".
        """
        from privctl.randomness.compiled.selection import tested_code  # not needed by most callers

        self._code, fault = tested_code(kinds)
        return fault

    @property
    def key(self) -> bytes:
        """The secret key, for the other processes of this run only."""
        return self._key

    @property
    def compilers(self) -> tuple[str, ...]:
        """The packages that compiled the machine code in use."""
        return ("llvmlite",) if self._code else ()

    @property
    def description(self) -> str:
        """The description of the noise source in reports."""
        key = "a key made from a given seed" if self.seeded else "a key from the operating system"
        return f"AES-256-CTR keystream under {key}, Box-Muller, rounded onto a grid"

    def release(self, stream: int, block: int, values: NDArray[np.floating], stddev: float) -> None:
        """Add N(0, stddev^2) noise to ``values`` (float32 or float64, at most ``BLOCK``) in place, rounded onto a grid.

        See ``gridded.release``. ``block`` (below 2^48) and ``stream`` (below 2^40) select the deviates; use the same
        pair only with one length, and more than once only for equal values.
        """
        if values.dtype == np.float32 and len(values) <= BLOCK and self.takes_stored("F32", values, stddev):
            self.release_stored(stream, block, values, "F32", stddev)
            return
        self.release_nested([stream], block, values, [stddev], [values])

    def takes_stored(self, kind: str, stored: NDArray[np.generic], stddev: float) -> bool:
        """Whether ``release_stored`` may be called for numbers ``stored`` as ``kind`` (F32, F16 or BF16)."""
        return kind in self._code and suits_kernel(stored, stddev)

    def release_stored(self, stream: int, block: int, stored: NDArray[np.generic], kind: str, stddev: float) -> float:
        """As ``release``, by machine code, for numbers ``stored`` as ``kind``, to which results are rounded.

        Returns the largest magnitude among the original numbers; not finite if one of them is not.
        """
        keystream = BlockKeystream(self.keystream, stream, block)
        return release_compiled(stored, kind, stddev, keystream, self._scratch(), self._code[kind])

    def release_nested(
        self,
        streams: Sequence[int],
        block: int,
        values: NDArray[np.floating],
        stddevs: Sequence[float],
        outputs: Sequence[NDArray[np.floating]],
    ) -> None:
        """Write ``values`` + N(0, stddev^2) into each of ``outputs``, on the grid of its ``stddev``.

        ``stddevs`` must increase; each sum is the previous one plus fresh noise from its own stream. ``outputs`` have
        the dtype of ``values``; the first may be ``values`` itself.
        """
        if len(values) > BLOCK:
            raise ValueError(f"there are {len(values)} values; a block has {BLOCK}")
        if values.dtype not in (np.float32, np.float64):
            raise ValueError(f"values are {values.dtype}; noise is added to float32 or float64")
        keystreams = [BlockKeystream(self.keystream, stream, block) for stream in streams]
        gridded.release(values, stddevs, outputs, keystreams, self._scratch())

    def words(self, stream: int, block: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words, from bits that no deviate uses."""
        return np.frombuffer(self.keystream.drawn(stream, block, 8 * count, lane=WORDS), np.uint64, count)

    def forget_buffers(self) -> None:
        """Free this thread's work arrays; the next release allocates new ones."""
        if hasattr(self._local, "scratch"):
            del self._local.scratch

    def _scratch(self) -> gridded.BlockBuffers:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = gridded.BlockBuffers(BLOCK)
        scratch: gridded.BlockBuffers = self._local.scratch
        return scratch
