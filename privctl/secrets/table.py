"""The book of secrets: which secret is in which records, as JSON lines shared by scan, plan, training and audit.

One line per secret: ``{"id": "email-1", "kind": "email", "value": "a@b.example", "records": [3, 17]}``. Records are
counted from 0 in the order of the data, without blank lines and a table's first row. Optional are ``prior`` and
``posterior``, how well an adversary may guess the secret before and after, and ``candidates``, alternative values. The
book holds the secrets themselves: it is as sensitive as the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from privctl.data.columns import kind_of
from privctl.data.json_rows import json_objects
from privctl.domain.errors import InputError
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXPECTED = 'expected an object such as {"id": "email-1", "kind": "email", "value": "a@b.example", "records": [3, 17]}'
_KEYS = ("id", "kind", "value", "records", "prior", "posterior", "candidates")
_MOST = 2**53


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Secret:
    """One secret and the ``records`` (int64, strictly increasing) that hold it.

    ``prior`` is the largest probability that an adversary gives any value before, ``posterior`` the limit after; None
    means the plan's defaults. ``candidates`` are other values that it could have had.
    """

    id: str
    kind: str
    records: NDArray[np.int64]
    value: str | None = None
    prior: float | None = None
    posterior: float | None = None
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecretTable:
    """Secrets without their values: secret j is in ``records[starts[j]:starts[j + 1]]``.

    ``records`` [memberships] and ``starts`` [secrets + 1] are int64; ``priors`` and ``posteriors`` [secrets] float64,
    NaN if the book states none.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    starts: NDArray[np.int64]
    records: NDArray[np.int64]
    priors: NDArray[np.float64]
    posteriors: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)


def read_secrets(path: Path) -> Iterator[Secret]:
    """The secrets of the book at ``path`` (plain or ``.gz``), one at a time.

    Raises InputError, naming the line, for anything that is not a secret, for a repeated id and for an empty book;
    FileSystemError if the file cannot be read.
    """
    ids: set[str] = set()
    for number, row in json_objects(path, _EXPECTED):
        secret = _secret(row, f"{path} line {number}")
        if secret.id in ids:
            raise InputError(f"{path} line {number} has the id {shown(secret.id)} a second time; ids must differ")
        ids.add(secret.id)
        yield secret


def table_of(secrets: Iterable[Secret]) -> SecretTable:
    """``secrets`` without their values, in the same order."""
    ids, kinds, records, priors, posteriors = [], [], [], [], []
    for secret in secrets:
        ids.append(secret.id)
        kinds.append(secret.kind)
        records.append(secret.records)
        priors.append(math.nan if secret.prior is None else secret.prior)
        posteriors.append(math.nan if secret.posterior is None else secret.posterior)
    starts = np.cumsum([0, *map(len, records)], dtype=np.int64)
    return SecretTable(
        ids=tuple(ids),
        kinds=tuple(kinds),
        starts=starts,
        records=np.concatenate([*records, np.empty(0, np.int64)]),
        priors=np.array(priors, np.float64),
        posteriors=np.array(posteriors, np.float64),
    )


def write_secrets(stream: IO[bytes], secrets: Iterable[Secret]) -> int:
    """Write each secret as a line of JSON; returns how many were written."""
    count = 0
    for secret in secrets:
        row: dict[str, Any] = {"id": secret.id, "kind": secret.kind}
        if secret.value is not None:
            row["value"] = secret.value
        row["records"] = secret.records.tolist()
        row |= {k: getattr(secret, k) for k in ("prior", "posterior") if getattr(secret, k) is not None}
        if secret.candidates:
            row["candidates"] = list(secret.candidates)
        stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        count += 1
    return count


def _secret(row: Mapping[str, Any], where: str) -> Secret:
    if {"is", "shard"} <= row.keys():
        raise InputError(f"{where} begins the partial result of a scan; join all parts with privctl secrets merge")
    for key in row:
        if key not in _KEYS:
            raise InputError(f"{where} has the unknown key {shown(key)}; {_EXPECTED}")
    for key in ("id", "kind", "records"):
        if key not in row:
            raise InputError(f"{where} lacks {key!r}; {_EXPECTED}")
    return Secret(
        id=_name(row["id"], "id", where),
        kind=_name(row["kind"], "kind", where),
        records=_records(row["records"], where),
        value=None if row.get("value") is None else _text(row["value"], "value", where),
        prior=_probability(row, "prior", where),
        posterior=_probability(row, "posterior", where),
        candidates=_candidates(row.get("candidates", []), where),
    )


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} has {kind_of(value)} as {key!r}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} has an unpaired surrogate in {key!r}, which is not a character; repair it") from None
    if not value:
        raise InputError(f"{where} has an empty {key!r}; fill it or remove the line")
    return value


def _name(value: Any, key: str, where: str) -> str:
    name = _text(value, key, where)
    if not name.isprintable():
        raise InputError(f"{where} has unprintable characters in {key!r}; use letters, digits and punctuation")
    return name


def _records(value: Any, where: str) -> NDArray[np.int64]:
    if not isinstance(value, list):
        raise InputError(f"{where} has {kind_of(value)} as 'records'; expected a list of whole numbers, from 0 on")
    for item in value:
        if type(item) is not int or not 0 <= item < _MOST:
            raise InputError(f"{where} has {shown(item)} among its 'records'; expected whole numbers, from 0 on")
    return np.unique(np.array(value, dtype=np.int64))


def _probability(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InputError(f"{where} has {shown(value)} as {key!r}; expected a number above 0 and below 1")
    return float(value)


def _candidates(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where} has {kind_of(value)} as 'candidates'; expected a list of strings")
    return tuple(dict.fromkeys(_text(item, "candidates", where) for item in value))
