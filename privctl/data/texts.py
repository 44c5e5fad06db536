"""Texts to train on, with labels and units of privacy if requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from privctl.data.annotated import annotated
from privctl.data.columns import ANNOTATED, USUAL, Columns, label_of, split_pair, text_of
from privctl.data.rows import Row, Stretch, column_names, rows_of, rows_of_share
from privctl.data.several import DataPath
from privctl.data.shares import FileShare
from privctl.data.users import user_of, users_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecord:
    """One record, on line ``line`` (from 1, counted on from file to file) of the file of ``stretch``.

    The response begins at character ``start`` of ``text``, 0 for plain text. ``label`` and ``unit`` are None unless
    requested; records of one ``unit`` belong together (to one person, say). Where a record may belong to several,
    ``users`` are these, and ``unit`` is None. Of words with labels and of questions text and label are as ``annotated``
    says.
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
        """Source and target, where a response or target begins in the text."""
        return split_pair(self.text, self.start)

    @property
    def where(self) -> str:
        """Its file and line, for errors; made when one is met, as it may be as long as the text."""
        return self.stretch.place(self.line)


def read_texts(
    path: DataPath, *, labelled: bool = False, unit: str | None = None, columns: Columns | None = None
) -> list[TextRecord]:
    """All records of a file in a list; see ``iter_texts``."""
    return list(iter_texts(path, labelled=labelled, unit=unit, columns=columns))


def iter_texts(
    path: DataPath,
    *,
    labelled: bool = False,
    unit: str | None = None,
    columns: Columns | None = None,
    shared: bool = False,
) -> Iterator[TextRecord]:
    """The records at ``path``, one at a time; see ``rows_of`` for what files may hold them.

    A record has ``text``, or a prompt and its response, or messages; with ``labelled`` also ``label``, a string or an
    integer; and the field that ``unit`` names, likewise, or with ``shared`` a list of such (``users_of``). ``columns``
    names other fields. Tables name these in their
    first row. A ``.csv`` may quote cells; in a ``.tsv`` quotes are ordinary characters, and no cell holds a tab or a
    line end.

    Raises InputError, naming the line, for anything that is not such a record, and for a file without any; CommandError
    for a suffix that is not known; FileSystemError where the system refuses.
    """
    columns = columns or USUAL
    for row in rows_of(path, columns, labelled=labelled, unit=unit):
        yield _record(row, columns, labelled, unit, shared)


def iter_share(
    path: DataPath, share: FileShare, *, unit: str | None = None, columns: Columns | None = None, before: int = 0
) -> Iterator[TextRecord]:
    """As ``iter_texts``, of one share of the data at ``path``; see ``rows_of_share``."""
    columns = columns or USUAL
    for row in rows_of_share(path, share, columns, unit=unit, before=before):
        yield _record(row, columns, False, unit)


def first_fields(path: DataPath) -> tuple[str, ...] | None:
    """The names of the first record's fields; None for a suffix that is not known. Raises as ``iter_texts`` does."""
    return column_names(path)


def identified_texts(path: DataPath, columns: Columns | None = None) -> tuple[int, str]:
    """How many records ``iter_texts`` yields, all of them checked, and a BLAKE3 digest of their texts in order.

    Each is digested behind its length in bytes. Raises as ``iter_texts`` does.
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
