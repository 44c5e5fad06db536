"""The origin of the initial weights: their reports, and earlier trainings on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from privctl.data.recorded import recorded_files
from privctl.domain.errors import PrivctlError
from privctl.reports.files import FoundReport
from privctl.reports.of_model import own_reports
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.reports.trained_before import earlier_training, trainings
from privctl.train.preparation.job import TrainingJob


def reports_of_start(job: TrainingJob) -> Iterator[FoundReport]:
    """The reports next to the initial weights, of the model and of its adapter, that are about these weights."""
    model = job.request.model
    if job.model.initial_weights == "random" and not model.adapter_only:
        return
    for path in (model.path, model.adapter):
        if path is not None:
            yield from own_reports(path)


def trained_before(job: TrainingJob) -> Path | None:
    """The report of an earlier training of the initial weights on some of the same files; None if there is none."""
    starts = [found.path for found in reports_of_start(job)]
    if not starts:
        return None
    return earlier_training(starts, _data(job))


def collected_before(job: TrainingJob) -> frozenset[str]:
    """What an earlier training collected from the same data, if this run takes everything but weights from its model.

    If it takes the weights too, ``trained_before`` covers the case.
    """
    model = job.request.model
    if job.model.initial_weights != "random" or model.adapter_only:
        return frozenset()
    found: set[str] = set()
    for _, report in trainings([each.path for each in own_reports(model.path)]):
        if not _data(job).isdisjoint(each.digest for each in report.inputs if each.role == "data"):
            with suppress(PrivctlError):  # a report in which it is not a list of names
                found.update(parameters_as(TrainingParameters, report).collected_from_data or ())
    return frozenset(found)


def _data(job: TrainingJob) -> frozenset[str]:
    """The digests of the training files."""
    return frozenset(file.digest for file in recorded_files(job.request.data.train))
