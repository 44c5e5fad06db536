"""Searches the records of all data, or of a shard, for secrets, as a stream. Memory grows with the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from privctl.data.texts import TextRecord
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance
from privctl.domain.shown import counted
from privctl.secrets.scan.kinds import KINDS, LITERAL, NONE, RARE, SecretKind, select_kinds
from privctl.secrets.scan.literals import Literals, read_literals
from privctl.secrets.scan.occurrences import (
    OccurrenceClaim,
    SecretGroup,
    SecretOccurrences,
    not_covered,
    resolve_matches,
)
from privctl.secrets.scan.patterns import Pattern, PatternError, parse_patterns
from privctl.secrets.scan.rare import Sieve, places, words
from privctl.secrets.scan.request import ScanRequest

_STRIDE = 1 << 12
#: Most memberships stored per allowed secret.
_MEMBERSHIPS_EACH = 50

#: Label of the progress bar -> the records, which advance it by lines.
Reader = Callable[[str], Iterator[TextRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSearch:
    """What to search for: ``kinds`` in each text; ``listed`` is the number of texts that the user listed."""

    kinds: tuple[SecretKind, ...]
    listed: int


@dataclass(slots=True, kw_only=True, eq=False)
class SearchState:
    """The findings in the first ``records`` records: secrets of the kinds and of ``--by``, and possibly rare words."""

    occurrences: SecretOccurrences
    rare: SecretOccurrences
    records: int = 0


def prepare_search(request: ScanRequest) -> ScanSearch:
    """What ``request`` searches for. Raises CommandError for settings and patterns that cannot be used."""
    kinds = select_kinds(request.kinds)
    if request.presidio:
        from privctl.secrets.scan.kinds.presidio import presidio_kinds

        kinds += presidio_kinds()
    reserved = (*KINDS, *(kind.name for kind in kinds), LITERAL, RARE, NONE)
    patterns = parse_patterns(request.patterns, reserved)
    listed = read_literals(request.literals) if request.literals else []
    if listed:
        kinds.append(SecretKind(name=LITERAL, find=Literals(listed), by_user=True))
    for name, expression in patterns.items():
        kinds.append(SecretKind(name=name, find=Pattern(name, expression, request.pattern_seconds), by_user=True))
    if not kinds and request.by is None and request.rare_words is None:
        raise CommandError(
            f"--kinds {NONE} leaves nothing to look for; give --pattern, --literals, --by, --rare-words or --presidio"
        )
    return ScanSearch(kinds=tuple(kinds), listed=len(listed))


def empty_state(kinds: Sequence[str], request: ScanRequest) -> SearchState:
    """The state before the first record; ``kinds`` are the names of the kinds searched for in texts."""
    grouping = [] if request.by is None else [f"by-{request.by}"]
    return SearchState(
        occurrences=SecretOccurrences([*kinds, *grouping]), rare=SecretOccurrences([RARE], request.rare_words)
    )


def find(request: ScanRequest, search: ScanSearch, read: Reader) -> SearchState:
    """The findings in all records; ``read`` may be called twice."""
    sieve = None if request.rare_words is None else Sieve(request.rare_least)
    if sieve is not None and sieve.is_needed:
        for record in read("counting words"):
            sieve.add(words(record.text))
        sieve.flush()
    return _find(request, search, read, sieve, limited=True)


def find_in_shard(request: ScanRequest, search: ScanSearch, read: Reader) -> SearchState:
    """The findings in a shard's records. Every word is kept, since only all shards together show which are rare."""
    sieve = None if request.rare_words is None else Sieve(1)
    return _find(request, search, read, sieve, limited=request.rare_least == 1)


def groups_of(state: SearchState, request: ScanRequest) -> tuple[SecretGroup, ...]:
    """The secrets by kind. Raises InputError for more secrets than allowed."""
    rare = () if request.rare_words is None else state.rare.groups(request.rare_least)
    groups = (*state.occurrences.groups(), *rare)
    total = sum(map(len, groups))
    if total > request.most_secrets:
        raise InputError(
            f"{request.data} holds {counted(total, 'secret')} with its rare words, more than --most-secrets "
            f"{request.most_secrets}; lower --rare-words, raise --rare-least, or allow more"
        )
    return groups


def check_amount(state: SearchState, rare_memberships: int, request: ScanRequest, where: str) -> None:
    """Raise InputError, naming ``where``, for more secrets or memberships than allowed."""
    most = request.most_secrets
    occurrences, rare = state.occurrences, state.rare
    if len(occurrences) > most:
        raise InputError(
            f"{where} brings more than {counted(most, 'secret')}, most of the kind {occurrences.most_numerous()!r}; "
            "have that kind find less, or allow more with --most-secrets"
        )
    if occurrences.memberships + rare_memberships > most * _MEMBERSHIPS_EACH:
        kind = (occurrences if occurrences.memberships >= rare_memberships else rare).most_numerous()
        raise InputError(
            f"{where} brings more than {_MEMBERSHIPS_EACH} records for each of the {counted(most, 'secret')} allowed, "
            f"most of the kind {kind!r}; have that kind find less, or allow more with --most-secrets"
        )


def with_progress(records: Iterator[TextRecord], shown: AbstractContextManager[Advance]) -> Iterator[TextRecord]:
    """The records; progress advances by their lines."""
    with shown as advance:
        done = 0
        for number, record in enumerate(records):
            yield record
            if number % _STRIDE == 0:
                advance(record.line - done)
                done = record.line


def _find(request: ScanRequest, search: ScanSearch, read: Reader, sieve: Sieve | None, *, limited: bool) -> SearchState:
    state = empty_state([kind.name for kind in search.kinds], request)
    occurrences, rare, number = state.occurrences, state.rare, -1
    for number, record in enumerate(read("scanning")):
        try:
            matches = resolve_matches(search.kinds, record.text)
        except PatternError as error:
            raise InputError(f"{record.where} {error}") from None
        for kind, occurrence, counts in matches:
            occurrences.add(kind, occurrence.key, occurrence.value, number, counts)
        if record.unit is not None:
            occurrences.add(len(search.kinds), record.unit, record.unit, number, True)
        if sieve is not None:
            _add_words(rare, sieve, record.text, matches, number)
        check_amount(state, rare.memberships if limited else 0, request, record.where)
    state.records = number + 1
    return state


def _add_words(
    rare: SecretOccurrences, sieve: Sieve, text: str, matches: Sequence[OccurrenceClaim], number: int
) -> None:
    words_of_text = words(text)
    candidates = sieve.filter(words_of_text)
    if not candidates:
        return
    alone = (
        {occurrence.key for occurrence in not_covered(places(text), matches, len(text))} if matches else words_of_text
    )
    for word in candidates:
        rare.add(0, word, words_of_text[word], number, word in alone)
