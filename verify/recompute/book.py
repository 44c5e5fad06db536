"""A plan of protection against the book of secrets it was made of: the same records, priors and posteriors.

Bounds that fit the plan's own numbers say nothing of a record that was left out of it, or of a prior that was chosen
afterwards; the book, whose digest the plan holds, does.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privctl.domain.errors import InputError
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import ProtectionParameters

Arrays = Mapping[str, NDArray[Any]]


def check_book(
    names: list[list[str]], arrays: Arrays, asked: ProtectionParameters | None, book: Path
) -> Iterator[Verdict]:
    """Verdicts on a plan's secrets, called ``names`` (ids, kinds), against ``book``.

    ``asked`` are the parameters of the plan's own report, with the targets of secrets that the book leaves without;
    without them, only what the book says itself is compared. Raises InputError for a book that cannot be read.
    """
    ids, kinds = names
    rows = {row["id"]: row for row in _rows(book)}
    starts = arrays["starts"]
    if set(ids) != rows.keys() or len(ids) != len(rows) or len(ids) != len(starts) - 1:
        yield _refuted(book, f"the plan protects {len(ids)} secrets, and the book has {len(rows)} or others")
        return
    for j, (name, kind) in enumerate(zip(ids, kinds, strict=True)):
        row = rows[name]
        held = np.unique(np.array(row["records"], np.int64))
        if not np.array_equal(np.sort(arrays["records"][starts[j] : starts[j + 1]]), held):
            yield _refuted(book, f"the plan has the secret {name!r} in other records than the book")
            return
        for key, told in (("prior", arrays["priors"][j]), ("posterior", arrays["posteriors"][j])):
            wanted = _target(row, kind, key, asked)
            if wanted is not None and not math.isclose(float(told), wanted, rel_tol=1e-12):
                yield _refuted(book, f"the plan gives the secret {name!r} a {key} of {told:g}, where it has {wanted:g}")
                return
    reason = f"the plan has the records, priors and posteriors of all {len(ids)} secrets of this book"
    yield Verdict(subject=book.name, outcome=Outcome.PROVED, reason=reason)


def _target(row: Mapping[str, Any], kind: str, key: str, asked: ProtectionParameters | None) -> float | None:
    """The secret's own number, that of its kind, or the default; None where nothing tells it."""
    own = row.get(key)
    if own is None and asked is not None:
        default = (asked.default_prior, asked.default_posterior)
        own = (asked.targets.get(kind) or default)[key == "posterior"]
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
