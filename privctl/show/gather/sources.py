"""The reports that the user named and their ancestors, each once, parents first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import CommandError, PrivctlError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.chain import ChainTooLongError, ReportFiles, absolute_path, path_of, walk
from privctl.reports.files import REPORT_SUFFIX, read_report
from privctl.storage.digest import NamedFiles

#: Most reports of one page.
MOST_REPORTS = 200
#: Files larger than this are not read to check their digests; `privctl inspect` does.
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEntry:
    """One report with its path; ``parents`` are the paths of those read, ``absent`` the names of the others."""

    path: Path
    report: PrivacyReport
    digest: str
    given: bool
    parents: tuple[Path, ...]
    absent: tuple[str, ...]
    digests: tuple[Verdict, ...]


def entries_of(paths: Sequence[Path]) -> tuple[ChainEntry, ...]:
    """The reports at ``paths`` and all their ancestors, parents first.

    Raises InputError if a file at ``paths`` is not a report, CommandError if there are too many for a page. A parent
    that is missing, unreadable or changed gets a verdict and raises nothing.
    """
    named = {absolute_path(path): read_report(path) for path in paths}
    files, reports = NamedFiles(), ReportFiles()
    entries: dict[Path, ChainEntry] = {}
    try:
        for visit in walk(list(named), reports, most=MOST_REPORTS):
            path, report = visit.file.path, visit.file.report
            if report is not None and path not in entries:
                entries[path] = _entry(path, report, reports, files, given=path in named)
    except ChainTooLongError:
        raise CommandError(f"the reports and their ancestors are more than {MOST_REPORTS}; give fewer") from None
    return tuple(entries[path] for path in _parents_first(entries))


def names_of(entries: Sequence[ChainEntry]) -> Mapping[Path, str]:
    """The name shown for each report: its file name, with as many folders as make it unique."""
    names: dict[Path, str] = {}
    for entry in entries:
        parts = entry.path.parts
        for length in range(1, len(parts) + 1):
            name = "/".join(parts[-length:]).removesuffix(".json").removesuffix(REPORT_SUFFIX.removesuffix(".json"))
            if sum(other.path.parts[-length:] == parts[-length:] for other in entries) == 1:
                break
        names[entry.path] = name
    return names


def _entry(path: Path, report: PrivacyReport, reports: ReportFiles, files: NamedFiles, *, given: bool) -> ChainEntry:
    parents, absent, verdicts = [], [], []
    for parent in dict.fromkeys(report.parents):
        place, name = path_of(path, parent), Path(parent.path).name
        file = reports.at(place)
        if not os.path.isfile(place):
            absent.append(name)
        elif file.report is None or file.digest is None:  # untrusted content, which is not quoted
            absent.append(name)
            verdicts.append(Verdict(subject=name, outcome=Outcome.REFUTED, reason="the parent is not a report"))
        else:
            verdicts.append(_digest_verdict(name, file.digest, parent.digest))
            parents.append(place)
    return ChainEntry(
        path=path,
        report=report,
        digest=files.digest(path),
        given=given,
        parents=tuple(dict.fromkeys(parents)),
        absent=tuple(absent),
        digests=(*verdicts, *_outputs(path, report, files)),
    )


def _outputs(path: Path, report: PrivacyReport, files: NamedFiles) -> Iterator[Verdict]:
    """Verdicts on the files that the step wrote; missing and very large files are inconclusive."""
    for artifact in report.outputs:
        place = path_of(path, artifact)
        name = Path(artifact.path).name
        try:
            size = place.stat().st_size if os.path.isfile(place) else -1
        except OSError:
            size = -1
        if size < 0:
            yield Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason="the file is not at the recorded path")
        elif size > _LARGEST:
            reason = "too large to be read for a page; privctl inspect checks it"
            yield Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason=reason)
        else:
            try:
                yield _digest_verdict(name, files.digest(place), artifact.digest)
            except PrivctlError as fault:
                yield Verdict(subject=name, outcome=Outcome.INCONCLUSIVE, reason=str(fault))


def _digest_verdict(name: str, actual: str, recorded: str) -> Verdict:
    if actual == recorded:
        return Verdict(subject=name, outcome=Outcome.PROVED, reason="its digest is the one recorded")
    return Verdict(subject=name, outcome=Outcome.REFUTED, reason="its digest is not the one recorded")


def _parents_first(entries: Mapping[Path, ChainEntry]) -> Iterator[Path]:
    """Parents before children, otherwise by date and path; a cycle is broken where it closes."""
    done: set[Path] = set()
    for start in sorted(entries, key=lambda path: (entries[path].report.created, str(path))):
        stack = [start]
        entered: set[Path] = set()
        while stack:
            path = stack[-1]
            missing = (
                [p for p in entries[path].parents if p not in done and p not in entered] if path not in done else []
            )
            entered.add(path)
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if path not in done:
                done.add(path)
                yield path
