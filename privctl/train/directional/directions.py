"""Public random unit vectors, regenerated from a seed whenever they are needed and never stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from privctl.models.tasks.base import moved

#: Bytes of keystream expanded at a time; the result fits into a CPU's cache.
_CHUNK = 1 << 14
#: The same on a GPU, where temporary tensors then take 8 MiB.
_CHUNK_ON_GPU = 1 << 20
_DOMAIN = b"privctl direction 1"
_STEPS, _GROUPS = 1 << 56, 1 << 32


def direction(
    seed: bytes, step: int, group: int, shapes: Mapping[str, torch.Size], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The direction of ``group`` in ``step``: float32 tensors of these ``shapes``, with L2 norm 1 in total.

    Every entry is +-1/sqrt(d), where d is the number of entries in the whole group, with one bit of an AES-256-CTR
    keystream as its sign: the key is SHA-256 of the ``seed``, and the counter starts at step (56 bits) | group (32) | 0
    (40). Tensors take their bits in the order of their names, each starting at a whole byte, lowest bit first, 1 for
    plus. Only one square root and one quotient are rounded, which IEEE 754 defines to the last bit, so the vector is
    the same on every machine and with every version of the libraries. Normalized Gaussian deviates, uniform on the
    sphere, would need a logarithm and a sum over all entries, on which mathematical libraries differ.

    The paper asks for a random unit vector u. As on the sphere, E[u u^T] = I/d and so E[<g, u>^2] = |g|^2 / d. On the
    sphere E[sign(<g, u>) u] is exactly along g; here it is if <g, u> is nearly normal, that is, unless a few entries of
    g outweigh all others together; if one entry does, the sign is that entry's. The privacy guarantee holds for any
    distribution of u that does not depend on the data.

    A GPU gets only the bits, a 32nd of the bytes, and sets the signs by integer operations.

    Raises ValueError for a step or group out of range, or no entries at all.
    """
    count = sum(shape.numel() for shape in shapes.values())
    if not count:
        raise ValueError(f"group {group} has no entries; a unit vector needs one")
    stream = _keystream(seed, step, group)
    size = float(np.float32(1.0 / math.sqrt(count)))
    table = _table(size)
    tensors = {}
    for name in sorted(shapes):
        entries = shapes[name].numel()
        if torch.device(device).type != "cpu":
            packed = np.frombuffer(stream.update(bytes(-(-entries // 8))), np.uint8).copy()
            bits = moved(torch.from_numpy(packed), torch.device(device))
            tensors[name] = unpacked(bits, size)[:entries].view(shapes[name])
            continue
        values = np.empty((-(-entries // 8), 8), np.float32)
        for begin in range(0, len(values), _CHUNK):
            chunk = values[begin : begin + _CHUNK]
            np.take(table, np.frombuffer(stream.update(bytes(len(chunk))), np.uint8), axis=0, out=chunk, mode="clip")
        tensors[name] = torch.from_numpy(values).view(-1)[:entries].view(shapes[name])
    return {name: tensors[name] for name in shapes}


def sign_pieces(
    seed: bytes, step: int, group: int, shapes: Mapping[str, torch.Size], device: torch.device | str = "cpu"
) -> Iterator[tuple[str, int, Tensor]]:
    """The signs of ``direction``, +-1 float32, in pieces: the tensor's name, the index of the first entry, signs (k,).

    Only one piece is in memory at a time, so a direction takes almost no memory. Raises ValueError for a step or group
    out of range.
    """
    stream, target = _keystream(seed, step, group), torch.device(device)
    chunk = 8 * (_CHUNK if target.type == "cpu" else _CHUNK_ON_GPU)
    table = _table(1.0)
    for name in sorted(shapes):
        entries = shapes[name].numel()
        for begin in range(0, entries, chunk):
            count = min(chunk, entries - begin)
            packed = np.frombuffer(stream.update(bytes(-(-count // 8))), np.uint8)
            if target.type == "cpu":
                signs = torch.from_numpy(np.take(table, packed, axis=0)).view(-1)
            else:
                signs = unpacked(moved(torch.from_numpy(packed.copy()), target), 1.0)
            yield name, begin, signs[:count]


def _keystream(seed: bytes, step: int, group: int) -> CipherContext:
    if not 0 <= step < _STEPS or not 0 <= group < _GROUPS:
        raise ValueError(f"step {step} and group {group}; a keystream has steps below 2^56 and groups below 2^32")
    key = hashlib.sha256(_DOMAIN + b"\0" + seed).digest()
    start = (step << 72 | group << 40).to_bytes(16, "big")
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()


def unpacked(bits: Tensor, size: float) -> Tensor:
    """Expand ``bits`` (k,) uint8 to +-``size`` (8 k,) float32, lowest bit first, 1 for plus, without rounding.

    The sign of a float32 is its highest bit.
    """
    plus = int(np.float32(size).view(np.int32))
    numbers = torch.empty(len(bits), 8, dtype=torch.int32, device=bits.device)
    bit_indices = torch.arange(8, dtype=torch.uint8, device=bits.device)
    for rows, part in zip(torch.split(bits, _CHUNK_ON_GPU), torch.split(numbers, _CHUNK_ON_GPU), strict=True):
        part.copy_((rows[:, None] >> bit_indices) & 1)
        part.sub_(1).bitwise_and_(torch.iinfo(torch.int32).min).bitwise_or_(plus)
    return numbers.view(torch.float32).view(-1)


def _table(size: float) -> np.ndarray:
    """The entries +-``size`` for each value of a byte, (256, 8) float32."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(size), np.float32(-size))
