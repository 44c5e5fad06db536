"""Groups of records that share a field, such as those of one user or document, as the units of membership.

A group is entirely among the members or entirely among the non-members, and its records are dependent: whoever writes
one unusual record writes others. So labels are permuted by group, and all counts are of groups. From here on a group
takes the place of a record: each attack gives it one score, and the rest of the audit is unchanged.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from audits.membership.attack import Attack, Candidates, ScoreAttack, Settings
from audits.membership.features import record_features
from audits.membership.group_features import GroupFeatures
from audits.scores.table import FIELDS, Skip
from audits.scores.tasks import AUDIO_CLASSIFICATION, IMAGE_CLASSIFICATION
from privctl.data.columns import Columns
from privctl.data.names import spelled_alike
from privctl.data.records import Record
from privctl.data.rows import rows_of, with_progress
from privctl.data.several import DataPath
from privctl.data.users import group_of
from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.progress import Progress, unseen
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The suffix of an attack's name if only the highest scores of a group count; one in ``SHARE`` does.
TOP, SHARE = "-top", 4
#: Decimals kept relative to the largest distance from the median, so that rounding does not separate equal means.
_DECIMALS = 12
#: Tasks whose records have no fields.
WITHOUT_FIELDS = (IMAGE_CLASSIFICATION, AUDIO_CLASSIFICATION)
#: The name used instead of a field if each record is its own unit.
SINGLE_RECORDS = "none"
#: Attacks that do not apply to groups, and why.
NOT_OF_GROUPS = {
    "midpoint": "it sets a threshold for single records",
    **dict.fromkeys(
        ("recall", "con-recall"), "the records that it puts in front of others tell which groups these belong to"
    ),
}
#: Whether the record is a member, and its line in the file of that side.
_Place = tuple[bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The value of ``field`` for each record, by its side and line."""

    field: str
    names: Mapping[_Place, str]

    @property
    def similar(self) -> int:
        """How many groups have names that differ only in spelling from another's."""
        return spelled_alike(set(self.names.values()))

    def parameters(self, records: Mapping[str, int]) -> dict[str, Any]:
        """The report's parameters for an audit of groups of ``records``."""
        return {"group_by": self.field, "similar_names": self.similar, "grouped_records": records}

    def numbers(self, member: NDArray[np.bool_], line: NDArray[np.int64]) -> NDArray[np.int64]:
        """The group number of each record, given its side and line, in order of first records, [records]."""
        numbers: dict[tuple[bool, str], int] = {}
        places = zip(member.tolist(), line.tolist(), strict=True)
        keys = ((member, self.names[member, line]) for member, line in places)
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def sizes(self, lines: NDArray[np.int64]) -> dict[int, int]:
        """The number of records in each group of members, keyed by the group's line among ``lines`` [groups]."""
        counts = Counter(name for (member, _), name in self.names.items() if member)
        return {line: counts[self.names[True, line]] for line in lines.tolist()}

    def records_of(self, lines: NDArray[np.int64], members: Sequence[Record]) -> dict[int, list[Record]]:
        """The records among ``members`` of each group, keyed by the group's line among ``lines`` [groups]."""
        groups: dict[str, list[Record]] = {}
        for record in members:
            groups.setdefault(self.names[True, record.line], []).append(record)
        return {line: groups[self.names[True, line]] for line in lines.tolist()}


def read_groups(
    field: str, members: DataPath, nonmembers: DataPath, columns: Columns, progress: Progress = unseen
) -> Grouping:
    """The groups of both files. Raises InputError for a record without ``field``, and for a group in both files."""
    names: dict[_Place, str] = {}
    for member, path in ((True, members), (False, nonmembers)):
        for row in with_progress(rows_of(path, columns, unit=field, otherwise=".jsonl"), path, progress):
            names[member, row.number] = group_of(row.fields, field, row.where)
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for (member, line), name in names.items():
        sides[member].setdefault(name, line)
    for name, line in sides[True].items():
        if name in sides[False]:
            raise InputError(
                f"the group {shown(name)} of {field!r} has records among the members (line {line} of {members}) and "
                f"among the non-members (line {sides[False][name]} of {nonmembers}); give groups that were wholly "
                "trained on, or not at all"
            )
    return Grouping(field=field, names=names)


def not_named(unit: str, paths: Sequence[DataPath], attacks: Iterable[str], task: str, columns: Columns) -> str | None:
    """Why the records at ``paths`` cannot be grouped by the ``unit`` of a training; None if they can be.

    Empty if that does not matter: some ``attacks`` need single records, and images have no fields.
    """
    if task in WITHOUT_FIELDS or not NOT_OF_GROUPS.keys().isdisjoint(attacks):
        return ""
    for path in paths:
        try:
            for row in islice(rows_of(path, columns, unit=unit, otherwise=".jsonl"), 1):
                group_of(row.fields, unit, row.where)
        except PrivctlError as error:
            return str(error).partition(";")[0]
    return None


def without_shared(
    members: Sequence[Record], nonmembers: Sequence[Record], grouping: Grouping
) -> tuple[list[Record], list[Record], list[tuple[bool, int, Skip]]]:
    """Both sides without records whose text occurs in several groups, and those as (member, line, reason).

    Which of them an audit would otherwise leave out, as repeated or in both files, depends on the coins of other
    groups. What is left out here depends only on the records.
    """
    holders: dict[bytes, set[str]] = {}
    for member, records in ((True, members), (False, nonmembers)):
        for record in records:
            holders.setdefault(record.digest, set()).add(grouping.names[member, record.line])
    kept: tuple[list[Record], list[Record]] = ([], [])
    skipped: list[tuple[bool, int, Skip]] = []
    for side, (member, records) in enumerate(((True, members), (False, nonmembers))):
        for record in records:
            if len(holders[record.digest]) == 1:
                kept[side].append(record)
            else:
                skipped.append((member, record.line, Skip.SHARED))
    return *kept, skipped


