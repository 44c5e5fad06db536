"""The reports of the weights that a training begins with, and whether they were trained on the same data before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from privctl.data.recorded import recorded_files
from privctl.reports.files import FoundReport
from privctl.reports.of_model import own_reports
from privctl.reports.trained_before import earlier_training
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
    return earlier_training(starts, {file.digest for file in recorded_files(job.request.data.train)})
