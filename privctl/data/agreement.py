"""Checks that the files of one data set agree when no single process reads all of them, by facts about each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.data.arrow import schema_of
from privctl.data.columns import Columns, form_of, require_form
from privctl.data.packed import suffix_of
from privctl.data.places import ARROW, PARQUET
from privctl.data.rows import column_names, require_same_types
from privctl.data.several import DataPath, SeveralPaths
from privctl.domain.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The ``form`` of a file's records (``form_of``) and, for parquet and Arrow, the types of the columns read."""

    form: str
    types: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """A file, called ``place`` in errors, from which ``rows`` records were read."""

    place: str
    rows: int
    facts: FileFacts


def facts_of(file: Path, columns: Columns, unit: str | None) -> FileFacts:
    """The facts of ``file``, from its schema or first record. Raises as ``rows_of`` does, also for an empty file."""
    if suffix_of(file) not in (PARQUET, ARROW):
        return FileFacts(form=form_of(column_names(file) or (), columns))
    wanted = columns.wanted(unit)
    types = {name: kind for name, kind in schema_of(file, str(file)).types.items() if name in wanted}
    return FileFacts(form=form_of(types, columns), types=types)


def require_agreement(path: DataPath, files: Sequence[FileRead], columns: Columns, unit: str | None) -> None:
    """Raise InputError if ``rows_of`` would on reading all ``files`` of the data at ``path``."""
    first_types: Mapping[str, str] | None = None
    first: tuple[str, str] | None = None
    for file in files:
        types = file.facts.types
        if types is not None:
            first_types = first_types or types
            require_same_types(first_types, types, columns.wanted(unit), file.place)
        if isinstance(path, SeveralPaths) and file.rows:
            first = first or (file.place, file.facts.form)
            require_form(file.place, file.facts.form, *first)
    if not any(file.rows for file in files):
        raise InputError(f"{path} holds no records; expected at least one")
