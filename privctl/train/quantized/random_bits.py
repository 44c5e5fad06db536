"""Random words for stochastic rounding, indexed by example, layer, call and role.

An example's words do not depend on the rest of its batch: not on the other examples, its row, how the batch was split,
or which process has it. For a given seed its rounded gradient is thus a function of that example alone, as clipping
requires: if words were assigned by row, leaving out one example would change the rounding, and so the contributions, of
all later ones. The seed need not be secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext

_DOMAIN = b"privctl rounding 1"
_AES_BLOCK = 16
_WORD_BYTES = 4
_STEPS, _KEYS, _LAYERS, _CALLS = 1 << 64, 1 << 64, 1 << 14, 1 << 16


class Role(IntEnum):
    """Which operand of a layer is rounded."""

    INPUT = 0
    GRADIENT = 1
    WEIGHT = 2


@dataclass(frozen=True, slots=True)
class RoundingSite:
    """A layer's number (below 2^14), the index of its call (below 2^16), and which of its operands is rounded."""

    layer: int
    call: int
    role: Role

    def __post_init__(self) -> None:
        if not (0 <= self.layer < _LAYERS and 0 <= self.call < _CALLS):
            raise ValueError(f"layer {self.layer} and call {self.call}; words have layers below 2^14, calls below 2^16")


class RandomBits:
    """The words of one ``step`` (below 2^64), regenerated from ``seed`` whenever they are needed and never stored."""

    def __init__(self, seed: bytes, step: int) -> None:
        if not 0 <= step < _STEPS:
            raise ValueError(f"step {step}; words have steps from 0 to below 2^64")
        key = hashlib.sha256(_DOMAIN + b"\0" + step.to_bytes(8, "big") + seed).digest()[:16]
        self._cipher = algorithms.AES(key)

    def stream(self, key: int, place: RoundingSite) -> AEADEncryptionContext:
        """The AES-128-CTR keystream of the example with ``key`` (below 2^64) at ``place``.

        GCM encrypts with AES-CTR from counter nonce | 2 (NIST SP 800-38D, 7.1); its tag is not used. It gives the same
        bits as plain counter mode from faster code, and is faster than non-cryptographic generators.
        """
        return Cipher(self._cipher, modes.GCM(_nonce(key, place))).encryptor()

    def hash_words(self, keys: Sequence[int], place: RoundingSite, count: int, device: torch.device) -> Tensor:
        """Words (n, count) int32 for devices where a cipher is slow: a hash of the position and two keyed numbers.

        The hash is MurmurHash3's finalizer (Appleby 2011), with one number added to the position and the other mixed in
        between the two multiplications. The words differ from those of ``stream`` and are not cryptographic.
        """
        blocks = b"".join(_nonce(key, place) + bytes(4) for key in keys)
        encrypted = Cipher(self._cipher, modes.ECB()).encryptor().update(blocks)  # noqa: S305
        numbers = torch.from_numpy(np.frombuffer(encrypted, np.int32).reshape(-1, 4).copy()).to(device)
        positions = torch.arange(count, dtype=torch.int32, device=device)
        return mix(positions + numbers[:, :1], numbers[:, 1:2])


class KeystreamBuffer:
    """A CPU buffer for ``count`` words, and zeros to encrypt into it."""

    def __init__(self, count: int) -> None:
        self.zeros = memoryview(bytes(_WORD_BYTES * count))
        memory = bytearray(
            _WORD_BYTES * count + _AES_BLOCK
        )  # the cipher requires a buffer one block longer than its output
        self.target = memoryview(memory)
        self.words = torch.frombuffer(memory, dtype=torch.int32, count=count)


class ExampleBits:
    """Writes the words of n examples consecutively into ``buffer``, ``words_each`` per example."""

    def __init__(
        self, words: RandomBits, keys: Sequence[int], place: RoundingSite, words_each: int, buffer: KeystreamBuffer
    ) -> None:
        self._words, self._keys, self._place, self._each, self._buffer = words, keys, place, words_each, buffer
        self._open: AEADEncryptionContext | None = None

    def next(self, start: int, stop: int) -> Tensor:
        """Words ``start`` to ``stop`` over all examples; calls must be consecutive, and each overwrites the last."""
        position, first = 0, start
        while start < stop:
            example, inside = divmod(start, self._each)
            if inside == 0:
                self._open = self._words.stream(self._keys[example], self._place)
            assert self._open is not None
            size = _WORD_BYTES * (min(stop, (example + 1) * self._each) - start)
            self._open.update_into(self._buffer.zeros[:size], self._buffer.target[position:])
            position, start = position + size, start + size // _WORD_BYTES
        return self._buffer.words[: stop - first]


def mix(values: Tensor, between: Tensor | int) -> Tensor:
    """MurmurHash3's finalizer on int32, in place, with ``between`` mixed in halfway."""
    values.bitwise_xor_(_shift(values, 16)).mul_(-2048144789)  # 0x85ebca6b
    values.bitwise_xor_(between)
    values.bitwise_xor_(_shift(values, 13)).mul_(-1028477387)  # 0xc2b2ae35
    return values.bitwise_xor_(_shift(values, 16))


def _shift(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return values.bitwise_right_shift(bits).bitwise_and_((1 << (32 - bits)) - 1)


def _nonce(key: int, place: RoundingSite) -> bytes:
    """The 96-bit nonce: key (64) | layer (14) | role (2) | call (16)."""
    if not 0 <= key < _KEYS:
        raise ValueError(f"key {key}; an example's key is a number from 0 to below 2^64")
    return (key << 32 | place.layer << 18 | place.role << 16 | place.call).to_bytes(12, "big")
