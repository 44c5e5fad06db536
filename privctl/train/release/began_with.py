"""What a training begins with: the reports of its weights, and what the same data gave it before."""

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
    """The reports of each model that it begins with, where some lie beside these very weights."""
    model = job.request.model
    if job.model.initial_weights == "random" and not model.adapter_only:
        return
    for path in (model.path, model.adapter):
        if path is not None:
            yield from own_reports(path)


def trained_before(job: TrainingJob) -> Path | None:
    """The report of an earlier training on some of the same files, which the weights it begins with come from."""
    starts = [found.path for found in reports_of_start(job)]
    if not starts:
        return None
    return earlier_training(starts, _data(job))


def collected_before(job: TrainingJob) -> frozenset[str]:
    """What an earlier training collected from the same data, of a model that gives this run all but its weights.

    Where it begins with the weights too, ``trained_before`` says what there is to say.
    """
    model = job.request.model
    if job.model.initial_weights != "random" or model.adapter_only:
        return frozenset()
    found: set[str] = set()
    for _, report in trainings([each.path for each in own_reports(model.path)]):
        if not _data(job).isdisjoint(each.digest for each in report.inputs if each.role == "data"):
            with suppress(PrivctlError):  # of a report that does not say it as a list of names
                found.update(parameters_as(TrainingParameters, report).collected_from_data or ())
    return frozenset(found)


def _data(job: TrainingJob) -> frozenset[str]:
    """The digests of the files that are trained on."""
    return frozenset(file.digest for file in recorded_files(job.request.data.train))
