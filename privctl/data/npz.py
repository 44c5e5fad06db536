"""Reads the arrays of an ``.npz`` file; the sizes in header and archive must agree before memory is allocated."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib import format as npy

from privctl.data.packed import MOST_RATIO, MOST_UNPACKED
from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The methods that numpy writes. With others, zipfile does not limit how much a single read unpacks.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Longest header of an array, in bytes; numpy has the same limit.
_LONGEST_HEADER = 10_000
_SUFFIX, _MAGIC_SIZE = ".npy", 8
_AT_A_TIME = 1 << 24


def read_npz(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """The arrays ``names`` of the file at ``path``; other arrays are ignored, and nothing is unpickled.

    Raises InputError if the file is not a valid archive, lacks one of them, or would unpack to more than both
    ``MOST_UNPACKED`` bytes and ``MOST_RATIO`` times its size; FileSystemError if it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            missing = [name for name in names if name + _SUFFIX not in entries]
            if missing:
                expected = " and ".join(map(repr, names))
                raise InputError(f"{path} lacks the array {missing[0]!r}; expected {expected}")
            members = [entries[name + _SUFFIX] for name in names]
            _check_size(path, members)
            return [_array(archive, member) for member in members]
    except OSError as error:
        if error.errno is not None:
            raise unreadable(path, error) from None
        raise InputError(f"{path} is not an .npz file; write it with numpy.savez") from None
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not an .npz file ({error}); write it with numpy.savez") from None
    except (ValueError, TypeError, EOFError, RuntimeError, zlib.error, SyntaxError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{path} is not a sound .npz file ({reason}); write plain arrays with numpy.savez") from None
    except MemoryError:
        raise InputError(f"{path} says that it holds more than fits into memory; cut it into parts") from None


def _check_size(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    most = max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size)
    total = sum(member.file_size for member in members)
    if total > most:
        raise InputError(
            f"{path} unpacks to {total / 2**30:.3g} GiB, and {most / 2**30:.3g} GiB is the most for its size; write it "
            "with numpy.savez, which packs nothing"
        )
    for member in members:
        if member.compress_type not in _METHODS:
            raise ValueError(f"{member.filename} is packed in a way that numpy does not write")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        shape, fortran, dtype, header_size = _header(stream)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        size = math.prod(shape) * dtype.itemsize
        if any(length < 0 for length in shape) or size != member.file_size - header_size:
            raise ValueError(
                f"{member.filename} has {member.file_size - header_size} bytes, and its header says {size} for the "
                f"shape {_shape_text(shape)} of {dtype}"
            )
        content = bytearray(size)
        view, done, buffered = memoryview(content), 0, cast("io.BufferedIOBase", stream)
        while done < size:
            count = buffered.readinto(view[done : done + _AT_A_TIME])
            if not count:
                raise EOFError(f"{member.filename} ends early")
            done += count
        stream.read(1)  # zipfile compares the checksum at the end of the member
    flat = np.frombuffer(content, dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """(shape, whether in Fortran order, dtype, bytes of the header); the header's length is checked before reading."""
    magic = stream.read(_MAGIC_SIZE)
    version = npy.read_magic(io.BytesIO(magic))
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array has the format version {version[0]}.{version[1]}, and 1.0 and 2.0 are read")
    width = 2 if version == (1, 0) else 4
    prefix = stream.read(width)
    length = int.from_bytes(prefix, "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"an array has a header of {length} bytes, and {_LONGEST_HEADER} are read")
    text = io.BytesIO(prefix + stream.read(length))
    parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = parse(text)
    return shape, fortran, dtype, _MAGIC_SIZE + width + length


def _shape_text(shape: tuple[int, ...]) -> str:
    text = ", ".join(map(str, shape[:6])) + (", ..." if len(shape) > 6 else "")
    return f"({text})"
