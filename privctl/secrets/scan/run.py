"""Runs a scan of all data: searches the records, then writes the book and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from privctl.data.places import require_inputs
from privctl.data.recorded import recorded_files, require_same
from privctl.data.rows import progress_total
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.progress import Progress
from privctl.domain.progress import unseen as silent_progress
from privctl.domain.report import PrivacyReport
from privctl.reports.files import commit_with_report, pending_artifact
from privctl.secrets.scan.kinds import LITERAL
from privctl.secrets.scan.occurrences import SecretGroup
from privctl.secrets.scan.report import InputFile, report_of, write_book
from privctl.secrets.scan.request import ScanRequest
from privctl.secrets.scan.search import find, groups_of, prepare_search, with_progress
from privctl.storage.atomic import PendingFile, require_absent, require_regular


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScanResult:
    """The result of a scan: ``groups`` by kind, including empty ones; ``has_book`` says whether a book was written."""

    report: PrivacyReport
    groups: tuple[SecretGroup, ...]
    has_book: bool


def scan(request: ScanRequest, progress: Progress | None = None, *, force: bool = False) -> ScanResult:
    """Find secrets, and write the book and its report if the request names an output.

    If nothing is found, only the report is written. With ``progress``, lines are counted first.

    Raises CommandError for existing files and for settings and patterns that cannot be used; InputError, naming the
    line, for data that is not records or changes while it is read, for a pattern that takes too long on a record, and
    for more secrets than allowed; FileSystemError if a file cannot be read or written.
    """
    require_inputs(request.data)
    require_writable_outputs(request, force=force)
    literals = None if request.literals is None else recorded_files(request.literals)
    search = prepare_search(request)
    data = recorded_files(request.data)
    lines = 0 if progress is None else progress_total(request.data)
    seen = progress or silent_progress

    def read(label: str) -> Iterator[TextRecord]:
        records = iter_texts(request.data, unit=request.by, columns=request.columns)
        return with_progress(records, seen(label, lines, "lines"))

    state = find(request, search, read)
    require_same(request.data, data)
    inputs = [("data", file) for file in data]
    if request.literals is not None and literals is not None:
        require_same(request.literals, literals)
        inputs += [("literals", file) for file in literals]
    return write_result(
        request, groups_of(state, request), inputs, records=state.records, listed=search.listed, force=force
    )


def require_writable_outputs(request: ScanRequest, *, force: bool) -> None:
    """Raise CommandError if files that ``request`` writes exist, unless ``force``."""
    for path in request.places:
        require_regular(path)
        require_absent(path, force)


def write_result(
    request: ScanRequest,
    groups: tuple[SecretGroup, ...],
    inputs: Sequence[InputFile],
    *,
    records: int,
    listed: int,
    force: bool,
) -> ScanResult:
    """Write the book and its report if the request names an output; ``listed`` is the number of listed texts."""
    unseen = listed - sum(len(group) for group in groups if group.kind == LITERAL)
    describe = partial(report_of, request, groups, inputs, records=records, unseen=unseen)
    any_secret = any(map(len, groups))
    if request.output is None:
        return ScanResult(report=describe(book=None), groups=groups, has_book=False)
    if any_secret:
        with PendingFile(request.output) as book:
            write_book(book, (secret for group in groups for secret in group.secrets()))
            report = describe(book=pending_artifact("secrets", book, request.report))
            commit_with_report([book], request.report, report, replace=force)
    else:
        report = describe(book=None)
        # Remove the book of an earlier scan, so that it is not mistaken for this one's.
        commit_with_report([], request.report, report, replace=force, remove=[request.output])
    return ScanResult(report=report, groups=groups, has_book=any_secret)
