"""Why a group of members, such as a user, may stand out: many records, repetitions, rare words or labels.

As for single records (``why_exposed``), these are facts about the data, found without the model, and do not prove the
cause. They contain no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.records import Record
from privctl.domain.leaking import Reason, Why
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A group has many records if it has at least this many times the median.
_TIMES = 4
#: A group has many repetitions if at least this fraction of its records is repeated.
_REPEATED = 0.25
#: A group has many rare words if at least this fraction, and this number, of its words occur in no other group.
_RARE_SHARE, _RARE = 0.2, 3
#: A label is rare if at most this fraction of the groups has it, and at most this fraction of the mean count per label.
_RARE_LABEL, _BELOW_MEAN, _HARD = 0.01, 0.25, 0.95


def why_groups_exposed(
    groups: Mapping[int, Sequence[Record]], reference: NDArray[Any] | None = None
) -> dict[int, tuple[Reason, ...]]:
    """The reasons why the members' ``groups``, keyed by one of their lines, stand out; most groups have none.

    ``reference`` [groups] is the mean log-probability (nats) of each under a model that saw none of them.
    """
    usual = float(np.median([len(records) for records in groups.values()])) if groups else 0.0
    texts = Counter(digest for records in groups.values() for digest in {record.digest for record in records})
    words = {line: {word for record in records for word in record.text.split()} for line, records in groups.items()}
    holders = Counter(word for group_words in words.values() for word in group_words)
    labels = Counter(label for records in groups.values() for label in _labels(records))
    rare = min(_RARE_LABEL * len(groups), _BELOW_MEAN * labels.total() / len(labels)) if labels else 0.0
    hard = np.inf if reference is None or not len(groups) else float(np.quantile(-reference, _HARD))
    by_group: dict[int, tuple[Reason, ...]] = {}
    for index, (line, records) in enumerate(groups.items()):
        reasons = [
            *_size_reasons(len(records), usual),
            *_repeated(records, texts),
            *_rare_words(words[line], holders),
            *_rare_labels(records, labels, rare, len(groups)),
        ]
        if reference is not None and -float(reference[index]) > hard:
            reasons.append(Reason(why=Why.HARD, text="harder for the reference model than 95 % of the groups"))
        if reasons:
            by_group[line] = tuple(reasons)
    return by_group


def _size_reasons(size: int, usual: float) -> Iterator[Reason]:
    if size >= _TIMES * usual:
        yield Reason(why=Why.MANY_RECORDS, text=f"{size} records, where half of the groups have {usual:g} at most")


def _repeated(records: Sequence[Record], texts: Mapping[bytes, int]) -> Iterator[Reason]:
    """Reasons for repetitions within the group, which deduplication by group would remove, and across groups."""
    repeats = len(records) - len({record.digest for record in records})
    if repeats and repeats >= _REPEATED * len(records):
        yield Reason(why=Why.COPIES, text=f"{repeats} of its {counted(len(records), 'record')} repeat others of it")
    others = sum(texts[record.digest] > 1 for record in records)
    if others and others >= _REPEATED * len(records):
        yield Reason(why=Why.SHARED, text=f"{others} of its {counted(len(records), 'record')} are in other groups too")


def _rare_words(words: set[str], holders: Mapping[str, int]) -> Iterator[Reason]:
    unique_words = sum(holders[word] == 1 for word in words)
    if unique_words >= _RARE and unique_words >= _RARE_SHARE * len(words):
        yield Reason(
            why=Why.RARE_WORDS, text=f"{unique_words} of its {counted(len(words), 'word')} are in no other group"
        )


def _rare_labels(records: Sequence[Record], labels: Counter[str], rare: float, groups: int) -> Iterator[Reason]:
    rare_labels = [label for label in _labels(records) if labels[label] <= rare]
    if rare_labels:
        count = sum(record.label in rare_labels for record in records)
        least = min(labels[label] for label in rare_labels)
        yield Reason(
            why=Why.RARE_LABEL,
            text=f"{count} of its {counted(len(records), 'record')} have a label that few groups have, one of them "
            f"{least} of {groups}",
        )


def _labels(records: Sequence[Record]) -> set[str]:
    return {record.label for record in records if record.label is not None}
