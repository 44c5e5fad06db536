"""Images to train on: a folder with one subfolder per class, an ``.npz`` file, or parquet and Arrow files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from PIL import Image

from privctl.data.columns import USUAL, Columns, HeadKind
from privctl.data.decoded import Decoded
from privctl.data.decoding import array_of, charged_bytes, open_image, size_mismatch
from privctl.data.labels import quoted_label
from privctl.data.npz import read_npz
from privctl.data.packed import suffix_of
from privctl.data.places import ARROW, IMAGES, PARQUET, SOUNDS, data_files, found, holds_classes
from privctl.data.several import DataPath, SeveralPaths, paths_of
from privctl.data.table_images import count_table_images, iter_table_images, read_table_images
from privctl.domain.errors import CommandError, InputError
from privctl.storage.reader import unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Most images of one file; ImageNet-21k has 14,197,122.
MOST_IMAGES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Images of one size with their labels.

    ``pixels`` is (n, height, width, channels) uint8, or (n, channels, height, width) float32 that is used unscaled.
    ``labels`` and ``places`` (file or position, for errors) have n entries. ``ignored`` counts files that are not
    images.
    """

    pixels: NDArray[np.uint8] | NDArray[np.float32]
    labels: tuple[str, ...]
    places: Sequence[str]
    ignored: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = self.pixels.shape[1:3] if self.pixels.dtype == np.uint8 else self.pixels.shape[2:4]
        return int(height), int(width)

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for colour."""
        return int(self.pixels.shape[3 if self.pixels.dtype == np.uint8 else 1])


def read_images(
    path: DataPath, *, channels: int = 3, resize: tuple[int, int] | None = None, columns: Columns | None = None
) -> ImageSet:
    """Read the images at ``path`` with ``channels`` (1 or 3), resized to ``resize`` (height, width) if given.

    A folder has one subfolder of JPEG, PNG or PPM files per class; other files in it are ignored. An ``.npz`` holds
    ``images``, (n, h, w[, c]) uint8 or (n, c, h, w) floats, and ``labels``; nothing in it is unpickled. Parquet and
    Arrow files, also as folders (see ``data_files``), have one column of encoded images and one of labels, which is
    ``label`` unless ``columns`` names it. Images of several paths are concatenated.

    The ``problem`` of ``columns`` says whether an image has one label, a list of labels or a number; they are returned
    in the format of ``label_of``. For a list or a number, class folders are refused, and ``labels`` of an ``.npz`` are
    flags, (n, labels), or numbers, (n,).

    Raises InputError, naming the file or position, for a file that is not an image, for sizes that differ without
    ``resize``, for NaN or infinity, for a class without images and for an empty set; CommandError for any other kind of
    path; FileSystemError if a file cannot be read.
    """
    if channels not in (1, 3):
        raise CommandError(f"the model takes images of {channels} channels; only 1 (grey) and 3 (colour) are read")
    if isinstance(path, SeveralPaths):
        return joined(
            [read_images(folder, channels=channels, resize=resize, columns=columns) for folder in _distinct_paths(path)]
        )
    columns = columns or USUAL
    if holds_classes(path):
        if columns.problem is not HeadKind.ONE:
            raise InputError(
                f"{path} gives each image the one label of its folder, and the model's problem_type is "
                f"{columns.problem}; give images in parquet, Arrow or .npz files"
            )
        return _read_folder(path, channels, resize)
    if path.suffix.lower() == ".npz":
        return _read_arrays(path, channels, resize, columns.problem)
    if holds_tables(path):
        pixels, labels, places = read_table_images(path, columns, channels=channels, resize=resize)
        return ImageSet(pixels=pixels, labels=labels, places=places)
    raise CommandError(
        f"{path} is neither a folder of class folders nor an .npz, parquet or Arrow file; images are read from these: "
        "sort them into a folder for each class"
    )


def iter_pixels(path: DataPath) -> Iterator[NDArray[Any]]:
    """The pixels of each image at ``path``, in colour and in its own size, whatever its label.

    Raises as ``read_images`` does, except for sizes and labels.
    """
    for folder in paths_of(path):
        if holds_classes(folder):
            yield from (pixels for _, pixels in _decoded(folder, _list_folder(folder)[0], 3, None))
        elif holds_tables(folder):
            yield from (pixels for pixels, _, _ in iter_table_images(folder, None, channels=3))
        else:
            images, _ = read_npz(folder, ("images", "labels"))
            yield from _bytes(folder, images, 3, None) if images.dtype == np.uint8 else _floats(folder, images, 3, None)


def joined(sets: Sequence[ImageSet]) -> ImageSet:
    """The images of all ``sets``, in order; raises InputError if sizes or number formats differ."""
    if len({(one.pixels.dtype, one.pixels.shape[1:]) for one in sets}) > 1:
        raise InputError("the paths hold images of different sizes or number formats; bring them to one")
    return ImageSet(
        pixels=np.concatenate([one.pixels for one in sets]),
        labels=tuple(label for one in sets for label in one.labels),
        places=[place for one in sets for place in one.places],
        ignored=sum(one.ignored for one in sets),
    )


def _distinct_paths(several: SeveralPaths) -> tuple[Path, ...]:
    """The paths, after checking that no two mean the same file; raises InputError as ``data_files`` does."""
    files = tuple(path for path in several.paths if not holds_classes(path))
    if len(files) > 1:
        data_files(SeveralPaths(files))
    return several.paths


def holds_tables(path: Path) -> bool:
    """Whether ``path`` means existing parquet or Arrow files."""
    return not holds_classes(path) and found(path) and suffix_of(data_files(path)[0]) in (PARQUET, ARROW)


def count_images(path: Path) -> int:
    """How many images ``read_images`` would return for ``path``, without decoding them; raises as it does."""
    if holds_tables(path):
        return count_table_images(path)
    if path.is_dir():
        files = class_files(path)
        if not files:
            raise InputError(f"{path} holds no images; expected one subfolder a class, of JPEG, PNG or PPM files")
        return len(files)
    return len(read_npz(path, ("images", "labels"))[0])


def class_files(path: Path, suffixes: Sequence[str] | None = None) -> list[tuple[str, Path]]:
    """(class, file) of each file in a folder of class folders, sorted by class and name; raises as ``read_images``.

    ``suffixes`` selects images or sounds; None selects sounds if there are any.
    """
    if suffixes is None:
        sounds = any(file.suffix.lower() in SOUNDS for file in path.glob("*/*"))
        suffixes = SOUNDS if sounds else IMAGES
    return _list_folder(path, suffixes)[0]


def _read_folder(path: Path, channels: int, resize: tuple[int, int] | None) -> ImageSet:
    files, ignored = _list_folder(path)
    pixels: NDArray[np.uint8] | None = None
    for i, (file, array) in enumerate(_decoded(path, files, channels, resize)):
        if pixels is None:
            pixels = np.empty((len(files), *array.shape), np.uint8)
        if array.shape != pixels.shape[1:]:
            raise size_mismatch(str(file), array.shape[:2], files[0][1].name, pixels.shape[1:3])
        pixels[i] = array
    if pixels is None:
        raise InputError(f"{path} holds no images; expected one subfolder a class, of JPEG, PNG or PPM files")
    return ImageSet(
        pixels=pixels, labels=tuple(label for label, _ in files), places=[str(f) for _, f in files], ignored=ignored
    )


def _decoded(
    path: Path, files: Sequence[tuple[str, Path]], channels: int, resize: tuple[int, int] | None
) -> Iterator[tuple[Path, NDArray[np.uint8]]]:
    """(file, pixels) of each of the ``files`` of the folder ``path``."""
    decoded = Decoded(path)
    for _, file in files:
        with open_image(file, str(file)) as image:
            array = array_of(image, channels, resize)
            decoded.read(file.stat().st_size)
            decoded.add(charged_bytes(image, array))
        yield file, array


def _list_folder(path: Path, suffixes: Sequence[str] = IMAGES) -> tuple[list[tuple[str, Path]], int]:
    """(class, file) of each file with one of ``suffixes``, sorted by class and name, and the number of other files."""
    entries: list[tuple[str, Path]] = []
    ignored = 0
    try:
        for folder in _visible(path):
            if not folder.is_dir():
                if folder.suffix.lower() in suffixes:
                    raise InputError(f"{folder} is outside the class folders; move it into the folder of its class")
                ignored += 1
                continue
            files = list(_visible(folder))
            wanted = [file for file in files if file.suffix.lower() in suffixes]
            if not wanted:
                kind, what = ("WAV", "sounds") if suffixes == SOUNDS else ("JPEG, PNG or PPM", "images")
                raise InputError(f"{folder} holds no {kind} file; remove the folder, or add {what} to it")
            ignored += len(files) - len(wanted)
            entries += [(folder.name, file) for file in wanted]
    except OSError as error:
        raise unreadable(path, error) from None
    return entries, ignored


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))


class _Places(Sequence[str]):
    """The places of a file's images, each formatted on access."""

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._numbers = path, range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in self._numbers[index]]
        return f"{self._path} image {self._numbers[index]}"


