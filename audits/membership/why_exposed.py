"""Why a member may stand out in the data: copies, near-copies, rare words or labels.

Models mostly memorize what occurs often and what is unlike the rest (Lee et al. 2022; Feldman 2020). These are facts
about the data, found without the model, and do not prove the cause. They contain no text.
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

#: The length of a word sequence, the fraction of shared sequences that makes a near-copy, and the maximum number of
#: occurrences examined per sequence.
_SEQUENCE, _ALIKE, _PLACES = 5, 0.5, 20
#: A record has many rare words if at least this fraction, and this number, of its words occur in no other record.
_RARE_SHARE, _RARE = 0.2, 3
#: A label is rare if at most this fraction of the members has it, and at most this fraction of the mean count per
#: label: if all labels are equally frequent, or are numbers, none is rare. A record is hard above this quantile of the
#: loss.
_RARE_LABEL, _BELOW_MEAN, _HARD = 0.01, 0.25, 0.95


def why_exposed(
    members: Sequence[Record], judged: Sequence[Record], reference: NDArray[Any] | None = None
) -> dict[int, tuple[Reason, ...]]:
    """The reasons why ``judged`` records stand out, by line; most records have none.

    ``members`` are all records of the same file. ``reference`` [len(judged)] is the mean log-probability (nats) of each
    under a model that saw none of them.
    """
    copies = Counter(record.digest for record in members)
    words = [record.text.split() for record in judged]
    alike = _near_copies(words, [record.line for record in judged])
    holders = Counter(word for text_words in words for word in set(text_words))
    labels = Counter(record.label for record in members if record.label is not None)
    hard = np.inf if reference is None or not len(judged) else float(np.quantile(-reference, _HARD))
    by_record: dict[int, tuple[Reason, ...]] = {}
    for index, record in enumerate(judged):
        reasons = [
            *_copied(copies[record.digest]),
            *_near_reasons(alike.get(index)),
            *_rare_words(words[index], holders),
            *_rare_label(record.label, labels, len(members)),
        ]
        if reference is not None and -float(reference[index]) > hard:
            reasons.append(Reason(why=Why.HARD, text="harder for the reference model than 95 % of the members"))
        if reasons:
            by_record[record.line] = tuple(reasons)
    return by_record


def _copied(count: int) -> Iterator[Reason]:
    if count > 1:
        yield Reason(why=Why.COPIES, text=f"occurs {count} times in its file")


def _near_reasons(nearest: tuple[int, float] | None) -> Iterator[Reason]:
    if nearest is not None:
        line, share = nearest
        percent = f"{100 * share:.0f} %"
        yield Reason(why=Why.NEAR_COPY, text=f"{percent} of its sequences of 5 words are in line {line} too")


def _rare_words(words: Sequence[str], holders: Mapping[str, int]) -> Iterator[Reason]:
    unique_words = sum(holders[word] == 1 for word in set(words))
    if unique_words >= _RARE and unique_words >= _RARE_SHARE * len(set(words)):
        yield Reason(
            why=Why.RARE_WORDS, text=f"{unique_words} of its {counted(len(set(words)), 'word')} are in no other member"
        )


def _rare_label(label: str | None, labels: Counter[str], members: int) -> Iterator[Reason]:
    if label is not None and labels[label] <= min(_RARE_LABEL * members, _BELOW_MEAN * labels.total() / len(labels)):
        yield Reason(why=Why.RARE_LABEL, text=f"its label is that of {labels[label]} of {members} members")


def _near_copies(words: Sequence[Sequence[str]], lines: Sequence[int]) -> dict[int, tuple[int, float]]:
    """For each record, the line that shares most word sequences with it and their fraction, if large."""
    by_hash: dict[int, list[int]] = {}
    sequences = [_sequences(text_words) for text_words in words]
    for index, tokens in enumerate(sequences):
        for sequence in tokens:
            by_hash.setdefault(sequence, []).append(index)
    near = {}
    for index, tokens in enumerate(sequences):
        shared = Counter(other for sequence in tokens for other in by_hash[sequence][: _PLACES + 1] if other != index)
        if shared:
            other, count = shared.most_common(1)[0]
            if count >= _ALIKE * len(tokens):
                near[index] = lines[other], count / len(tokens)
    return near


def _sequences(words: Sequence[str]) -> list[int]:
    """Distinct hashes of the word sequences."""
    return list(dict.fromkeys(hash(tuple(words[i : i + _SEQUENCE])) for i in range(len(words) - _SEQUENCE + 1)))
