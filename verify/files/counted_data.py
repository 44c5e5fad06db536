"""Counts of the training data: of data that the user gives, or of the files that a report names, if they are small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from privctl.data.columns import USUAL, Columns
from privctl.data.count import count_examples, possible_counts, similar_names_at
from privctl.data.places import LINES, TABLES, TEXT
from privctl.data.recorded import data_as_recorded, recorded_files
from privctl.data.several import DataPath
from privctl.domain.errors import PrivctlError
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.digest import NamedFiles
from verify.files.data import (
    DataAtHand,
    check_data,
    columns_of,
    record_limit_of,
    shared_records_of,
    stated,
    unit_of,
)
from verify.files.places import located
from verify.methods.expected import TRAINING

#: Bytes of data that are counted without being asked for; that takes about a second.
MOST_BYTES = 64 << 20
_PLAIN = (*LINES, *TABLES, TEXT)


def count_data(data: DataPath, known: Sequence[PrivacyReport], text_column: str | None = None) -> DataAtHand:
    """The examples at ``data``, read as the training among the ``known`` reports read its own.

    ``text_column``, if given, is the field of the texts. Raises as ``count_examples`` does.
    """
    unit = next(filter(None, map(unit_of, known)), None)
    most = next(filter(None, map(record_limit_of, known)), None)
    shared = next(filter(None, map(shared_records_of, known)), None)
    columns = columns_among(known, text_column)
    examples = count_examples(data, unit, columns, most, shared)
    possible = None if most is None or shared is None else possible_counts(data, unit, columns, most, shared)
    digests = tuple(file.digest for file in recorded_files(data))
    similar = None if unit is None else similar_names_at(data, unit, columns, shared=shared is not None)
    return DataAtHand(name=data.name, examples=examples, digests=digests, possible=possible, similar=similar)


def columns_among(known: Sequence[PrivacyReport], text_column: str | None) -> Columns:
    """The fields of the data: those that the training among ``known`` reports named, unless the text's is given."""
    columns = next(filter(None, map(columns_of, known)), USUAL)
    return columns if text_column is None else replace(columns, text=text_column)


def check_recorded_data(
    path: Path, report: PrivacyReport, links: Sequence[tuple[Path, PrivacyReport]], files: NamedFiles
) -> Iterator[Verdict]:
    """Yields what the data that the training's report names refute of the number of examples and of users' names.

    The training is that of ``report``, or the last one among ``links``, the reports behind it, with their paths. Only
    plain texts of at most ``MOST_BYTES`` in all are read, if they are at hand and as recorded.
    """
    training, data = _recorded(path, report, links, files)
    with suppress(PrivctlError):  # what cannot be read again is not counted again
        if training is not None and data is not None:
            verdicts = list(_compared(report, training, data))
            yield from (verdict for verdict in verdicts if verdict.outcome is Outcome.REFUTED)


def uncounted(
    path: Path, report: PrivacyReport, links: Sequence[tuple[Path, PrivacyReport]], files: NamedFiles
) -> Iterator[Omission]:
    """Says so if the examples of the training are not counted by ``check_recorded_data``."""
    training, data = _recorded(path, report, links, files)
    if training is not None and data is None:
        reason = "the data are not at hand as recorded, or not read without --data: how many examples there were, of "
        yield Omission(what="number of examples", reason=f"{reason}which each batch drew a share, is the report's word")


def _recorded(
    path: Path, report: PrivacyReport, links: Sequence[tuple[Path, PrivacyReport]], files: NamedFiles
) -> tuple[PrivacyReport | None, DataPath | None]:
    """The training of ``report``, or behind it, and its data; None for what there is not, or is not read unasked."""
    training = next(((place, link) for place, link in ((path, report), *links) if link.step == TRAINING), None)
    if stated(report) is None or training is None:
        return None, None
    place, made = training
    artifacts = [artifact for artifact in made.inputs if artifact.role == "data"]
    plain = all(Path(artifact.path).suffix.lower() in _PLAIN for artifact in artifacts)
    if not artifacts or not plain or sum(artifact.bytes for artifact in artifacts) > MOST_BYTES:
        return made, None
    with suppress(PrivctlError):
        return made, data_as_recorded([(located(place, artifact.path), artifact) for artifact in artifacts], files)
    return made, None


def _compared(report: PrivacyReport, made: PrivacyReport, data: DataPath) -> Iterator[Verdict]:
    """As ``check_data``; if only the users of the records cannot be read, no training can have read them."""
    try:
        counted = count_data(data, (report, made))
    except PrivctlError as fault:
        if (unit := unit_of(made)) is None:
            raise
        count_examples(data, columns=columns_among((made,), None))
        reason = f"it is said to have been trained with {unit!r} as the users of its records, and {fault}"
        yield Verdict(subject="data", outcome=Outcome.REFUTED, reason=reason)
        return
    yield from check_data(report, counted)
