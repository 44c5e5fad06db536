"""Checks a protection plan against the book of secrets it was made from: same records, priors and posteriors.

Bounds that fit the plan's own numbers cannot reveal that a record was left out or that a prior was chosen afterwards.
The book does, and the plan holds its digest.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.errors import InputError
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import FoundKind, ProtectionParameters, ScanParameters

Arrays = Mapping[str, NDArray[Any]]


def check_book(
    names: list[list[str]], arrays: Arrays, parameters: ProtectionParameters | None, book: Path
) -> Iterator[Verdict]:
    """Compares a plan's secrets, with their ``names`` (ids, kinds), with the ``book``.

    ``parameters`` are those of the plan's own report, with the targets of secrets for which the book has none; if they
    are None, only the book's own targets are compared. Raises InputError for an unreadable book.
    """
    ids, kinds = names
    rows = {row["id"]: row for row in _rows(book)}
    starts = arrays["starts"]
    if set(ids) != rows.keys() or len(ids) != len(rows) or len(ids) != len(starts) - 1:
        yield _refuted(book, f"the plan protects {len(ids)} secrets, and the book has {len(rows)} or others")
        return
    for j, (name, kind) in enumerate(zip(ids, kinds, strict=True)):
        row = rows[name]
        records = np.unique(np.array(row["records"], np.int64))
        if not np.array_equal(np.sort(arrays["records"][starts[j] : starts[j + 1]]), records):
            yield _refuted(book, f"the plan has the secret {name!r} in other records than the book")
            return
        for key, stated in (("prior", arrays["priors"][j]), ("posterior", arrays["posteriors"][j])):
            target = _target(row, kind, key, parameters)
            if target is not None and not math.isclose(float(stated), target, rel_tol=1e-12):
                yield _refuted(
                    book, f"the plan gives the secret {name!r} a {key} of {stated:g}, where it has {target:g}"
                )
                return
    reason = f"the plan has the records, priors and posteriors of all {len(ids)} secrets of this book"
    yield Verdict(subject=book.name, outcome=Outcome.PROVED, reason=reason)


def ids_of(book: Path) -> list[str]:
    """The ids of the secrets of the ``book``, in its order. Raises InputError for an unreadable book."""
    return [str(row["id"]) for row in _rows(book)]


def check_counts(book: Path, parameters: ScanParameters) -> Iterator[Verdict]:
    """Compares the counts by kind that a scan reports with the ``book`` that it wrote.

    Raises InputError for an unreadable book.
    """
    secrets, memberships, most = Counter[str](), Counter[str](), Counter[str]()
    records: defaultdict[str, set[int]] = defaultdict(set)
    for row in _rows(book):
        kind, count = str(row.get("kind")), len(row["records"])
        secrets[kind] += 1
        memberships[kind] += count
        most[kind] = max(most[kind], count)
        records[kind].update(row["records"])
    for kind in sorted({*secrets, *parameters.found}):
        found = FoundKind(
            secrets=secrets[kind], records=len(records[kind]), memberships=memberships[kind], most_records=most[kind]
        )
        if parameters.found.get(kind) != found:
            yield _refuted(book, f"the report does not count the secrets of kind {kind!r} as the book has them")
            return
    if max((max(each, default=-1) for each in records.values()), default=-1) >= parameters.dataset_size:
        yield _refuted(book, f"the report says that {parameters.dataset_size} records were read, and it names others")
        return
    reason = f"the report counts the {sum(secrets.values())} secrets of this book as it has them"
    yield Verdict(subject=book.name, outcome=Outcome.PROVED, reason=reason)


def _target(row: Mapping[str, Any], kind: str, key: str, parameters: ProtectionParameters | None) -> float | None:
    """The secret's own target, that of its kind, or the default; None if there is none of these."""
    own = row.get(key)
    if own is None and parameters is not None:
        default = (parameters.default_prior, parameters.default_posterior)
        own = (parameters.targets.get(kind) or default)[key == "posterior"]
    return None if own is None else float(own)


def _refuted(book: Path, reason: str) -> Verdict:
    return Verdict(subject=book.name, outcome=Outcome.REFUTED, reason=reason)


def _rows(book: Path) -> Iterator[Mapping[str, Any]]:
    with gzip.open(book) if book.suffix == ".gz" else book.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield {"id": row["id"], **row, "records": list(row["records"])}
            except (ValueError, TypeError, KeyError):
                raise InputError(f"{book} line {number} is no secret; give the book that was planned for") from None
