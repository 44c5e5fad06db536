"""Searches a chain of reports for earlier training on the same data, and for steps that read certain weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.report import BEGUN_WITH, TRAININGS, Artifact, PrivacyReport
from privctl.reports.chain import ReportFiles, walk
from privctl.reports.parameters import ChoicesWithoutNoise, readable

#: The roles of the inputs that a training learns from; public records have no noise added to them.
LEARNED = ("data", "public")
#: The roles of records that chose, without noise, which layers were quantized, and which run of a search was the best.
_CHOSE_LAYERS, _CHOSE_RUN = "measured", "held-out"


def earlier_training(starts: Sequence[Path], data: Set[str]) -> Path | None:
    """The first report, among those at ``starts`` and their ancestors, of training on a file with one of these digests.

    A file that chose something without noise counts too (``roles_behind``). Reports that are missing or were changed
    are ignored.
    """
    for path, report in trainings(starts):
        read = {each.digest for each in report.inputs if each.role in roles_behind(report)}
        # Reports of earlier versions have the digest of what layers were measured on among the parameters only.
        if not data.isdisjoint({*read, _choices(report).measured_public_digest}):
            return path
    return None


def roles_behind(report: PrivacyReport) -> tuple[str, ...]:
    """The roles of the records that the weights of the training ``report`` depend on without noise, or as its data.

    Beside those that it learned from, these are the records that layers were measured on, and the held-out records of a
    search.
    """
    searched = _choices(report).search is not None
    return (*LEARNED, _CHOSE_LAYERS, *((_CHOSE_RUN,) if searched else ()))


def _choices(report: PrivacyReport) -> ChoicesWithoutNoise:
    """The choices of the training; none if the report's entries on them cannot be read."""
    return readable(ChoicesWithoutNoise, report) or ChoicesWithoutNoise()


def trainings(starts: Sequence[Path]) -> Iterator[tuple[Path, PrivacyReport]]:
    """(path, report) of each training run among the reports at ``starts`` and their ancestors."""
    return ((path, report) for path, report in _chain(starts) if report.step in TRAININGS)


def made_from(starts: Sequence[Path], among: Callable[[Sequence[Artifact]], bool]) -> Path | None:
    """The first report, among those at ``starts`` and their ancestors, of a step that wrote weights and read weights.

    ``among`` decides by the artifacts of the weights that the step read.
    """
    for path, report in _chain(starts):
        makes = any(each.role == "model" for each in report.outputs)
        read = [each for each in report.inputs if each.role == "model" or each.role.startswith(BEGUN_WITH)]
        if makes and read and among(read):
            return path
    return None


def _chain(starts: Sequence[Path]) -> Iterator[tuple[Path, PrivacyReport]]:
    """(path, report) of each unchanged report; a chain that is too long is truncated."""
    try:
        for visit in walk(starts, ReportFiles()):
            if visit.file.report is not None and visit.unchanged:
                yield visit.file.path, visit.file.report
    except PrivctlError:
        return
