"""The reports given and their ancestors, each checked against the digest that its child records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.gate.files import LARGEST_REPORT, LoadedReport, load, read_bounded
from privctl.reports.chain import ChainTooLongError, ReportFiles, Visit, absolute_path, walk

READABLE, CHAIN = "readable", "chain"
#: Most reports that may be given, and most ancestors that are read.
MOST_GIVEN, _MOST = 2000, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSet:
    """The reports ``given``, their ancestors (``followed``), and a finding for each fault of either."""

    given: tuple[LoadedReport, ...]
    followed: tuple[LoadedReport, ...]
    faults: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def all(self) -> tuple[LoadedReport, ...]:
        """Every report that could be read, the given ones first."""
        return (*self.given, *self.followed)


def read_report_set(paths: Sequence[Path]) -> ReportSet:
    """Read the reports at ``paths`` and those of their ancestors that exist. Every fault becomes a finding."""
    given: dict[str, LoadedReport] = {}
    faults: list[Finding] = []
    notes: list[str] = []
    if len(paths) > MOST_GIVEN:
        message = f"{len(paths)} reports were given, and at most {MOST_GIVEN} are read"
        faults.append(
            _inconclusive(str(paths[MOST_GIVEN]), message, "judge fewer models at a time", FileLine(path=str(paths[0])))
        )
    for path in paths[:MOST_GIVEN]:
        try:
            report = load(path, read_bounded(path, LARGEST_REPORT))
        except InputError as fault:
            faults.append(_unreadable(path, str(fault)))
            continue
        if report.digest in given:
            notes.append(f"{path} is the same report as {given[report.digest].path}; it counts once")
        given.setdefault(report.digest, report)
    known = dict(given)
    faults += _ancestors([report.path for report in given.values()], known)
    followed = tuple(report for digest, report in known.items() if digest not in given)
    faults += [fault for report in (*given.values(), *followed) for fault in _lineage_faults(report, known)]
    return ReportSet(given=tuple(given.values()), followed=followed, faults=tuple(faults), notes=tuple(notes))


def _ancestors(paths: Sequence[Path], known: dict[str, LoadedReport]) -> Iterator[Finding]:
    """Add the ancestors of the reports at ``paths`` to ``known``, by digest; yield a finding for each fault."""
    most, child = len(known) + _MOST, None
    places = {absolute_path(report.path): report for report in known.values()}
    try:
        for visit in walk(paths, ReportFiles(), known=known.__contains__, follow=_is_unchanged, most=most):
            if visit.child is None:
                continue
            child = places[visit.child.path]
            parent = _parent(visit, child.place("parents", visit.index, "path"))
            if isinstance(parent, Finding):
                yield parent
            else:
                known[parent.digest] = places[visit.file.path] = parent
    except ChainTooLongError as error:
        first = next(iter(places.values()))
        yield _failure(
            str(error.path), f"more than {_MOST} reports are in one chain", (child or first).place("parents")
        )


def _is_unchanged(visit: Visit) -> bool:
    return visit.unchanged


def _parent(visit: Visit, place: FileLine) -> LoadedReport | Finding:
    """The visited report, or a finding if it is missing, has changed or cannot be read."""
    path = visit.file.path
    if visit.file.digest is None:
        message = f"the report that this one builds on is missing: {visit.file.fault}"
        return _inconclusive(str(path), message, "put it back where it was, or give it too", place)
    if not visit.unchanged:
        return _failure(str(path), "the report that this one builds on has changed: its digest differs", place)
    try:
        return load(path, read_bounded(path, LARGEST_REPORT))
    except InputError as fault:
        message = f"the report that this one builds on cannot be read: {fault}"
        return _inconclusive(str(path), message, "use the version of privctl that wrote it, or a later one", place)


def _lineage_faults(report: LoadedReport, known: dict[str, LoadedReport]) -> Iterator[Finding]:
    """A step that made a model from another must have read weights that a parent wrote, if all parents are known."""
    parents = [known.get(parent.digest) for parent in report.report.parents]
    if not report.weights_written or not parents or None in parents:
        return
    written = {a.digest for parent in parents if parent is not None for a in parent.report.outputs}
    for i, artifact in enumerate(report.report.inputs):
        if artifact.role == "model" and artifact.digest not in written:
            yield _failure(
                artifact.path,
                f"the {report.report.step} step read weights that no report it builds on wrote",
                report.place("inputs", i, "digest"),
            )


def _inconclusive(subject: str, message: str, fix: str, place: FileLine) -> Finding:
    return Finding(
        rule=CHAIN, outcome=GateOutcome.INCONCLUSIVE, subject=subject, message=message, fix=fix, place=place
    )  # fmt: skip


def _failure(subject: str, message: str, place: FileLine) -> Finding:
    return Finding(
        rule=CHAIN,
        outcome=GateOutcome.FAIL,
        subject=subject,
        message=message,
        fix="restore the reports as privctl wrote them, or run the steps again",
        place=place,
    )


def _unreadable(path: Path, message: str) -> Finding:
    return Finding(
        rule=READABLE,
        outcome=GateOutcome.INCONCLUSIVE,
        subject=str(path),
        message=message,
        fix="give the report as privctl wrote it",
        place=FileLine(path=str(path)),
    )
