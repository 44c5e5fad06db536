"""The scan: passes over the records in memory that grows with what is found, then the book and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from privctl.data.records import byte_lines
from privctl.data.texts import TextRecord, iter_texts
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, Progress
from privctl.domain.progress import unseen as silent_progress
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.reports.files import commit_with_report, pending_artifact
from privctl.secrets.scan.finds import OccurrenceClaim, SecretGroup, SecretOccurrences, claims, outside
from privctl.secrets.scan.kinds import KINDS, LITERAL, NONE, RARE, SecretKind, chosen
from privctl.secrets.scan.literals import Literals, read_literals
from privctl.secrets.scan.patterns import Pattern, PatternError, parse_patterns
from privctl.secrets.scan.rare import Sieve, places, words
from privctl.secrets.scan.report import report_of, write_book
from privctl.secrets.scan.request import ScanRequest
from privctl.storage.atomic import PendingFile, require_absent, require_regular

_STRIDE = 1 << 12
#: Memberships that are kept at most for each secret that may be found.
_MEMBERSHIPS_EACH = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scanned:
    """What a scan came to: ``groups`` by kind, also those without secrets; ``written`` where there was one to write."""

    report: PrivacyReport
    groups: tuple[SecretGroup, ...]
    written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScanSearch:
    """What to look for: ``kinds`` in each text, and the number of texts that the user listed."""

    kinds: tuple[SecretKind, ...]
    patterns: dict[str, str]
    listed: int


def scan(request: ScanRequest, progress: Progress | None = None, *, force: bool = False) -> Scanned:
    """Find secrets, and write the book and its report; where nothing is found there is no book, only the report.

    Without ``progress`` the lines are not counted beforehand.

    Raises CommandError for files that exist and for settings and patterns that cannot be used; InputError, naming the
    line, for data that are no records, a pattern that takes too long in a record, and more secrets than are allowed;
    FileSystemError where the system refuses.
    """
    for path in (request.output, request.report):
        require_regular(path)
        require_absent(path, force)
    search = _prepared(request)
    lines = 0 if progress is None else sum(1 for _ in byte_lines(request.data))
    records, groups = _searched(request, search, lines, progress or silent_progress)
    unlisted = search.listed - sum(len(group) for group in groups if group.kind == LITERAL)
    describe = partial(report_of, request, search.patterns, groups, records=records, unseen=unlisted)
    written = any(map(len, groups))
    if written:
        with PendingFile(request.output) as book:
            write_book(book, (secret for group in groups for secret in group.secrets()))
            report = describe(book=pending_artifact("secrets", book, request.report))
            commit_with_report([book], request.report, report, replace=force)
    else:
        report = describe(book=None)
        # The book of an earlier scan goes, so that it is not taken for this one's.
        commit_with_report([], request.report, report, replace=force, remove=[request.output])
    return Scanned(report=report, groups=groups, written=written)


def _prepared(request: ScanRequest) -> _ScanSearch:
    kinds = chosen(request.kinds)
    patterns = parse_patterns(request.patterns, (*KINDS, LITERAL, RARE, NONE))
    listed = read_literals(request.literals) if request.literals else []
    if listed:
        kinds.append(SecretKind(name=LITERAL, find=Literals(listed), named=True))
    for name, expression in patterns.items():
        kinds.append(SecretKind(name=name, find=Pattern(name, expression, request.pattern_seconds), named=True))
    if not kinds and request.by is None and request.rare_words is None:
        raise CommandError(
            f"--kinds {NONE} leaves nothing to look for; give --pattern, --literals, --by or --rare-words"
        )
    return _ScanSearch(kinds=tuple(kinds), patterns=patterns, listed=len(listed))


def _searched(
    request: ScanRequest, search: _ScanSearch, lines: int, progress: Progress
) -> tuple[int, tuple[SecretGroup, ...]]:
    """How many records there are, and what is in them."""
    sieve = None if request.rare_words is None else Sieve(request.rare_least)
    if sieve is not None and sieve.needed:
        for record in _records(request, progress("counting words", lines, "lines")):
            sieve.add(words(record.text))
        sieve.settle()
    by = [] if request.by is None else [f"by-{request.by}"]
    finds = SecretOccurrences([*(kind.name for kind in search.kinds), *by])
    rare = SecretOccurrences([RARE], request.rare_words)
    number = -1
    for number, record in enumerate(_records(request, progress("scanning", lines, "lines"))):
        try:
            matches = claims(search.kinds, record.text)
        except PatternError as error:
            raise InputError(f"{record.where} {error}") from None
        for kind, place, stands in matches:
            finds.add(kind, place.key, place.value, number, stands)
        if record.unit is not None:
            finds.add(len(search.kinds), record.unit, record.unit, number, True)
        if sieve is not None:
            _add_words(rare, sieve, record.text, matches, number)
        _check_amount(finds, rare, request, record.where)
    groups = (*finds.groups(), *(rare.groups(request.rare_least) if sieve else ()))
    total = sum(map(len, groups))
    if total > request.most_secrets:
        raise InputError(
            f"{request.data} holds {counted(total, 'secret')} with its rare words, more than --most-secrets "
            f"{request.most_secrets}; lower --rare-words, raise --rare-least, or allow more"
        )
    return number + 1, groups


def _records(request: ScanRequest, shown: AbstractContextManager[Advance]) -> Iterator[TextRecord]:
    """The records, with progress by the lines that are done."""
    with shown as advance:
        done = 0
        for number, record in enumerate(iter_texts(request.data, unit=request.by)):
            yield record
            if number % _STRIDE == 0:
                advance(record.line - done)
                done = record.line


def _add_words(rare: SecretOccurrences, sieve: Sieve, text: str, found: Sequence[OccurrenceClaim], number: int) -> None:
    here = words(text)
    kept = sieve.kept(here)
    if not kept:
        return
    alone = {place.key for place in outside(places(text), found, len(text))} if found else here
    for word in kept:
        rare.add(0, word, here[word], number, word in alone)


def _check_amount(finds: SecretOccurrences, rare: SecretOccurrences, request: ScanRequest, where: str) -> None:
    most = request.most_secrets
    if len(finds) > most:
        raise InputError(
            f"{where} brings more than {counted(most, 'secret')}, most of the kind {finds.most_numerous()!r}; have "
            "that kind find less, or allow more with --most-secrets"
        )
    if finds.memberships + rare.memberships > most * _MEMBERSHIPS_EACH:
        kind = (finds if finds.memberships >= rare.memberships else rare).most_numerous()
        raise InputError(
            f"{where} brings more than {_MEMBERSHIPS_EACH} records for each of the {counted(most, 'secret')} allowed, "
            f"most of the kind {kind!r}; have that kind find less, or allow more with --most-secrets"
        )
