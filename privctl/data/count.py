"""Counts the examples in a data set the way a training reads them."""

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
from privctl.data.selection import greedy, most_possible, select
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
    """The records of texts, the values of ``unit`` where one is given, or the images or sounds at ``path``.

    With ``most``, so many records of each unit at most are counted, each as an example; with ``shared`` they may have
    several units, and are chosen so.

    A folder of class folders holds images or sounds, an ``.npz`` file images; so do parquet and Arrow files with a
    column of them and none of texts. Other records may name a sound each. A text that training splits into pieces is
    one example. Raises InputError, CommandError and FileSystemError as reading for a training does.
    """
    if any(map(partial(_is_of_images, columns=columns), paths_of(path))):
        return sum(map(count_images, paths_of(path)))
    if all(map(lists_sounds, paths_of(path))):
        return sum(len(listed_sounds(each)) for each in paths_of(path))
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
    """Which users, in the field ``unit``, the records at ``path`` name. Raises as ``iter_texts`` does."""
    return Sharing.of(record.users for record in iter_texts(path, unit=unit, columns=columns, shared=True))


def similar_names(records: Iterable[TextRecord]) -> int:
    """How many users of ``records`` have names that are spelled like another's (``names.spelled_alike``)."""
    return spelled_alike({name for record in records for name in (record.users or (record.unit or "",))})


def similar_names_at(path: DataPath, unit: str, columns: Columns = USUAL, *, shared: bool = False) -> int:
    """As ``similar_names``, of all records at ``path``. Raises as ``iter_texts`` does."""
    return similar_names(iter_texts(path, unit=unit, columns=columns, shared=shared))


def possible_counts(
    path: DataPath, unit: str | None, columns: Columns, most: int, shared: SharedRecords
) -> tuple[int, int] | None:
    """Between which numbers of records another version of the solver may have chosen; None where only one is right."""
    if shared is not SharedRecords.MOST:
        return None
    sharing = sharing_of(path, unit, columns)
    return int(greedy(sharing, most).sum()), most_possible(sharing, most)


def _is_of_images(path: Path, columns: Columns) -> bool:
    if path.suffix.lower() == ".npz" or holds_classes(path):
        return True
    if not holds_tables(path) or not image_columns(path):
        return False
    return columns.text is None and not {"text", "prompt", "messages"}.intersection(column_names(path) or ())
