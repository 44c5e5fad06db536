"""Decodes images, with limits on the work a file can cause, and brings them to one shape."""

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

#: The only formats that Pillow may decode.
_FORMATS = ("JPEG", "PNG", "PPM")
#: Modes with more than 8 bits per channel are refused: Pillow would truncate them silently.
_DEEP = ("I", "F")
#: The marker that begins a scan of a JPEG image (ITU-T T.81, B.2.3). Encoders write about ten; decoding a scan takes a
#: pass over the whole image, however few bytes it has.
_SCAN, _MOST_SCANS = b"\xff\xda", 100
_BLOCK = 1 << 20


def open_image(file: Path | BytesIO, place: str) -> Image.Image:
    """The decoded image; raises InputError, naming ``place``, for other files, and for too many pixels or scans."""
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
    """Raise InputError for more scans than any encoder writes. The position in the undecoded file is restored."""
    assert isinstance(image, ImageFile.ImageFile)  # an image that was opened and not yet decoded
    if (stream := image.fp) is None:
        return
    begin, scans, before = stream.tell(), 0, b""
    stream.seek(0)
    while block := stream.read(_BLOCK):
        scans += (before + block).count(_SCAN)  # within a scan's data, 0xff is followed by 0
        before = block[-1:]
    stream.seek(begin)
    if scans > _MOST_SCANS:
        raise InputError(f"{place} has {scans} scans, and {_MOST_SCANS} of a JPEG image are read; save it again")


def array_of(image: Image.Image, channels: int, resize: tuple[int, int] | None) -> NDArray[np.uint8]:
    """The pixels, (height, width, channels), rotated upright by the image's Exif orientation."""
    upright = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
    if resize is not None:
        upright = upright.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    array = np.asarray(upright, np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def charged_bytes(image: Image.Image, array: NDArray[np.uint8]) -> int:
    """The bytes of ``array`` that count against the file's size: enlarging by ``--resize`` does not add to them."""
    return min(int(array.nbytes), image.width * image.height * int(array.shape[2]))


def size_mismatch(place: str, size: Sequence[int], first_place: str, expected: Sequence[int]) -> InputError:
    """The error for an image whose ``size`` differs from the ``expected`` size of the first."""
    return InputError(
        f"{place} is {size[0]}x{size[1]} pixels but {first_place} is {expected[0]}x{expected[1]}; give --resize "
        "HEIGHT WIDTH to bring all images to one size"
    )
