"""Secrets of held-out records as a control: which of them are on their side by chance alone.

A comparison is exact if each compared secret is as likely to be on one side as any other like it. If records were
assigned to sides one by one, this holds among the secrets of one kind that occur in equally many records and on one
side only; secrets that occur on both sides are left out, since the model may know them from its training. Secrets that
share a record are assigned together, so only one of them is compared, chosen by digest before the sides are looked at.
The candidates of both sides are drawn from the values and words of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from audits.secrets.occurrences import OtherOccurrences
from audits.secrets.targets import HELD_OUT_MARK, SecretTarget, SecretTargets
from privctl.data.columns import Columns
from privctl.data.records import read_records
from privctl.data.several import DataPath
from privctl.secrets.table import read_secrets

_REPEATED = f"{HELD_OUT_MARK}in training records too"
_TOGETHER = f"{HELD_OUT_MARK}in a record with another that is compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlBook:
    """A ``book`` of secrets in held-out records, made from ``data`` like the book of the training data."""

    book: Path
    data: DataPath


@dataclass(slots=True)
class _Unit:
    """A value in all its spellings: its entries in either book, and the records (side, number) that contain it."""

    entries: dict[bool, list[tuple[str, str, int]]]
    records: set[tuple[bool, int]]


def with_held_out(
    trained: SecretTargets,
    others: SecretTargets,
    held_out: ControlBook,
    book: Path,
    data: DataPath,
    columns: Columns | None = None,
) -> SecretTargets:
    """``trained``, chosen from ``book`` and ``data``, with those of ``others``, chosen from ``held_out``.

    Secrets that can be compared are marked. The positions of held-out secrets continue from the end of ``book``.
    """
    alone, repeated = _comparable(book, held_out.book)
    strayed = _occurring_in(data, others.targets, columns) | repeated
    returned = _occurring_in(held_out.data, trained.targets, columns)
    targets = [
        replace(t, compared=(False, t.position) in alone and t.value not in returned and t.format is None)
        for t in trained.targets
    ]
    omitted = [*trained.omitted, *((kind, f"{HELD_OUT_MARK}{reason}") for kind, reason in others.omitted)]
    for target in others.targets:
        if target.value in strayed:
            omitted.append((target.kind, _REPEATED))
        elif (True, target.position) not in alone:
            omitted.append((target.kind, _TOGETHER))
        else:
            position = trained.listed + target.position
            targets.append(replace(target, position=position, held_out=True, compared=True))
    return replace(
        trained,
        targets=tuple(targets),
        omitted=tuple(omitted),
        values=_joined_books(trained.values, others.values),
        words=trained.words.joined(others.words),
    )


def fold(value: str) -> str:
    """The canonical spelling of a value: case-folded letters and digits, or all characters if there are none.

    ``fold("(555) 01-23")`` is "5550123".
    """
    plain = value.casefold()
    return "".join(sign for sign in plain if sign.isalnum()) or plain


def _comparable(*books: Path) -> tuple[set[tuple[bool, int]], set[str]]:
    """The entries (held out, position) of values on one side, no two from one record; and the values on both sides.

    Values are taken in the order of their digests, independent of their side.
    """
    units = _units(books)
    taken: set[tuple[bool, int]] = set()
    alone: set[tuple[bool, int]] = set()
    both: set[str] = set()
    for name in sorted(units, key=lambda unit: hashlib.blake2b(unit.encode(), digest_size=16).digest()):
        unit = units[name]
        if len(unit.entries) > 1:
            both.update(value for entries in unit.entries.values() for value, _, _ in entries)
        if taken.isdisjoint(unit.records):
            taken |= unit.records
            if len(unit.entries) == 1:
                ((side, entries),) = unit.entries.items()
                alone.add((side, min(entries)[2]))
    return alone, both


def _units(books: Iterable[Path]) -> dict[str, _Unit]:
    units: dict[str, _Unit] = {}
    for side, book in zip((False, True), books, strict=True):
        for position, secret in enumerate(read_secrets(book)):
            if secret.value is None or not len(secret.records):
                continue
            unit = units.setdefault(fold(secret.value), _Unit({}, set()))
            unit.entries.setdefault(side, []).append((secret.value, secret.kind, position))
            unit.records.update((side, number) for number in secret.records.tolist())
    return units


def _occurring_in(data: DataPath, targets: Collection[SecretTarget], columns: Columns | None) -> set[str]:
    """The values of ``targets`` that occur in records of ``data``, where a scan may have missed them."""
    search = OtherOccurrences({target.value: () for target in targets})
    for number, record in enumerate(read_records(data, columns)):
        search.add(number, record.text)
    return set(search.values())


def _joined_books(
    first: Mapping[str, Iterable[str]], second: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """The values of each kind in both books, in an order that does not depend on the sides."""
    kinds = {*first, *second}
    return {kind: tuple(sorted({*first.get(kind, ()), *second.get(kind, ())})) for kind in kinds}
