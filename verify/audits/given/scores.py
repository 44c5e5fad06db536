"""Reads the scores that an audit was given again, from the files that its report names by digest.

If coins were drawn for groups, the scores of groups are recomputed from those of their records: the mean, weighted by
the effective size n / (1 + (n - 1) r) of n records whose scores have correlation r, and the mean of the highest
quarter.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.columns import Columns
from privctl.data.rows import rows_of
from privctl.data.users import group_of
from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.parameters import readable
from privctl.storage.json_text import parse_json
from privctl.storage.reader import read_text
from verify.files.places import as_recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Names of the columns if the report states none.
_RECORD, _MEMBER = "id", "member"
_INSIDE = {"1": True, "true": True, "0": False, "false": False}
#: The key of the metadata in a Parquet file that says how privctl computed its scores.
_NOTE = b"privctl.scores"
#: The prefix of a column's attack, and the suffix of the attack by the highest scores of a group.
_COLUMN, _TOP = "column ", "-top"
#: Group scores are rounded to _DECIMALS decimals of the largest; relative distances from the mean below _NEAR are 0.
_DECIMALS, _NEAR, _QUARTER = 9, 1e-12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenScores:
    """The ``scores`` [rows] by attack, in the order in which the audit read them, with the side and line of each row.

    ``line`` is None if the names of records do not contain line numbers. ``seed`` is the seed of the relabellings.
    """

    scores: Mapping[str, NDArray[np.float64]]
    member: NDArray[np.bool_]
    line: NDArray[np.int64] | None
    seed: int


class MisreadError(Exception):
    """The file of scores is present but does not hold what the report says."""


def is_of_scores(report: PrivacyReport) -> bool:
    """Whether the report is an audit of the scores of records from files."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    return stated is not None and stated.asked is not None and bool(stated.asked.columns)


def given_scores(path: Path, report: PrivacyReport) -> tuple[GivenScores | None, str]:
    """The scores in the files that the report at ``path`` names, or None and the reason why they cannot be used.

    Raises MisreadError if they are present but not as the report says. Older reports do not state the names of columns.
    """
    stated = readable(AuditParameters, report)
    if stated is None or stated.asked is None:
        return None, "the report does not say which scores it judges"
    places = [as_recorded(path, item) for item in report.inputs if item.role == "scores"]
    if not places or None in places:
        return None, "the file of scores is not at hand as it was"
    asked, files = stated.asked, [place for place in places if place is not None]
    try:
        names, member, scores = _columns(files, asked)
        _require_precision(files[0], stated.dtype)
        if not 0 < int(member.sum()) < len(member):
            return None, "the file of scores has records of one side only"
        rows = np.stack(list(scores.values()), axis=1)
        line = _lines(names, member)
        if stated.group_by is not None:
            index = None if line is None else _groups(path, report, stated.group_by, member, line)
            if index is None or line is None:
                return None, "the split's files are not at hand, which say whose the records are"
            first = np.unique(index, return_index=True)[1]
            scores = _of_groups(scores, index)
            member, line = member[first], line[first]
    except (InputError, ValueError, TypeError, KeyError, IndexError, csv.Error) as fault:
        if isinstance(fault, KeyError) and (asked.record_column, asked.member_column) == (None, None):
            return None, f"the file of scores has no column {fault}"
        raise MisreadError(f"the file of scores is not what the report says of it ({fault})") from fault
    named = {f"{_COLUMN}{name}": values for name, values in scores.items()}
    return GivenScores(scores=named, member=member, line=line, seed=_seed(rows)), ""


def _columns(
    files: Sequence[Path], asked: AskedAudit
) -> tuple[list[str], NDArray[np.bool_], dict[str, NDArray[np.float64]]]:
    """Each record's name, whether it is a member, and its scores by column. Exceptions of reading are passed on."""
    record, member = asked.record_column or _RECORD, asked.member_column or _MEMBER
    wanted = (record, member, *asked.columns)
    if files[0].suffix.lower() == ".parquet":
        rows = [row for file in files for row in _parquet_rows(file, wanted)]
        rows.sort(key=lambda row: row[0].encode())
    else:
        rows = [
            (str(row[record]), _INSIDE[str(row[member]).lower()], [float(row[name]) for name in asked.columns])
            for row in _text_rows(files[0])
        ]
    table = np.array([scores for _, _, scores in rows], dtype=np.float64).reshape(len(rows), len(asked.columns))
    if not np.isfinite(table).all():
        raise ValueError("a score is not finite")
    inside = np.array([side for _, side, _ in rows], dtype=np.bool_)
    # Copied because numpy sums a strided column in another order than a contiguous array.
    return [name for name, _, _ in rows], inside, {name: table[:, i].copy() for i, name in enumerate(asked.columns)}


def _require_precision(file: Path, stated: str | None) -> None:
    """Raises ValueError if privctl computed the scores in another number format than ``stated``.

    Older reports do not state it and used float32.
    """
    from privctl.data.arrow import parquet_notes

    note = parquet_notes(file).get(_NOTE) if file.suffix.lower() == ".parquet" else None
    dtype = None if note is None else parse_json(note.decode(), str(file))["settings"].get("dtype")
    if dtype != stated and (stated, dtype) != (None, "float32"):
        raise ValueError(f"its passes were in {dtype or 'no format that it names'}, and the report says {stated}")


