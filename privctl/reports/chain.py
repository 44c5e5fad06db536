"""The chain of reports: the single traversal that follows reports to the reports that they build on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.reports.codec import decode_bytes
from privctl.storage.digest import bytes_digest
from privctl.storage.reader import read_named_bytes

#: Most reports that are followed; a model has a handful.
MOST_REPORTS = 1000


class ChainTooLongError(InputError):
    """A chain has more reports than are followed; ``path`` is the first one left out."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(f"more than {most} reports are in one chain")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """The file at a report's path: the digest of its bytes, and the report.

    ``digest`` is None if the file cannot be read, and ``report`` None if it holds no report; ``fault`` then says why.
    """

    path: Path
    digest: str | None = None
    report: PrivacyReport | None = None
    fault: str = ""


class ReportFiles:
    """A cache of reports by path; each file is read only once."""

    def __init__(self) -> None:
        self._read: dict[Path, ReportFile] = {}

    def at(self, path: Path) -> ReportFile:
        """The file at ``path``; if it is not a report, ``fault`` names the place without quoting content."""
        place = absolute_path(path)
        if place not in self._read:
            self._read[place] = _file_at(place)
        return self._read[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A report as it is named by another.

    ``recorded`` is the digest by which ``child`` names it, as its parent number ``index``; None at the start of a
    chain. ``loops`` says that it is among its own descendants, and ``revisited`` that it was visited before, under
    another digest.
    """

    file: ReportFile
    depth: int
    recorded: str | None = None
    child: ReportFile | None = None
    index: int = 0
    loops: bool = False
    revisited: bool = False

    @property
    def unchanged(self) -> bool:
        """Whether the file still has the recorded digest; true at the start of a chain."""
        return self.recorded is None or self.recorded == self.file.digest


@dataclass(frozen=True, slots=True)
class _Waiting:
    path: Path
    depth: int
    above: frozenset[Path]
    recorded: str | None = None
    child: ReportFile | None = None
    index: int = 0


def absolute_path(path: Path) -> Path:
    """The normalized absolute ``path``, without resolving links."""
    return Path(os.path.normpath(path.absolute()))


def path_of(report: Path, named: Artifact | ParentReport) -> Path:
    """The path of a file or report that the report at ``report`` names."""
    return absolute_path(report.parent / named.path)


def walk(
    starts: Sequence[Path],
    files: ReportFiles,
    *,
    known: Callable[[str], bool] = lambda digest: False,
    follow: Callable[[Visit], bool] = lambda visit: True,
    most: int = MOST_REPORTS,
) -> Iterator[Visit]:
    """Visit the reports at ``starts`` and all reports that they build on, each once, children before parents.

    A report that is named by two digests is visited under both. Skipped are parents whose digest is ``known``, and all
    parents of a visit for which ``follow`` is false. Raises ChainTooLongError after ``most`` visits.
    """
    waiting = [_Waiting(absolute_path(path), 0, frozenset()) for path in reversed(starts)]
    visited: set[tuple[Path, str | None]] = set()
    followed: set[Path] = set()
    while waiting:
        step = waiting.pop()
        if step.path in step.above:
            yield _visit(step, files.at(step.path), loops=True)
            continue
        if (step.path, step.recorded) in visited:
            continue  # two steps share a parent
        if len(visited) == most:
            raise ChainTooLongError(step.path, most)
        visited.add((step.path, step.recorded))
        visit = _visit(step, files.at(step.path), revisited=step.path in followed)
        yield visit
        if visit.file.report is None or visit.revisited or not follow(visit):
            continue
        followed.add(step.path)
        waiting += reversed(list(_parents(step, visit.file, visit.file.report, known)))


def _visit(step: _Waiting, file: ReportFile, *, loops: bool = False, revisited: bool = False) -> Visit:
    return Visit(
        file=file, depth=step.depth, recorded=step.recorded, child=step.child, index=step.index, loops=loops,
        revisited=revisited,
    )  # fmt: skip


def _parents(
    step: _Waiting, file: ReportFile, report: PrivacyReport, known: Callable[[str], bool]
) -> Iterator[_Waiting]:
    named: set[tuple[Path, str]] = set()
    for index, parent in enumerate(report.parents):
        place = path_of(step.path, parent)
        if (place, parent.digest) not in named and not known(parent.digest):
            named.add((place, parent.digest))
            yield _Waiting(place, step.depth + 1, step.above | {step.path}, parent.digest, file, index)


def _file_at(place: Path) -> ReportFile:
    try:
        data = read_named_bytes(place)
    except PrivctlError as fault:
        return ReportFile(path=place, fault=str(fault))
    digest = bytes_digest(data)
    try:
        return ReportFile(path=place, digest=digest, report=decode_bytes(data, str(place)))
    except InputError as fault:
        return ReportFile(path=place, digest=digest, fault=str(fault))