def grouped(
    candidates: Candidates, grouping: Grouping, attacks: Sequence[Attack], settings: Settings
) -> tuple[Candidates, list[Attack]]:
    """Candidates that are groups instead of records, with features for the baselines, and ``attacks`` on them.

    Each attack becomes one that uses all of a group's scores (``weighed``) and one that uses the highest (``highest``).
    None of their scores depends on the labels. ``attacks`` must not include any of ``NOT_OF_GROUPS``.
    """
    index = grouping.numbers(candidates.table.member, candidates.table.line)
    scored: list[Attack] = []
    for attack in attacks:
        if isinstance(attack, ScoreAttack):
            values = attack.label_free_scores(candidates, settings)
            known = attack.unlabelled is not None
            scored.append(_of_groups(attack.name, weighed(values, index), known=known))
            if len(index) > int(index.max()) + 1:
                scored.append(_of_groups(attack.name + TOP, highest(values, index), known=False))
    return _candidates(candidates, index), scored


def _of_groups(name: str, values: NDArray[np.float64], *, known: bool) -> ScoreAttack:
    """An attack with these scores [groups]; ``known`` says that its scores of single records depend on the labels."""
    return ScoreAttack(name=name, score=lambda *_: values, unlabelled=(lambda *_: values) if known else None)


def weighed(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each group's ``values`` [records] minus that of all, times its effective size, [groups].

    The mean of n values with intraclass correlation r is worth n / (1 + (n - 1) r) independent ones: that effective
    size times the distance from the mean is, up to a factor, the log-likelihood ratio of normal values. Groups of equal
    size are ordered by their means. r is estimated by the analysis of variance (Fisher 1925), without the labels. If
    all group means are equal, all get 0.
    """
    sizes = np.bincount(index).astype(np.float64)
    distances = np.asarray(values, np.float64) - _upper_median(values)
    means = np.bincount(index, weights=distances) / sizes
    effective_size = sizes / (1 + (sizes - 1) * _correlation(distances, index, sizes, means))
    means = _tied(means)
    beyond = means - np.average(means, weights=effective_size)
    beyond[np.abs(beyond) <= 10.0**-_DECIMALS * np.abs(means).max()] = 0.0
    return np.asarray(effective_size * beyond)


def _tied(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round distances [groups], so that rounding errors do not rank groups with equal means by their sizes."""
    largest = float(np.abs(distances).max())
    return np.round(distances / largest, _DECIMALS) * largest if largest > 0 else distances


def _upper_median(values: NDArray[Any]) -> float:
    """The (upper) median: an actual score, so that equal scores are exactly 0 apart."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _correlation(
    values: NDArray[np.float64], index: NDArray[np.int64], sizes: NDArray[np.float64], means: NDArray[np.float64]
) -> float:
    """The intraclass correlation of ``values``, at least 0; 1 if no group has two records."""
    groups, total = len(sizes), len(values)
    if total == groups or groups < 2:
        return 1.0
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    within = float(((values - means[index]) ** 2).sum()) / (total - groups)
    usual = (total - float((sizes**2).sum()) / total) / (groups - 1)
    spread = between + (usual - 1) * within
    return min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 1.0


def highest(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of the highest quarter, at least one, of each group's ``values`` [records], [groups]."""
    middle = _upper_median(values)
    distances = np.asarray(values, np.float64) - middle
    order = np.lexsort((-distances, index))
    sizes = np.bincount(index)
    position = np.arange(len(index)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = -(-sizes // SHARE)
    kept = position < np.repeat(taken, sizes)
    return np.asarray(middle + _tied(np.bincount(index[order][kept], weights=distances[order][kept]) / taken))


def _candidates(candidates: Candidates, index: NDArray[np.int64]) -> Candidates:
    """The groups as candidates: their tokens concatenated, and the means of their records' features."""
    table, sizes = candidates.table, np.bincount(index)
    first = np.unique(index, return_index=True)[1]
    of_token = np.repeat(index, np.diff(table.offsets))
    order = np.argsort(of_token, kind="stable")
    listed: list[list[int]] = [[] for _ in sizes]
    for record, group in enumerate(index.tolist()):
        listed[group].append(record)
    records = [_joined_record([candidates.records[i] for i in places]) for places in listed]
    mean = sparse.csr_array((1 / sizes[index], (index, np.arange(len(index)))), shape=(len(sizes), len(index)))
    return Candidates(
        table=replace(
            table,
            **{name: getattr(table, name)[order] for name in FIELDS},
            offsets=np.concatenate([[0], np.cumsum(np.bincount(of_token))]),
            member=table.member[first],
            line=table.line[first],
            truncated=np.bincount(index, weights=table.truncated) > 0,
        ),
        records=records,
        digests=[record.digest for record in records],
        task=candidates.task,
        head=candidates.head,
        reference=None if candidates.reference is None else mean @ candidates.reference,
        features=GroupFeatures(record_features(candidates.records, candidates.ngrams), index),
    )


def _joined_record(records: Sequence[Record]) -> Record:
    """A record that stands for a group; its text is a digest of the group's records in any order."""
    names = hashlib.blake2b(b"".join(sorted(record.digest for record in records))).hexdigest()
    return Record(records[0].line, names)
