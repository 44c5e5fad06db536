"""Groups of records that share a field, such as those of one user or document, as the units whose membership is asked.

A group is wholly among the members or wholly among the non-members, and its records depend on each other: who writes
one unusual record writes others. So labels are shuffled by group, and every figure counts groups. From here on a group
takes the place of a record: it has one score from each attack, and the rest of an audit does not see the difference.
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
from audits.scores.table import FIELDS, Skip
from audits.scores.tasks import AUDIO_CLASSIFICATION, IMAGE_CLASSIFICATION
from privctl.data.columns import Columns
from privctl.data.names import spelled_alike
from privctl.data.records import Record
from privctl.data.rows import rows_of
from privctl.data.several import DataPath
from privctl.data.users import group_of
from privctl.domain.errors import InputError, PrivctlError
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: What follows an attack's name where only the highest scores of a group count, and their share.
TOP, SHARE = "-top", 4
#: Decimals of the largest distance from the middle that are kept: rounding puts equal means no farther apart.
_DECIMALS = 12
#: Tasks whose records have no fields.
WITHOUT_FIELDS = (IMAGE_CLASSIFICATION, AUDIO_CLASSIFICATION)
#: What is named in place of a field where each record is to stand for itself.
SINGLE_RECORDS = "none"
#: Attacks that cannot be asked of groups, and why.
NOT_OF_GROUPS = {
    "midpoint": "it sets a threshold for single records",
    **dict.fromkeys(
        ("recall", "con-recall"), "the records that it puts in front of others tell which groups these belong to"
    ),
}
#: The side of a record and its line in the file of that side.
_Place = tuple[bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The value of ``field`` of each record, by its place."""

    field: str
    names: Mapping[_Place, str]

    @property
    def similar(self) -> int:
        """How many groups have names spelled like another's."""
        return spelled_alike(set(self.names.values()))

    def parameters(self, records: Mapping[str, int]) -> dict[str, Any]:
        """What an audit of groups of so many ``records`` states in its parameters."""
        return {"group_by": self.field, "similar_names": self.similar, "grouped_records": records}

    def numbers(self, member: NDArray[np.bool_], line: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the group of each record by its side and line, in the order of first records, [records]."""
        numbers: dict[tuple[bool, str], int] = {}
        places = zip(member.tolist(), line.tolist(), strict=True)
        keys = ((member, self.names[member, line]) for member, line in places)
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def sizes(self, lines: NDArray[np.int64]) -> dict[int, int]:
        """How many records each group of members has, by a line of it among ``lines`` [groups]."""
        counts = Counter(name for (member, _), name in self.names.items() if member)
        return {line: counts[self.names[True, line]] for line in lines.tolist()}

    def records_of(self, lines: NDArray[np.int64], members: Sequence[Record]) -> dict[int, list[Record]]:
        """The records among ``members`` of each group, by a line of it among ``lines`` [groups]."""
        groups: dict[str, list[Record]] = {}
        for record in members:
            groups.setdefault(self.names[True, record.line], []).append(record)
        return {line: groups[self.names[True, line]] for line in lines.tolist()}


def read_groups(field: str, members: DataPath, nonmembers: DataPath, columns: Columns) -> Grouping:
    """The groups of both files. Raises InputError for a record without ``field``, and for a group in both files."""
    names: dict[_Place, str] = {}
    for member, path in ((True, members), (False, nonmembers)):
        for row in rows_of(path, columns, unit=field, otherwise=".jsonl"):
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

    Empty if there is nothing to say: some ``attacks`` need single records, and images have no fields.
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
    """Both sides without records whose text several groups have, and those as (member, line, reason).

    Which of them an audit would leave out otherwise, as repeated or as on both sides, depends on the coins of other
    groups. What is left out here depends on the records alone.
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
    """The groups in place of the records, with what the baselines read, and ``attacks`` on them.

    Of each attack's scores one attack takes all (``weighed``), another the highest (``highest``). None of their scores
    depends on the labels. ``attacks`` are none of ``NOT_OF_GROUPS``.
    """
    index = grouping.numbers(candidates.table.member, candidates.table.line)
    scored: list[Attack] = []
    for attack in attacks:
        if isinstance(attack, ScoreAttack):
            values = attack.blindly(candidates, settings)
            known = attack.unlabelled is not None
            scored.append(_of_groups(attack.name, weighed(values, index), known=known))
            if len(index) > int(index.max()) + 1:
                scored.append(_of_groups(attack.name + TOP, highest(values, index), known=False))
    return _candidates(candidates, index), scored


def _of_groups(name: str, values: NDArray[np.float64], *, known: bool) -> ScoreAttack:
    """An attack with these scores [groups]; ``known`` says that those of single records would know the labels."""
    return ScoreAttack(name=name, score=lambda *_: values, unlabelled=(lambda *_: values) if known else None)


def weighed(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each group's ``values`` [records] less that of all, times how much it is worth, [groups].

    A mean of n values that correlate by r within a group is worth n / (1 + (n - 1) r) independent ones: that many
    times its distance from the middle is, but for a factor, the log-likelihood ratio of normal values. Of groups of one
    size the order is that of the means. r is estimated by the analysis of variance (Fisher 1925), without the labels.
    Groups whose means are all the same get 0.
    """
    sizes = np.bincount(index).astype(np.float64)
    distances = np.asarray(values, np.float64) - _middle(values)
    means = np.bincount(index, weights=distances) / sizes
    worth = sizes / (1 + (sizes - 1) * _correlation(distances, index, sizes, means))
    means = _tied(means)
    beyond = means - np.average(means, weights=worth)
    beyond[np.abs(beyond) <= 10.0**-_DECIMALS * np.abs(means).max()] = 0.0
    return np.asarray(worth * beyond)


def _tied(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without what rounding adds, which would rank groups with equal means by their sizes, [groups]."""
    largest = float(np.abs(distances).max())
    return np.round(distances / largest, _DECIMALS) * largest if largest > 0 else distances


def _middle(values: NDArray[Any]) -> float:
    """The median, or the higher of two: a score as it is, which leaves exactly 0 where all scores are the same."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _correlation(
    values: NDArray[np.float64], index: NDArray[np.int64], sizes: NDArray[np.float64], means: NDArray[np.float64]
) -> float:
    """The intraclass correlation of ``values``, at least 0; 1 where no group has two records."""
    groups, total = len(sizes), len(values)
    if total == groups or groups < 2:
        return 1.0
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    within = float(((values - means[index]) ** 2).sum()) / (total - groups)
    usual = (total - float((sizes**2).sum()) / total) / (groups - 1)
    spread = between + (usual - 1) * within
    return min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 1.0


def highest(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of the highest quarter of each group's ``values`` [records], of at least one, [groups]."""
    middle = _middle(values)
    distances = np.asarray(values, np.float64) - middle
    order = np.lexsort((-distances, index))
    sizes = np.bincount(index)
    place = np.arange(len(index)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = -(-sizes // SHARE)
    kept = place < np.repeat(taken, sizes)
    return np.asarray(middle + _tied(np.bincount(index[order][kept], weights=distances[order][kept]) / taken))


def _candidates(candidates: Candidates, index: NDArray[np.int64]) -> Candidates:
    """The groups as candidates: their tokens one after another, and features that are means of their records'."""
    table, sizes = candidates.table, np.bincount(index)
    first = np.unique(index, return_index=True)[1]
    of_token = np.repeat(index, np.diff(table.offsets))
    order = np.argsort(of_token, kind="stable")
    listed: list[list[int]] = [[] for _ in sizes]
    for record, group in enumerate(index.tolist()):
        listed[group].append(record)
    records = [_joined([candidates.records[i] for i in places]) for places in listed]
    mean = sparse.csr_array((1 / sizes[index], (index, np.arange(len(index)))), shape=(len(sizes), len(index)))
    features = sparse.hstack(
        [mean @ record_features(candidates.records, candidates.ngrams), sparse.csr_array(_of_size(sizes))]
    )
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
        features=sparse.csr_array(features),
    )


def _of_size(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the baselines read of the ``sizes`` of groups, [groups, 2]: the logarithm, and how far it is from usual.

    Scores of large groups lie farther out, so files whose groups differ in the spread of sizes alone differ in scores.
    The square has a larger weight than other features: one column among many n-grams has to be seen.
    """
    size = _unit(np.log(sizes))
    return np.stack([size / 4, _unit(size**2)], axis=1)


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((values - values.mean()) / (values.std() or 1.0))


def _joined(records: Sequence[Record]) -> Record:
    """A record that stands for a group: its text names those of the group, whatever their order."""
    names = hashlib.blake2b(b"".join(sorted(record.digest for record in records))).hexdigest()
    return Record(records[0].line, names)
