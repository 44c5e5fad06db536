"""Images in a column of parquet or Arrow files, as ``datasets`` stores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.arrow import ArrowSchema, arrow_rows, count_rows, schema_of
from privctl.data.columns import Columns, kind_of, label_of
from privctl.data.decoded import Decoded
from privctl.data.decoding import array_of, charged_bytes, open_image, size_mismatch
from privctl.data.places import data_files, shown
from privctl.domain.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_table_images(
    path: Path, columns: Columns, *, channels: int, resize: tuple[int, int] | None
) -> tuple[NDArray[np.uint8], tuple[str, ...], list[str]]:
    """(pixels, labels, places) of all images at ``path``; pixels are uint8 (n, height, width, channels).

    Raises InputError, naming the row, for a value that is not an encoded image (such as a path), for sizes that differ
    without ``resize``, and for missing labels or columns.
    """
    content = bytearray()
    labels: list[str] = []
    places: list[str] = []
    shape: tuple[int, ...] | None = None
    for array, fields, where in iter_table_images(path, columns.label_name, channels=channels, resize=resize):
        shape = shape or array.shape
        if array.shape != shape:
            raise size_mismatch(where, array.shape[:2], places[0], shape[:2])
        content += array.tobytes()
        labels.append(label_of(fields, where, columns))
        places.append(where)
    if shape is None:
        raise InputError(f"{path} holds no images; expected at least one")
    return np.frombuffer(content, np.uint8).reshape(len(labels), *shape), tuple(labels), places


def iter_table_images(
    path: Path, label: str | None, *, channels: int, resize: tuple[int, int] | None = None
) -> Iterator[tuple[NDArray[np.uint8], Mapping[str, Any], str]]:
    """(pixels, fields, place) of each image at ``path``; the fields are those of the image and of the ``label``.

    Raises InputError as ``read_table_images`` does, except for sizes.
    """
    decoded = Decoded(path)
    for file in data_files(path):
        decoded.read(file.stat().st_size)
        place = shown(path, file)
        image = _image_column(schema_of(file, place), place, label)
        wanted = [image] if label is None else [image, label]
        for number, fields in enumerate(arrow_rows(file, place, wanted), start=1):
            where = f"{place} row {number}"
            with open_image(BytesIO(_encoded(fields[image], image, where)), where) as opened:
                array = array_of(opened, channels, resize)
                decoded.add(charged_bytes(opened, array))
            yield array, fields, where


def count_table_images(path: Path) -> int:
    """The number of rows of the files at ``path``; raises InputError if there are none, or no column of images."""
    total = 0
    for file in data_files(path):
        place = shown(path, file)
        _image_column(schema_of(file, place), place, None)
        total += count_rows(file, place)
    if not total:
        raise InputError(f"{path} holds no images; expected at least one")
    return total


def _image_column(schema: ArrowSchema, place: str, label: str | None) -> str:
    have = ", ".join(map(repr, schema.names[:8])) or "none"
    if len(schema.images) != 1:
        count = "several columns" if schema.images else "no column"
        raise InputError(
            f"{place} has {count} of encoded images (its columns are {have}); keep one, of bytes or of structures with "
            "'bytes'"
        )
    if label is not None and label not in schema.names:
        raise InputError(
            f"{place} has no column {label!r} for the labels; its columns are {have}; name one with --label-column"
        )
    return schema.images[0]


def _encoded(value: Any, column: str, where: str) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(content, bytes):
        return content
    if isinstance(value, dict) and value.get("path"):
        raise InputError(f"{where} names a file as {column!r} and holds no bytes; embed the images in the table")
    raise InputError(f"{where} has {kind_of(content)} as {column!r}; expected an encoded image")
