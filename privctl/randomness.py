"""Gaussian noise from a cryptographic keystream.

AES-256 in counter mode under a key from the operating system gives the bits (drawn as AES-GCM's encryption of zeros,
the same bits from faster code); Box-Muller turns them into normal deviates. The radius uses 31 bits where that is
plenty and 63 where it is not (the tail, and close to zero), so the tail reaches past 9 standard deviations. Float32
output is drawn in float32, float64 in float64.

Every deviate has a fixed place in the keystream, given by (stream, position): threads draw without sharing state, and
a stream drawn twice is the same noise (which tied weights need).
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext
    from numpy.typing import NDArray

#: Deviates are made in blocks of this many, each from its own stretch of keystream.
BLOCK = 1 << 18

_PAIRS = BLOCK // 2
_AES_BLOCK = 16
#: Uniforms this close to 0 or 1 are drawn again with 32 more bits, in double precision.
_EDGE = np.float32(2.0**-12)
#: Standard deviations whose square float32 holds; outside, noise would vanish or overflow under the root.
_FOLDABLE = (1e-15, 1e15)


class NoiseSource:
    """Independent standard normal deviates, addressed by stream and position."""

    def __init__(self, seed: int | None = None, *, key: bytes | None = None) -> None:
        """A fresh key from the operating system, or, for tests, one made from ``seed`` (no privacy then).

        ``key`` is another source's, in a process that must draw the same.
        """
        self.seeded = seed is not None
        fresh = os.urandom(32) if seed is None else hashlib.sha256(b"privctl noise seed %d" % seed).digest()
        self._key = fresh if key is None else key
        self._local = threading.local()

    @property
    def key(self) -> bytes:
        """The secret itself, for fellow processes only."""
        return self._key

    @property
    def description(self) -> str:
        """What a report says of where the noise came from."""
        key = "a key made from a given seed" if self.seeded else "a key from the operating system"
        return f"AES-256-CTR keystream under {key}, Box-Muller"

    def normal(self, stream: int, block: int, out: NDArray[np.floating], stddev: float) -> None:
        """Fill ``out`` (float32 or float64, at most ``BLOCK`` long) with N(0, stddev^2).

        ``block`` (below 2^48) and ``stream`` (below 2^40) say which deviates; ask for one place at one length only.
        """
        if len(out) > BLOCK:
            raise ValueError(f"out holds {len(out)} deviates; a block has {BLOCK}")
        if out.dtype == np.float64:
            self._normal64(stream, block, out, stddev)
        elif out.dtype == np.float32:
            self._normal32(stream, block, out, stddev)
        else:
            raise ValueError(f"out is {out.dtype}; noise is drawn as float32 or float64")

    def words(self, stream: int, block: int, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words; their place is no deviate's."""
        return np.frombuffer(self._keystream(stream, block, 8 * count, lane=3), np.uint64, count)

    def _normal32(self, stream: int, block: int, out: NDArray[np.floating], stddev: float) -> None:
        pairs = (len(out) + 1) // 2
        scratch = self._scratch()
        words = self._words(stream, block, 2 * pairs, np.int32)
        u, angle, wave = (part[:pairs] for part in scratch.floats)
        # A signed word k stands for the cell |k + 1/2| of width 1 out of 2^31.
        np.multiply(words[:pairs], np.float32(2.0**-31), out=u, dtype=np.float32, casting="unsafe")
        np.add(u, np.float32(2.0**-32), out=u)
        np.abs(u, out=u)
        edge = np.flatnonzero((u < _EDGE) | (u > 1 - _EDGE))
        np.log(u, out=u)
        if len(edge):
            u[edge] = self._log_uniform(words[:pairs][edge].astype(np.int64), stream, block)
        folded = stddev if _FOLDABLE[0] <= stddev <= _FOLDABLE[1] else 1.0
        np.multiply(u, np.float32(-2.0 * folded * folded), out=u)
        np.sqrt(u, out=u)
        np.multiply(words[pairs:], np.float32(math.pi * 2.0**-31), out=angle, dtype=np.float32, casting="unsafe")
        np.cos(angle, out=wave)
        np.multiply(wave, u, out=out[:pairs])
        np.sin(angle, out=angle)
        np.multiply(angle[: len(out) - pairs], u[: len(out) - pairs], out=out[pairs:])
        if folded != stddev:
            np.multiply(out, stddev, out=out, casting="same_kind")

    def _log_uniform(self, words: NDArray[np.int64], stream: int, block: int) -> NDArray[np.float64]:
        """Log of the uniforms whose 31-bit cells are ``words``, each placed inside its cell by 32 fresh bits."""
        extra = self._keystream(stream, block, 4 * len(words), lane=1)
        within = (np.frombuffer(extra, np.uint32, len(words)) + 0.5) * 2.0**-32
        cell = np.where(words >= 0, words, -words - 1)
        log: NDArray[np.float64] = np.log((cell + within) * 2.0**-31)
        return log

    def _normal64(self, stream: int, block: int, out: NDArray[np.floating], stddev: float) -> None:
        pairs = (len(out) + 1) // 2
        words = np.frombuffer(self._keystream(stream, block, 16 * pairs, lane=2), np.int64, 2 * pairs)
        u = np.abs(words[:pairs] * 2.0**-63 + 2.0**-64)
        radius = stddev * np.sqrt(-2.0 * np.log(np.minimum(u, 1.0)))
        angle = words[pairs:] * (math.pi * 2.0**-63)
        out[:pairs] = radius * np.cos(angle)
        out[pairs:] = (radius * np.sin(angle))[: len(out) - pairs]

    def _words(self, stream: int, block: int, count: int, dtype: type[np.int32]) -> NDArray[np.int32]:
        """``count`` words of lane 0, in this thread's scratch buffer."""
        scratch = self._scratch()
        size = -(-4 * count // _AES_BLOCK) * _AES_BLOCK
        self._cipher(stream, block, 0).update_into(scratch.zeros[:size], scratch.stream)
        return np.frombuffer(scratch.stream, dtype, count)

    def _keystream(self, stream: int, block: int, size: int, lane: int) -> bytes:
        return self._cipher(stream, block, lane).update(bytes(size))

    def _cipher(self, stream: int, block: int, lane: int) -> AEADEncryptionContext:
        """The keystream of one place: GCM's 96-bit nonce is lane (8 bits) | stream (40) | block (48).

        GCM encrypts with AES-CTR from counter nonce | 2 (NIST SP 800-38D, 7.1); its tag is never asked for.
        """
        nonce = ((lane << 40 | stream) << 48 | block).to_bytes(12, "big")
        return Cipher(algorithms.AES(self._key), modes.GCM(nonce)).encryptor()

    def _scratch(self) -> _Scratch:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = _Scratch()
        scratch: _Scratch = self._local.scratch
        return scratch


class _Scratch:
    """One thread's working memory, small enough to stay in its cache."""

    def __init__(self) -> None:
        size = BLOCK * 4
        self.zeros = memoryview(bytes(size))
        self.stream = bytearray(size + _AES_BLOCK)
        self.floats = [np.empty(_PAIRS, np.float32) for _ in range(3)]