def _read_arrays(path: Path, channels: int, resize: tuple[int, int] | None, problem: HeadKind) -> ImageSet:
    images, labels = read_npz(path, ("images", "labels"))
    if images.ndim == 0 or len(images) == 0:
        raise InputError(f"{path} holds no images; expected at least one")
    if len(images) > MOST_IMAGES:
        raise InputError(f"{path} has {len(images)} images, and {MOST_IMAGES} are read at most; cut it into parts")
    places = _Places(path, len(images))
    names = (
        _names(path, labels, places) if problem is HeadKind.ONE else _flags_or_numbers(path, labels, places, problem)
    )
    pixels = (
        _bytes(path, images, channels, resize) if images.dtype == np.uint8 else _floats(path, images, channels, resize)
    )
    return ImageSet(pixels=pixels, labels=names, places=places)


def _flags_or_numbers(path: Path, labels: NDArray[Any], places: Sequence[str], problem: HeadKind) -> tuple[str, ...]:
    """``labels``, flags (n, labels) or numbers (n,), in the format of ``label_of``; flags name labels by number."""
    several = problem is HeadKind.SEVERAL
    if labels.ndim != 1 + several or len(labels) != len(places) or labels.dtype.kind not in "biuf":
        expected = "flags of shape (images, labels)" if several else "one number per image"
        raise InputError(
            f"{path} has {len(places)} images and labels of shape {labels.shape} and type {labels.dtype}; expected "
            f"{expected}, as the model's problem_type is {problem}"
        )
    sound = np.isin(labels, (0, 1)).all(1) if several else np.isfinite(labels)
    if not sound.all():
        wanted = "a flag other than 0 and 1" if several else "a label that is no finite number"
        raise InputError(f"{places[int(np.argmin(sound))]} has {wanted}")
    if several:
        return tuple(json.dumps(sorted(map(str, np.flatnonzero(row).tolist()))) for row in labels)
    return tuple(repr(float(number)) for number in labels)


