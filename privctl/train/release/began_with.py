"""The origin of the initial weights: their reports, and earlier trainings on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from privctl.data.columns import columns_of_task
from privctl.data.contents import contents_at, first_shared, users_at
from privctl.data.recorded import data_as_recorded, recorded_files
from privctl.domain.errors import PrivctlError
from privctl.reports.chain import path_of
from privctl.reports.files import FoundReport
from privctl.reports.of_model import own_reports
from privctl.reports.of_start import audit_as_trained_on, reports_of_copy, unfitting_report
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.reports.trained_before import earlier_training, roles_behind, trainings
from privctl.storage.digest import NamedFiles
from privctl.train.preparation.job import TrainingJob

_LESS = ", or leave out of --data every record that they were trained on"
_LESS_OF_USERS = ", or leave out of --data everybody whose records they were trained on"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTraining:
    """The report at ``path``, by which the initial weights were trained ``on`` the same data, or some of it.

    ``otherwise`` ends a sentence that says what to do with another way out.
    """

    path: Path
    on: str
    otherwise: str = ""


def reports_of_start(job: TrainingJob) -> Iterator[FoundReport]:
    """The reports next to the initial weights, of the model and of its adapter, that are about these weights.

    Of reports that list the same tensors in other files, only those behind which there is a training on the same data:
    a new report names what this yields, and whoever saved the tensors again may have changed the files beside them.
    """
    for path in _weights(job):
        yield from own_reports(path)
        yield from (each for each in reports_of_copy(path) if _earlier(job, [each.path]) is not None)


def unfitting_reports(job: TrainingJob) -> Iterator[str]:
    """A warning for each report near the initial weights that puts in doubt that they were made without the examples.

    That is one that belongs to them and does not tell what they were trained on, and an audit of them that took the
    examples for their training data.
    """
    for path in _weights(job):
        if trained_before(job) is None and (audit := audit_as_trained_on(path, _data(job))) is not None:
            yield (
                f"{audit.name} audited the initial weights as ones that were trained on these examples; if they were, "
                "no guarantee covers what they hold of them already: begin with weights that were made without these "
                "examples"
            )
        if (unfitting := unfitting_report(path)) is not None:
            report, why = unfitting
            yield (
                f"{report.name}, which is said to be the report of the initial weights, {why}, so nothing here shows "
                "whether they were trained on these examples before; no guarantee covers what they hold of them already"
            )


def trained_before(job: TrainingJob) -> EarlierTraining | None:
    """An earlier training of the initial weights on a file of the data, or on a record of it; None if none is found.

    It is looked for in the reports of these weights, or of the same tensors in other files. Records are compared where
    the earlier training's files are unchanged at the paths that its report names, as ``contents_at`` reads them; if
    users are protected, those whom the records name in the same field.
    """
    return _earlier(
        job, [found.path for path in _weights(job) for found in (*own_reports(path), *reports_of_copy(path))]
    )


def _earlier(job: TrainingJob, starts: list[Path]) -> EarlierTraining | None:
    if not starts:
        return None
    if (place := earlier_training(starts, _data(job))) is not None:
        return EarlierTraining(path=place, on="the same data")
    return _on_shared_record(job, starts)


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


def _weights(job: TrainingJob) -> Iterator[Path]:
    """Where the initial weights are: of the model and of its adapter."""
    model = job.request.model
    if job.model.initial_weights == "random" and not model.adapter_only:
        return
    yield from filter(None, (model.path, model.adapter))


def _on_shared_record(job: TrainingJob, starts: list[Path]) -> EarlierTraining | None:
    request, read = job.request, NamedFiles()
    own = request.data.train
    behind = ((path, report, role) for path, report in trainings(starts) for role in roles_behind(report))
    for path, report, role in behind:
        with suppress(PrivctlError):  # data that cannot be read as this training reads its own
            files = [(path_of(path, each), each) for each in report.inputs if each.role == role]
            data = data_as_recorded(files, read)
            if data is None or data == own:
                continue
            earlier, named = parameters_as(TrainingParameters, report), request.data.columns
            ours = columns_of_task(request.task, named.text, named.label)
            theirs = columns_of_task(earlier.task, earlier.text_column, earlier.label_column)
            place = first_shared(contents_at(own, ours), contents_at(data, theirs))
            if place is not None:
                return EarlierTraining(path=path, on=f"record {place} of {own}, from another file,", otherwise=_LESS)
            unit = request.data.unit
            if unit is not None and users_at(own, ours, unit) & users_at(data, theirs, unit):
                whose = f"other records of a {unit!r} whose records {own} holds,"
                return EarlierTraining(path=path, on=whose, otherwise=_LESS_OF_USERS)
    return None


def _data(job: TrainingJob) -> frozenset[str]:
    """The digests of the training files."""
    return frozenset(file.digest for file in recorded_files(job.request.data.train))
