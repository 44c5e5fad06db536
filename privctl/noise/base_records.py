"""Whether the base of noise was trained on a record of the model's training that stands in another file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from privctl.data.columns import Columns
from privctl.data.contents import first_shared, texts_at
from privctl.data.count import of_texts
from privctl.data.several import DataPath, SeveralPaths
from privctl.domain.errors import PrivctlError
from privctl.domain.report import PrivacyReport
from privctl.models.choices import ONE_TEXT
from privctl.reports.chain import path_of
from privctl.reports.files import FoundReport
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.reports.trained_before import trainings
from privctl.storage.digest import NamedFiles

_RETRAIN = "retrain"


def shared_record(bases: Sequence[FoundReport], found: FoundReport) -> tuple[int, DataPath, DataPath] | None:
    """A record, by its number from 1, of data that the base was trained on, which the model's training read too.

    Returns it with both files; None where there is none, or nothing to compare. Only texts are compared, but for case
    and white space, and only of trainings whose files are where their reports say, as they were.
    """
    read = NamedFiles()
    with suppress(PrivctlError):
        for private, columns in _texts(found.path, found.report, read):
            for path, report in trainings([each.path for each in bases]):
                for earlier, others in _texts(path, report, read):
                    place = first_shared(texts_at(earlier, others), texts_at(private, columns))
                    if place is not None:
                        return place, earlier, private
    return None


def _texts(path: Path, report: PrivacyReport, read: NamedFiles) -> Iterator[tuple[DataPath, Columns]]:
    """The data of the training that ``report``, which lies at ``path``, is of, where it is texts and unchanged."""
    files = [each for each in report.inputs if each.role == "data"]
    if report.step != _RETRAIN or not files:
        return
    parameters = parameters_as(TrainingParameters, report)
    if parameters.task not in ONE_TEXT:
        return
    places = tuple(path_of(path, each) for each in files)
    for each, place in zip(files, places, strict=True):
        if not place.is_file() or not read.is_as_recorded(place, each.digest, each.bytes):
            return
    data: DataPath = places[0] if len(places) == 1 else SeveralPaths(places)
    columns = Columns(text=parameters.text_column, label=parameters.label_column)
    if of_texts(data, columns):
        yield data, columns
