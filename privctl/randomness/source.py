"""Noise that is drawn from a cryptographic keystream, under a key from the operating system.

Every deviate has a fixed place in the keystream, given by (stream, position): threads draw without sharing state, and
a stream drawn twice for the same values is the same noise (which tied weights need).
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
from privctl.randomness.compiled.release import takes
from privctl.randomness.keystream import WORDS, BlockKeystream, Keystream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.randomness.compiled.release import Kernel

#: Values get noise in blocks of at most this many, each from its own stretch of keystream.
BLOCK = 1 << 18


class NoiseSource:
    """Independent Gaussian noise, addressed by stream and position."""

    def __init__(self, seed: int | None = None, *, key: bytes | None = None) -> None:
        """A fresh key from the operating system, or, for tests, one made from ``seed`` (no privacy then).

        ``key`` is another source's, in a process that must draw the same.
        """
        self.seeded = seed is not None
        fresh = os.urandom(32) if seed is None else hashlib.sha256(b"privctl noise seed %d" % seed).digest()
        self._key = fresh if key is None else key
        self.keystream = Keystream(self._key)
        self._local = threading.local()
        self._code: Mapping[str, Kernel] = {}

    def compile(self, kinds: Collection[str]) -> str:
        """Release numbers stored as ``kinds`` by machine code, which gives the same ones sooner.

        Made where llvmlite is installed. Returns why not where it is, but the code fails its test; "" otherwise.
        """
        from privctl.randomness.compiled.selection import tested_code  # here, as few need it

        self._code, fault = tested_code(kinds)
        return fault

    @property
    def key(self) -> bytes:
        """The secret itself, for fellow processes only."""
        return self._key

    @property
    def compilers(self) -> tuple[str, ...]:
        """The packages that made machine code in use."""
        return ("llvmlite",) if self._code else ()

    @property
    def description(self) -> str:
        """What a report says of where the noise came from."""
        key = "a key made from a given seed" if self.seeded else "a key from the operating system"
        return f"AES-256-CTR keystream under {key}, Box-Muller, rounded onto a grid"

    def release(self, stream: int, block: int, values: NDArray[np.floating], stddev: float) -> None:
        """Replace ``values`` (float32 or float64, at most ``BLOCK``) by the sums with N(0, stddev^2) noise, on a grid.

        See ``gridded.release``. ``block`` (below 2^48) and ``stream`` (below 2^40) say which deviates; ask for one
        place at one length only, and twice for equal values only.
        """
        if values.dtype == np.float32 and len(values) <= BLOCK and self.takes_stored("F32", values, stddev):
            self.release_stored(stream, block, values, "F32", stddev)
            return
        self.release_nested([stream], block, values, [stddev], [values])

    def takes_stored(self, kind: str, stored: NDArray[np.generic], stddev: float) -> bool:
        """Whether ``release_stored`` may be called for numbers ``stored`` as ``kind`` (F32, F16 or BF16)."""
        return kind in self._code and takes(stored, stddev)

    def release_stored(self, stream: int, block: int, stored: NDArray[np.generic], kind: str, stddev: float) -> float:
        """As ``release``, for numbers as they are ``stored``, rounded to their format once more, by machine code.

        Returns the size of the largest there was, which is not finite where one was not.
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

        ``stddevs`` increase, and each sum is the one before plus fresh noise from its own stream. ``outputs`` have the
        type of ``values``; the first may be ``values`` itself.
        """
        if len(values) > BLOCK:
            raise ValueError(f"there are {len(values)} values; a block has {BLOCK}")
        if values.dtype not in (np.float32, np.float64):
            raise ValueError(f"values are {values.dtype}; noise is added to float32 or float64")
        keystreams = [BlockKeystream(self.keystream, stream, block) for stream in streams]
        gridded.release(values, stddevs, outputs, keystreams, self._scratch())

    def words(self, stream: int, block: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words; their place is no deviate's."""
        return np.frombuffer(self.keystream.drawn(stream, block, 8 * count, lane=WORDS), np.uint64, count)

    def forget_buffers(self) -> None:
        """Let go of this thread's working memory, which the next release makes anew."""
        if hasattr(self._local, "scratch"):
            del self._local.scratch

    def _scratch(self) -> gridded.BlockBuffers:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = gridded.BlockBuffers(BLOCK)
        scratch: gridded.BlockBuffers = self._local.scratch
        return scratch
