"""Counts the examples in a data set the way a training reads them."""

from __future__ import annotations

from pathlib import Path

from privctl.data.images import count_images
from privctl.data.texts import iter_texts


def count_examples(path: Path, unit: str | None = None) -> int:
    """The records of a file of texts, the values of ``unit`` where one is given, or the images at ``path``.

    A folder or an ``.npz`` file holds images. A text that training splits into pieces is one example. Raises
    InputError, CommandError and FileSystemError as reading for a training does.
    """
    if path.is_dir() or path.suffix.lower() == ".npz":
        return count_images(path)
    records = iter_texts(path, unit=unit)
    return sum(1 for _ in records) if unit is None else len({record.unit for record in records})
