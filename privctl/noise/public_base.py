"""The base model whose weights are taken to be public: its reports, and refusing one that they show is not public."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from privctl.data.columns import Columns, columns_of_task
from privctl.data.recorded import data_as_recorded
from privctl.data.several import DataPath
from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.chain import ReportFiles, path_of
from privctl.reports.files import FoundReport
from privctl.reports.of_model import own_reports
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.reports.trained_before import earlier_training, made_from, roles_behind, trainings
from privctl.storage.digest import NamedFiles, file_digest
from privctl.storage.reader import Checkpoint

_RETRAIN = "retrain"


def reports_of_base(base: Checkpoint | None) -> tuple[FoundReport, ...]:
    """The reports of ``base``: those beside it that name its weights, and the one that its header points to."""
    return () if base is None else own_reports(base.root)


def started_from(found: FoundReport) -> tuple[FoundReport, ...]:
    """The reports that ``found`` names as its parents, if they are at hand and as they were."""
    files = ReportFiles()
    read = [(files.at(path_of(found.path, each)), each.digest) for each in found.report.parents]
    return tuple(
        FoundReport(file.path, file.report)
        for file, digest in read
        if file.report is not None and file.digest == digest
    )


def require_public(
    base: Checkpoint | None, reports: Sequence[FoundReport], found: FoundReport | None, checkpoint: Checkpoint
) -> None:
    """Raise InputError if ``reports`` of ``base`` show that its weights are not public.

    They are not if they were made from the weights of ``checkpoint``, or trained on the data that ``checkpoint`` was
    trained on by its own report ``found``, or on another file that shares a record with these data.
    """
    if base is None:
        return
    data = {each.digest for each in found.report.inputs if each.role == "data"} if found else set()
    starts = [each.path for each in reports]
    why, place = "", earlier_training(starts, data)
    if place is not None:
        why = f"trained on the data of {checkpoint.root}"
    elif (place := made_from(starts, lambda read: _includes(read, checkpoint))) is not None:
        why = f"made from {checkpoint.root}"
    if place is not None:
        raise _not_public(base, f"{why}, as {place} says")
    if found is None or not reports:
        return
    if shared := shared_record(reports, found):
        raise _not_public(base, f"trained on {shared}")


def _not_public(base: Checkpoint, why: str) -> InputError:
    return InputError(
        f"the base {base.root} was {why}, so it is not public, and noise on what differs from it, or on an adapter of "
        "it, covers only a part of what is told; give the weights that the training began with as --base, or train the "
        "adapter on a base that was made without these records"
    )


def _includes(read: Sequence[Artifact], checkpoint: Checkpoint) -> bool:
    """Whether a file of ``checkpoint`` is among those read; only files of a matching size are digested."""
    digests = {each.digest for each in read}
    sizes = {each.bytes for each in read}
    return any(file.size in sizes and file_digest(Path(file.path)) in digests for file in checkpoint.files)


def shared_record(bases: Sequence[FoundReport], found: FoundReport) -> str:
    """A record, by its number from 1, that ``bases`` and the model were both trained on, or that of a user of both.

    "" if there is none, or nothing to compare. Records are compared only if the data files are unchanged at the paths
    that the reports name, texts ignoring case and white space. Users are if the model's training protects them.
    """
    read = NamedFiles()
    with suppress(PrivctlError):
        unit = parameters_as(TrainingParameters, found.report).unit
        behind = [
            (path, report, role)
            for path, report in trainings([each.path for each in bases])
            for role in roles_behind(report)
        ]
        for private in _records(found.path, found.report, "data", read):
            for path, report, role in behind:
                with suppress(PrivctlError):  # records of another kind
                    for earlier in _records(path, report, role, read):
                        if what := _shared(earlier, private, unit):
                            return what
    return ""


def _shared(earlier: tuple[DataPath, Columns], private: tuple[DataPath, Columns], unit: str | None) -> str:
    from privctl.data.contents import contents_at, first_shared, users_at

    if (place := first_shared(contents_at(*earlier), contents_at(*private))) is not None:
        return f"record {place} of {earlier[0]}, which is also in {private[0]}, ignoring case and white space"
    if unit is not None and users_at(*earlier, unit) & users_at(*private, unit):
        return f"records of a {unit!r} in {earlier[0]} whose records are also in {private[0]}"
    return ""


def _records(path: Path, report: PrivacyReport, role: str, read: NamedFiles) -> Iterator[tuple[DataPath, Columns]]:
    """The records that the training of ``report``, which is at ``path``, read in a ``role``, and their columns.

    Nothing if their files are missing or were changed.
    """
    files = [each for each in report.inputs if each.role == role]
    if report.step != _RETRAIN or not files:
        return
    parameters = parameters_as(TrainingParameters, report)
    data = data_as_recorded([(path_of(path, each), each) for each in files], read)
    if data is not None:
        yield data, columns_of_task(parameters.task, parameters.text_column, parameters.label_column)
