"""Reads WAV files: uncompressed samples of 8 to 32 bits, or floats, averaged to one channel."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest file in bytes: about 3 hours of one channel at 48 kHz and 16 bits.
MOST_BYTES = 1 << 30
_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
#: Length of the samples in a streamed file, whose writer could not return to the header: up to the end of the file.
_UNKNOWN_LENGTH = 0xFFFFFFFF


def read_wav(path: Path, where: str) -> tuple[NDArray[np.float32], int]:
    """(samples (n,), sampling rate in Hz) of the file at ``path``; integer samples are scaled to [-1, 1].

    Channels are averaged. ``where`` names the file in errors. Raises InputError for an unsupported or truncated file,
    and for one without samples or with NaN or infinity; FileSystemError if it cannot be read.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{where} is larger than 1 GiB; cut it into parts")
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise InputError(f"{where} is not a WAV file; save it as one")
    stated, content = _chunks(data, where)
    if stated is None or content is None or len(stated) < 16:
        raise InputError(f"{where} lacks its format or its samples; save it again")
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", stated[:16])
    if kind == _EXTENSIBLE and len(stated) >= 26:
        kind = struct.unpack("<H", stated[24:26])[0]
    if (kind, bits) not in _READERS or not channels or not rate:
        raise InputError(f"{where} is compressed, or of {bits} bits in an unknown format; save it as 16-bit PCM")
    if len(content) % (channels * bits // 8):
        raise InputError(f"{where} ends within a sample; copy it again")
    read: Callable[[bytes], NDArray[Any]] = _READERS[kind, bits]
    samples = read(content).reshape(-1, channels).mean(1, dtype=np.float64).astype(np.float32)
    if not len(samples):
        raise InputError(f"{where} holds no sample; remove it")
    if not np.isfinite(samples).all():
        raise InputError(f"{where} holds NaN or infinity; repair or remove it")
    return samples, rate


def _chunks(data: bytes, where: str) -> tuple[bytes | None, bytes | None]:
    """The contents of the chunks ``fmt`` and ``data``, None for one that is missing."""
    stated: bytes | None = None
    place = 12
    while place + 8 <= len(data):
        name, length = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        begin = place + 8
        if name == b"data" and length == _UNKNOWN_LENGTH:
            length = len(data) - begin
        if begin + length > len(data):
            raise InputError(f"{where} is cut off; copy it again")
        if name == b"data":
            return stated, data[begin : begin + length]
        if name == b"fmt ":
            stated = data[begin : begin + length]
        place = begin + length + length % 2
    return stated, None


def _widened_24_bits(content: bytes) -> NDArray[Any]:
    wide = np.zeros((len(content) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0] / 2.0**31


#: By format and bits of a sample.
_READERS = {
    (_INTEGERS, 8): lambda content: (np.frombuffer(content, np.uint8) - 128.0) / 128,
    (_INTEGERS, 16): lambda content: np.frombuffer(content, "<i2") / 2.0**15,
    (_INTEGERS, 24): _widened_24_bits,
    (_INTEGERS, 32): lambda content: np.frombuffer(content, "<i4") / 2.0**31,
    (_FLOATS, 32): lambda content: np.frombuffer(content, "<f4"),
    (_FLOATS, 64): lambda content: np.frombuffer(content, "<f8"),
}
