"""Decoding images: what a decoder may be made to do, and one shape for all."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from privctl.domain.errors import InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The only decoders that Pillow may try.
_FORMATS = ("JPEG", "PNG", "PPM")
#: Pixels of more than 8 bits are refused: Pillow would truncate them silently.
_DEEP = ("I", "F")
#: Begins a scan of a JPEG image (ITU-T T.81, B.2.3). Encoders write about ten; each goes through the whole image,
#: however few bytes it has.
_SCAN, _MOST_SCANS = b"\xff\xda", 100
_BLOCK = 1 << 20


def open_image(file: Path | BytesIO, place: str) -> Image.Image:
    """The decoded image; raises InputError, naming ``place``, for what is none or has too many pixels or scans."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file, formats=_FORMATS)
            if image.format == "JPEG":
                _require_few_scans(image, place)
            image.load()
    except UnidentifiedImageError:
        raise InputError(f"{place} is not a JPEG, PNG or PPM image; remove it or save it as one") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(f"{place} exceeds the limit of {Image.MAX_IMAGE_PIXELS} pixels; make it smaller") from None
    except OSError as error:
        if error.errno is not None:
            raise unreadable(Path(place), error) from None
        raise InputError(f"{place} cannot be decoded ({error}); repair or remove it") from None
    except (ValueError, SyntaxError, EOFError, IndexError, zlib.error) as error:
        raise InputError(f"{place} cannot be decoded ({error}); repair or remove it") from None
    if image.mode.startswith(_DEEP):
        raise InputError(f"{place} has more than 8 bits per channel; save it with 8")
    return image


def _require_few_scans(image: Image.Image, place: str) -> None:
    """Raise InputError for more scans than any encoder writes; what is not decoded yet is read and left as it was."""
    assert isinstance(image, ImageFile.ImageFile)  # as what was opened and not yet decoded is
    if (stream := image.fp) is None:
        return
    begin, scans, before = stream.tell(), 0, b""
    stream.seek(0)
    while block := stream.read(_BLOCK):
        scans += (before + block).count(_SCAN)  # in the data of a scan, a byte that begins a marker is followed by 0
        before = block[-1:]
    stream.seek(begin)
    if scans > _MOST_SCANS:
        raise InputError(f"{place} has {scans} scans, and {_MOST_SCANS} of a JPEG image are read; save it again")


def array_of(image: Image.Image, channels: int, resize: tuple[int, int] | None) -> NDArray[np.uint8]:
    """(height, width, channels), rotated upright as its metadata says."""
    upright = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
    if resize is not None:
        upright = upright.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    array = np.asarray(upright, np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def held_of(image: Image.Image, array: NDArray[np.uint8]) -> int:
    """The bytes of ``array`` that the file of ``image`` accounts for: more of one enlarged was asked for."""
    return min(int(array.nbytes), image.width * image.height * int(array.shape[2]))


def other_size(place: str, size: Sequence[int], first_place: str, expected: Sequence[int]) -> InputError:
    """The error for an image of another ``size`` than the first."""
    return InputError(
        f"{place} is {size[0]}x{size[1]} pixels but {first_place} is {expected[0]}x{expected[1]}; give --resize to "
        "bring all images to one size"
    )
