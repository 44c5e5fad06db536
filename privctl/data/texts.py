"""Texts to train on, with labels and units of privacy on request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from privctl.data.annotated import annotated
from privctl.data.columns import ANNOTATED, USUAL, Columns, label_of, split_pair, text_of
from privctl.data.rows import Row, Stretch, rows_of, rows_of_share
from privctl.data.several import DataPath
from privctl.data.shares import FileShare
from privctl.data.users import user_of, users_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecord:
    """One record, on line ``line`` (from 1, counted across files) of the file of ``stretch``.

    The response begins at character ``start`` of ``text``, 0 for plain text. ``label`` and ``unit`` are None unless
    requested; records with the same ``unit`` belong together, for instance to one person. If records may belong to
    several users, ``users`` names them and ``unit`` is None. For token classification and question answering, ``text``
    and ``label`` are those that ``annotated`` returns.
    """

    stretch: Stretch
    text: str
    start: int = 0
    label: str | None = None
    unit: str | None = None
    line: int = 1
    users: tuple[str, ...] = ()

    @property
    def pair(self) -> tuple[str, str]:
        """(source, target) of the text, split at ``start``."""
        return split_pair(self.text, self.start)

    @property
    def where(self) -> str:
        """Its file and line, for errors; built on demand, since it may be as long as the text."""
        return self.stretch.place(self.line)


def read_texts(
    path: DataPath, *, labelled: bool = False, unit: str | None = None, columns: Columns | None = None
) -> list[TextRecord]:
    """A list of all records at ``path``; see ``iter_texts``."""
    return list(iter_texts(path, labelled=labelled, unit=unit, columns=columns))


def iter_texts(
    path: DataPath,
    *,
    labelled: bool = False,
    unit: str | None = None,
    columns: Columns | None = None,
    shared: bool = False,
) -> Iterator[TextRecord]:
    """The records at ``path``, one at a time; see ``rows_of`` for the supported files.

    A record has ``text``, or a prompt and its response, or messages; with ``labelled`` also ``label`` (see
    ``label_of``); and the field that ``unit`` names, a string or an integer, or with ``shared`` also a list of them
    (``users_of``). ``columns`` may name other fields. The first row of a table holds their names. Cells of a ``.csv``
    may be quoted; in a ``.tsv`` quotes are ordinary characters, and no cell holds a tab or a line end.

    Raises InputError, naming the line, for anything that is not such a record, and for a file without any; CommandError
    for an unknown suffix; FileSystemError if a file cannot be read.
    """
    columns = columns or USUAL
    for row in rows_of(path, columns, labelled=labelled, unit=unit):
        yield _record(row, columns, labelled, unit, shared)


def iter_share(
    path: DataPath, share: FileShare, *, unit: str | None = None, columns: Columns | None = None, before: int = 0
) -> Iterator[TextRecord]:
    """As ``iter_texts``, for one share of the data at ``path``; see ``rows_of_share``."""
    columns = columns or USUAL
    for row in rows_of_share(path, share, columns, unit=unit, before=before):
        yield _record(row, columns, False, unit)


def identified_texts(path: DataPath, columns: Columns | None = None) -> tuple[int, str]:
    """(number of records, BLAKE3 digest of their texts), from reading and checking all records at ``path``.

    Each text is preceded by its length in bytes, 8 bytes little-endian. Raises as ``iter_texts`` does.
    """
    count, hasher = 0, blake3()
    for record in iter_texts(path, columns=columns):
        text = record.text.encode("utf-8", "surrogatepass")
        hasher.update(len(text).to_bytes(8, "little") + text)
        count += 1
    return count, f"blake3:{hasher.hexdigest()}"


def _record(row: Row, columns: Columns, labelled: bool, unit: str | None, shared: bool = False) -> TextRecord:
    label: str | None
    if columns.problem in ANNOTATED:
        passage, label = annotated(row.fields, row.where, columns)
    else:
        passage = text_of(row.fields, row.where, columns)
        label = label_of(row.fields, row.where, columns) if labelled else None
    owner: str | None = None
    users: tuple[str, ...] = ()
    if unit is not None and shared:
        users = users_of(row.fields, unit, row.where)
    elif unit is not None:
        owner = user_of(row.fields, unit, row.where)
    return TextRecord(
        stretch=row.stretch,
        text=passage.text,
        start=passage.start,
        label=label,
        unit=owner,
        line=row.number,
        users=users,
    )