def _names(path: Path, labels: NDArray[Any], places: Sequence[str]) -> tuple[str, ...]:
    """The label of each image, as text."""
    if labels.shape != (len(places),):
        raise InputError(
            f"{path} has {len(places)} images and labels of shape {labels.shape}; expected one label per image"
        )
    if labels.dtype.kind not in "iuU":
        raise InputError(f"{path} has labels of the type {labels.dtype}; expected integers or strings")
    different, which = np.unique(labels, return_inverse=True)
    label_names = [str(label).strip() for label in different.tolist()]
    names = tuple(label_names[i] for i in which.tolist())
    bad = next((i for i, name in enumerate(names) if not name or name.startswith("-")), None)
    if bad is not None:
        raise InputError(f"{places[bad]} has the label {quoted_label(names[bad])}; expected a name, or a number from 0")
    return names


def _bytes(path: Path, images: NDArray[Any], channels: int, resize: tuple[int, int] | None) -> NDArray[np.uint8]:
    shaped = images[..., None] if images.ndim == 3 else images
    if shaped.ndim != 4 or shaped.shape[3] not in (1, 3) or 0 in shaped.shape:
        raise InputError(f"{path} has uint8 images of shape {images.shape}; expected (n, h, w) or (n, h, w, 1 or 3)")
    if shaped.shape[3] == channels and resize in (None, shaped.shape[1:3]):
        return shaped
    return np.stack([array_of(Image.fromarray(i if i.shape[2] == 3 else i[:, :, 0]), channels, resize) for i in shaped])


def _floats(path: Path, images: NDArray[Any], channels: int, resize: tuple[int, int] | None) -> NDArray[np.float32]:
    if images.dtype.kind != "f":
        raise InputError(f"{path} has images of the type {images.dtype}; expected uint8, or floats")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise InputError(f"{path} has float images of shape {images.shape}; expected (n, 1 or 3, h, w)")
    sound = np.isfinite(images).all(axis=(1, 2, 3))
    if not sound.all():
        raise InputError(f"{path} image {int(np.argmin(sound))} holds NaN or infinity; repair or remove it")
    if resize is not None and resize != images.shape[2:4]:
        raise InputError(
            f"{path} has float images of {images.shape[2]}x{images.shape[3]} pixels, and only uint8 images are "
            f"resized; store them at {resize[0]}x{resize[1]}, or as uint8"
        )
    if images.shape[1] > channels:
        raise InputError(
            f"{path} has colour images as floats, but the model takes grey ones; store them with 1 channel"
        )
    return np.ascontiguousarray(np.broadcast_to(images, (len(images), channels, *images.shape[2:])), np.float32)
