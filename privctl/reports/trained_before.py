"""Whether a chain of reports holds a training on data that is trained on again, or a step that read some weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.chain import ReportFiles, walk

#: Steps that train on the files that they name as data.
_TRAININGS = ("retrain", "external-training")
#: Roles of the weights that a training began with.
_BEGUN_WITH = ("start-", "base-")


def earlier_training(starts: Sequence[Path], data: Collection[str]) -> Path | None:
    """The first report of a training on a file with one of these digests, of those at ``starts`` and theirs.

    What they build on counts too. A report that is missing, or was changed since, says nothing.
    """
    for path, report in trainings(starts):
        if any(each.digest in data for each in report.inputs if each.role == "data"):
            return path
    return None


def trainings(starts: Sequence[Path]) -> Iterator[tuple[Path, PrivacyReport]]:
    """The reports of trainings, of those at ``starts`` and what they build on, with their places."""
    return ((path, report) for path, report in _chain(starts) if report.step in _TRAININGS)


def made_from(starts: Sequence[Path], among: Callable[[Sequence[Artifact]], bool]) -> Path | None:
    """The first report, of those at ``starts`` and what they build on, that made weights of files ``among`` others."""
    for path, report in _chain(starts):
        makes = any(each.role == "model" for each in report.outputs)
        read = [each for each in report.inputs if each.role == "model" or each.role.startswith(_BEGUN_WITH)]
        if makes and read and among(read):
            return path
    return None


def _chain(starts: Sequence[Path]) -> Iterator[tuple[Path, PrivacyReport]]:
    """Unchanged reports with their places; a chain longer than anyone follows ends early."""
    try:
        for visit in walk(starts, ReportFiles()):
            if visit.file.report is not None and visit.unchanged:
                yield visit.file.path, visit.file.report
    except PrivctlError:
        return
