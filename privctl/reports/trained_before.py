"""Whether a chain of reports holds a training on data that is trained on again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.reports.chain import ReportFiles, walk

#: Steps that train on the files that they name as data.
_TRAININGS = ("retrain", "external-training")


def earlier_training(starts: Sequence[Path], data: Collection[str]) -> Path | None:
    """The first report of a training on a file with one of these digests, of those at ``starts`` and theirs.

    What they build on counts too. A report that is missing, or was changed since, says nothing.
    """
    try:
        for visit in walk(starts, ReportFiles()):
            report = visit.file.report
            if report is None or not visit.unchanged or report.step not in _TRAININGS:
                continue
            if any(each.digest in data for each in report.inputs if each.role == "data"):
                return visit.file.path
    except PrivctlError:  # a chain longer than anyone follows
        return None
    return None
