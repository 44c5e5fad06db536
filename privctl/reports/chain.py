"""The chain of reports: the one walk by which every reader follows reports to those they build on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.reports.codec import decode
from privctl.storage.digest import bytes_digest
from privctl.storage.reader import named_text, read_named_bytes

#: Reports that are followed; a model has a handful.
MOST_REPORTS = 1000


class ChainTooLongError(InputError):
    """More reports are in one chain than are followed; ``path`` is the first one left out."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(f"more than {most} reports are in one chain")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """The file at a report's path: the digest of its bytes, and the report.

    ``digest`` is None where there is no file that can be read, ``report`` None where it holds no report; ``fault`` says
    why.
    """

    path: Path
    digest: str | None = None
    report: PrivacyReport | None = None
    fault: str = ""


class ReportFiles:
    """Reports by path, each read once however often it is named."""

    def __init__(self) -> None:
        self._read: dict[Path, ReportFile] = {}

    def at(self, path: Path) -> ReportFile:
        """The file at ``path``; for a file that is no report, ``fault`` names the place and repeats no content."""
        place = absolute_path(path)
        if place not in self._read:
            self._read[place] = _file_at(place)
        return self._read[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One report as another names it.

    ``recorded`` is the digest by which ``child`` names it, as the parent number ``index``; None at the start of a
    chain. ``loops``: it is among the reports that led to it. ``again``: it was visited before, under another digest.
    """

    file: ReportFile
    depth: int
    recorded: str | None = None
    child: ReportFile | None = None
    index: int = 0
    loops: bool = False
    again: bool = False

    @property
    def unchanged(self) -> bool:
        """Whether it still has the digest by which it is named."""
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
    """``path`` from the root, without following links, so that one place has one name."""
    return Path(os.path.normpath(path.absolute()))


def path_of(report: Path, named: Artifact | ParentReport) -> Path:
    """Where the report at ``report`` says that a file or another report is."""
    return absolute_path(report.parent / named.path)


def walk(
    starts: Sequence[Path],
    files: ReportFiles,
    *,
    known: Callable[[str], bool] = lambda digest: False,
    follow: Callable[[Visit], bool] = lambda visit: True,
    most: int = MOST_REPORTS,
) -> Iterator[Visit]:
    """Visit the reports at ``starts`` and all that they build on, a child before its parents, each once.

    A report that is named by two digests is visited under both. Parents whose digest is ``known`` are left out, and so
    are those of visits that are not to be followed. Raises ChainTooLongError after ``most`` visits.
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
        visit = _visit(step, files.at(step.path), again=step.path in followed)
        yield visit
        if visit.file.report is None or visit.again or not follow(visit):
            continue
        followed.add(step.path)
        waiting += reversed(list(_parents(step, visit.file, visit.file.report, known)))


def _visit(step: _Waiting, file: ReportFile, *, loops: bool = False, again: bool = False) -> Visit:
    return Visit(
        file=file, depth=step.depth, recorded=step.recorded, child=step.child, index=step.index, loops=loops,
        again=again,
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
        return ReportFile(path=place, digest=digest, report=decode(named_text(data, place), str(place)))
    except InputError as fault:
        return ReportFile(path=place, digest=digest, fault=str(fault))
