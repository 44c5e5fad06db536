"""Counts the examples in a data set as training reads them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from privctl.data.bounded import bounded
from privctl.data.columns import USUAL, Columns
from privctl.data.images import count_images, holds_tables
from privctl.data.names import spelled_alike
from privctl.data.places import holds_classes
from privctl.data.rows import column_names, image_columns
from privctl.data.selection import greedy, records_upper_bound, select
from privctl.data.several import DataPath, paths_of
from privctl.data.sharing import Sharing
from privctl.data.sounds import listed_sounds, lists_sounds
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.shared_records import SharedRecords


def count_examples(
    path: DataPath,
    unit: str | None = None,
    columns: Columns = USUAL,
    most: int | None = None,
    shared: SharedRecords | None = None,
) -> int:
    """The number of texts, of distinct values of ``unit`` if given, or of images or sounds at ``path``.

    With ``most``, at most that many records of each unit are counted, each as an example; with ``shared``, records may
    have several units, and that rule chooses among them.

    A folder of class folders holds images or sounds; ``.npz`` files, and parquet and Arrow files with a column of
    images and none of texts, hold images. Other records may name a sound file each. A text that training splits counts
    as one example. Raises InputError, CommandError and FileSystemError as reading for training does.
    """
    if any(map(partial(_is_of_images, columns=columns), paths_of(path))):
        return sum(map(count_images, paths_of(path)))
    if all(map(lists_sounds, paths_of(path))):
        return sum(len(listed_sounds(folder)) for folder in paths_of(path))
    if most is not None and shared is not None:
        return int(select(sharing_of(path, unit, columns), most, shared, str(path)).sum())
    records = iter_texts(path, unit=unit, columns=columns)
    if most is not None:
        return sum(1 for _ in bounded(records, most))
    return sum(1 for _ in records) if unit is None else len({record.unit for record in records})


def of_texts(path: DataPath, columns: Columns = USUAL) -> bool:
    """Whether the records at ``path`` are texts, as ``count_examples`` takes them."""
    if any(map(partial(_is_of_images, columns=columns), paths_of(path))):
        return False
    return not all(map(lists_sounds, paths_of(path)))


def sharing_of(path: DataPath, unit: str | None, columns: Columns = USUAL) -> Sharing:
    """The users that the records at ``path`` name in the field ``unit``. Raises as ``iter_texts`` does."""
    return Sharing.of(record.users for record in iter_texts(path, unit=unit, columns=columns, shared=True))


def similar_names(records: Iterable[TextRecord]) -> int:
    """How many users of ``records`` have a name spelled like another user's (``names.spelled_alike``)."""
    return spelled_alike({name for record in records for name in (record.users or (record.unit or "",))})


def similar_names_at(path: DataPath, unit: str, columns: Columns = USUAL, *, shared: bool = False) -> int:
    """``similar_names`` of all records at ``path``. Raises as ``iter_texts`` does."""
    return similar_names(iter_texts(path, unit=unit, columns=columns, shared=shared))


def possible_counts(
    path: DataPath, unit: str | None, columns: Columns, most: int, shared: SharedRecords
) -> tuple[int, int] | None:
    """The range of record counts that a different solver version may choose; None if the rule is deterministic."""
    if shared is not SharedRecords.MOST:
        return None
    sharing = sharing_of(path, unit, columns)
    return int(greedy(sharing, most).sum()), records_upper_bound(sharing, most)


def _is_of_images(path: Path, columns: Columns) -> bool:
    if path.suffix.lower() == ".npz" or holds_classes(path):
        return True
    if not holds_tables(path) or not image_columns(path):
        return False
    return columns.text is None and not {"text", "prompt", "messages"}.intersection(column_names(path) or ())
