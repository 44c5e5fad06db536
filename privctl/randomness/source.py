"""A cryptographic keystream, and what is drawn from it.

AES-256 in counter mode under a key from the operating system gives the bits (drawn as AES-GCM's encryption of zeros,
the same bits from faster code).

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
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privctl.randomness import gridded
from privctl.randomness.compiled.release import release as release_compiled
from privctl.randomness.compiled.release import takes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext
    from numpy.typing import NDArray

    from privctl.randomness.compiled.release import Kernel

#: Values get noise in blocks of at most this many, each from its own stretch of keystream.
BLOCK = 1 << 18

_AES_BLOCK = 16
#: Lanes of the keystream at one place: the leading bits of deviates, bits that follow them where they are needed, bits
#: that follow those next to never, and words that are no deviate's.
_LEADING, _FOLLOWING, _DEEP, _WORDS = 0, 1, 2, 3
#: GCM encrypts with AES-CTR from counter nonce | 2 (NIST SP 800-38D, 7.1).
_FIRST_COUNTER = 2


class NoiseSource:
    """Independent Gaussian noise, addressed by stream and position."""

    def __init__(self, seed: int | None = None, *, key: bytes | None = None) -> None:
        """A fresh key from the operating system, or, for tests, one made from ``seed`` (no privacy then).

        ``key`` is another source's, in a process that must draw the same.
        """
        self.seeded = seed is not None
        fresh = os.urandom(32) if seed is None else hashlib.sha256(b"privctl noise seed %d" % seed).digest()
        self._key = fresh if key is None else key
        self._cipher_key = algorithms.AES(self._key)
        self._local = threading.local()
        self._code: Mapping[str, Kernel] = {}

    def compile(self, kinds: Collection[str]) -> str:
        """Release numbers stored as ``kinds`` by machine code, which gives the same ones sooner.

        Made where llvmlite is installed. Returns why not where it is, but the code fails its test; "" otherwise.
        """
        from privctl.randomness.compiled.selection import tested_code  # which draws from a source

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
        keystream = BlockKeystream(self, stream, block)
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
        keystreams = [BlockKeystream(self, stream, block) for stream in streams]
        gridded.release(values, stddevs, outputs, keystreams, self._scratch())

    def words(self, stream: int, block: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words; their place is no deviate's."""
        return np.frombuffer(self._keystream(stream, block, 8 * count, lane=_WORDS), np.uint64, count)

    def _keystream(self, stream: int, block: int, size: int, lane: int) -> bytes:
        return self._cipher(stream, block, lane).update(bytes(size))

    def _keystream_at(self, stream: int, block: int, places: NDArray[np.intp], lane: int) -> bytes:
        """The 16 bytes that the keystream has at each of ``places``, which are counted in so many bytes."""
        counters = np.empty((len(places), 4), ">u4")
        counters[:, :3] = np.frombuffer(_nonce(stream, block, lane), ">u4")
        counters[:, 3] = places + _FIRST_COUNTER
        # No message is encrypted: a keystream is what the cipher makes of its counters.
        return Cipher(self._cipher_key, modes.ECB()).encryptor().update(counters.tobytes())  # noqa: S305

    def _cipher(self, stream: int, block: int, lane: int) -> AEADEncryptionContext:
        """The keystream of one place, as GCM encrypts; its tag is never asked for."""
        return Cipher(self._cipher_key, modes.GCM(_nonce(stream, block, lane))).encryptor()

    def forget_buffers(self) -> None:
        """Let go of this thread's working memory, which the next release makes anew."""
        if hasattr(self._local, "scratch"):
            del self._local.scratch

    def _scratch(self) -> gridded.BlockBuffers:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = gridded.BlockBuffers(BLOCK)
        scratch: gridded.BlockBuffers = self._local.scratch
        return scratch


def _nonce(stream: int, block: int, lane: int) -> bytes:
    """GCM's 96 bits: lane (8) | stream (40) | block (48)."""
    return ((lane << 40 | stream) << 48 | block).to_bytes(12, "big")


class BlockKeystream:
    """The keystream of one block of one stream; see ``gridded.BlockBits``."""

    def __init__(self, source: NoiseSource, stream: int, block: int) -> None:
        self._source, self._stream, self._block = source, stream, block

    def leading(self, count: int, zeros: memoryview, out: bytearray) -> NDArray[np.int32]:
        """See ``gridded.BlockBits``."""
        size = -(-4 * count // _AES_BLOCK) * _AES_BLOCK
        cipher, target = self._source._cipher(self._stream, self._block, _LEADING), memoryview(out)
        for start in range(0, size, len(zeros)):
            cipher.update_into(zeros[: size - start], target[start:])
        return np.frombuffer(out, np.int32, count)

    def following(self, pairs: NDArray[np.intp]) -> NDArray[np.uint64]:
        """See ``gridded.BlockBits``."""
        raw = self._source._keystream_at(self._stream, self._block, pairs, _FOLLOWING)
        return np.frombuffer(raw, np.uint64).reshape(-1, 2).T.ravel()

    def deep(self, count: int) -> list[int]:
        """See ``gridded.BlockBits``."""
        raw = self._source._keystream(self._stream, self._block, 8 * count, _DEEP)
        return [int(word) for word in np.frombuffer(raw, np.uint64, count)]
