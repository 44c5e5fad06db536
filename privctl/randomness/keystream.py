"""A cryptographic keystream with random access.

The bits are those of AES-256 in counter mode, drawn as AES-GCM's encryption of zeros, which is faster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext
    from numpy.typing import NDArray

_AES_BLOCK = 16
#: Lanes of the keystream: the leading bits of deviates, further bits for the pairs that need them, still more bits for
#: very rare pairs, and words that are not used for deviates.
_LEADING, _FOLLOWING, _DEEP, WORDS = 0, 1, 2, 3
#: GCM encrypts with AES-CTR from counter nonce | 2 (NIST SP 800-38D, 7.1).
_FIRST_COUNTER = 2


def require_own_process(process: int) -> None:
    """Raise CommandError unless this is ``process``, the one (by its id) that made a key.

    A fork has the key of its parent: both would draw the same noise, and the difference of what they release has none.
    """
    if os.getpid() != process:
        raise CommandError(
            "this process was forked from the one that made the key of the noise and the batches, and the two would "
            "draw the same, so that their results together have no noise; begin the training in the process that makes "
            "its steps, after the fork"
        )


class Keystream:
    """The bits under one key of 32 bytes, addressed by stream (below 2^40), block (below 2^48) and lane.

    All methods raise CommandError in a fork of the process that made this object.
    """

    def __init__(self, key: bytes) -> None:
        self._key = algorithms.AES(key)
        self._process = os.getpid()

    def drawn(self, stream: int, block: int, size: int, lane: int) -> bytes:
        """The first ``size`` bytes of the keystream with this nonce."""
        return self.cipher(stream, block, lane).update(bytes(size))

    def drawn_at(self, stream: int, block: int, places: NDArray[np.intp], lane: int) -> bytes:
        """The 16-byte blocks of the keystream at each of ``places``, which are block indices."""
        require_own_process(self._process)
        counters = np.empty((len(places), 4), ">u4")
        counters[:, :3] = np.frombuffer(_nonce(stream, block, lane), ">u4")
        counters[:, 3] = places + _FIRST_COUNTER
        # No message is encrypted: a keystream is the encryption of counters.
        return Cipher(self._key, modes.ECB()).encryptor().update(counters.tobytes())  # noqa: S305

    def cipher(self, stream: int, block: int, lane: int) -> AEADEncryptionContext:
        """A GCM encryptor with this nonce, which gives the keystream when it encrypts zeros; its tag is not used."""
        require_own_process(self._process)
        return Cipher(self._key, modes.GCM(_nonce(stream, block, lane))).encryptor()


class BlockKeystream:
    """The keystream of one block of one stream; see ``gridded.BlockBits``."""

    def __init__(self, keystream: Keystream, stream: int, block: int) -> None:
        self._keystream, self._stream, self._block = keystream, stream, block

    def leading(self, count: int, zeros: memoryview, out: bytearray) -> NDArray[np.int32]:
        """See ``gridded.BlockBits``."""
        size = -(-4 * count // _AES_BLOCK) * _AES_BLOCK
        cipher, target = self._keystream.cipher(self._stream, self._block, _LEADING), memoryview(out)
        for start in range(0, size, len(zeros)):
            cipher.update_into(zeros[: size - start], target[start:])
        return np.frombuffer(out, np.int32, count)

    def following(self, pairs: NDArray[np.intp]) -> NDArray[np.uint64]:
        """See ``gridded.BlockBits``."""
        raw = self._keystream.drawn_at(self._stream, self._block, pairs, _FOLLOWING)
        return np.frombuffer(raw, np.uint64).reshape(-1, 2).T.ravel()

    def deep(self, count: int) -> list[int]:
        """See ``gridded.BlockBits``."""
        raw = self._keystream.drawn(self._stream, self._block, 8 * count, _DEEP)
        return [int(word) for word in np.frombuffer(raw, np.uint64, count)]


def _nonce(stream: int, block: int, lane: int) -> bytes:
    """The 96-bit GCM nonce: lane (8) | stream (40) | block (48)."""
    return ((lane << 40 | stream) << 48 | block).to_bytes(12, "big")