def _text_rows(file: Path) -> Iterator[Mapping[str, Any]]:
    text = read_text(file)
    if file.suffix.lower() in (".jsonl", ".ndjson"):
        yield from (parse_json(line, str(file)) for line in text.splitlines() if line.strip())
        return
    separator = "\t" if file.suffix.lower() == ".tsv" else ","
    lines = csv.reader(text.removeprefix("\ufeff").splitlines(), delimiter=separator, strict=True)
    header = [cell.strip() for cell in next(lines)]
    yield from (dict(zip(header, map(str.strip, row), strict=False)) for row in lines if row)


def _parquet_rows(file: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bool, list[float]]]:
    import pyarrow as pa

    from privctl.data.arrow import parquet_batches

    for batch in parquet_batches(file, wanted):
        record, member, *scores = (batch.column(name) for name in wanted)
        values = [column.to_numpy(zero_copy_only=False).astype(np.float64).tolist() for column in scores]
        inside = member.to_numpy(zero_copy_only=False).astype(np.bool_).tolist()
        rows = zip(*values, strict=True)
        yield from (
            (name, side, list(row))
            for name, side, row in zip(record.cast(pa.string()).to_pylist(), inside, rows, strict=True)
        )


def _lines(names: Sequence[str], member: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The line of each record, from a name such as ``members:17``; None if a record has no such name."""
    lines = []
    for name, side in zip(names, member.tolist(), strict=True):
        word, _, line = name.partition(":")
        if word != ("members" if side else "nonmembers") or not (line.isascii() and line.isdecimal()):
            return None
        lines.append(int(line))
    return np.array(lines, np.int64)


def _groups(
    path: Path, report: PrivacyReport, field: str, member: NDArray[np.bool_], line: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The index of each record's group, in the order of first occurrence; None without the split's files."""
    names: dict[tuple[bool, int], str] = {}
    for role, side in (("members", True), ("nonmembers", False)):
        files = [as_recorded(path, item) for item in report.inputs if item.role == role]
        if len(files) != 1 or files[0] is None:
            return None
        for row in rows_of(files[0], Columns(), unit=field, otherwise=".jsonl"):
            names[side, row.number] = group_of(row.fields, field, row.where)
    seen: dict[str, int] = {}
    places = zip(member.tolist(), line.tolist(), strict=True)
    return np.array([seen.setdefault(names[row], len(seen)) for row in places], np.int64)


def _of_groups(scores: Mapping[str, NDArray[np.float64]], index: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """The scores of groups by attack, given the group ``index`` [records] of each record."""
    columns: dict[str, NDArray[np.float64]] = {}
    for name, values in scores.items():
        columns[name] = _rounded(_weighted_means(values, index))
        if len(index) > int(index.max()) + 1:
            columns[name + _TOP] = _rounded(_group_maxima(values, index))
    return columns


def _weighted_means(values: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The distance of each group's mean from the weighted mean, times the group's effective size."""
    sizes = np.bincount(index).astype(np.float64)
    values = values - np.sort(values)[len(values) // 2]  # avoids cancellation if all scores are close to each other
    means = np.bincount(index, weights=values) / sizes
    alike = _intraclass_correlation(values, index, sizes, means)
    counts = sizes / (1 + (sizes - 1) * alike)
    distances = means - (counts * means).sum() / counts.sum()
    return np.where(np.abs(distances) > _NEAR * np.abs(means).max(), counts * distances, 0.0)


def _intraclass_correlation(
    values: NDArray[np.float64], index: NDArray[np.int64], sizes: NDArray[np.float64], means: NDArray[np.float64]
) -> float:
    """The intraclass correlation, from the mean squares between and within groups, clipped to [0, 1]."""
    groups, records = len(sizes), len(values)
    if groups < 2 or groups == records:
        return 1.0
    between = float(np.dot(sizes, (means - values.mean()) ** 2)) / (groups - 1)
    within = float(np.square(values - means[index]).sum()) / (records - groups)
    size = (records - float(np.square(sizes).sum()) / records) / (groups - 1)
    whole = between + (size - 1) * within
    return min(max((between - within) / whole, 0.0), 1.0) if whole > 0 else 1.0


def _group_maxima(values: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    tops, middle = [], float(np.sort(values)[len(values) // 2])
    for group in np.split(values[np.argsort(index, kind="stable")], np.cumsum(np.bincount(index))[:-1]):
        taken = -(-len(group) // _QUARTER)
        tops.append(middle + float((np.sort(group)[::-1][:taken] - middle).sum()) / taken)
    return np.array(tops)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = float(np.abs(values).max())
    return np.round(values / largest, _DECIMALS) if largest > 0 else values


def _seed(rows: NDArray[np.float64]) -> int:
    """The seed of the relabellings: the first 8 bytes of BLAKE2b of the sorted rows [records, columns]."""
    digest = hashlib.blake2b(digest_size=8)
    for row in sorted(row.tobytes() for row in rows):
        digest.update(len(row).to_bytes(8, "big") + row)
    return int.from_bytes(digest.digest(), "big")
