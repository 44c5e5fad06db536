"""Why a member may stand out, as far as the data show: copies, near-copies, words or labels that few others have.

Models memorize most what occurs often and what is unlike the rest (Lee et al. 2022; Feldman 2020). These are facts of
the data, found without the model, and no proof that they are the cause. They hold no text.
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

#: Words of a sequence that near-copies share, the share of these that makes one, and the most places looked at of each.
_SEQUENCE, _ALIKE, _PLACES = 5, 0.5, 20
#: The share of a record's words that no other has, and their number, from which on they are many.
_RARE_SHARE, _RARE = 0.2, 3
#: A label is rare where at most this share of the members has it, and this share of what a label has on average: of
#: many equally frequent labels, or of numbers, none is. A record is hard above the last share of them.
_RARE_LABEL, _BELOW_MEAN, _HARD = 0.01, 0.25, 0.95


def why_exposed(
    members: Sequence[Record], judged: Sequence[Record], reference: NDArray[Any] | None = None
) -> dict[int, tuple[Reason, ...]]:
    """What stands out of each record that was ``judged``, by its line; of most records nothing.

    ``members`` are all records of the same file. ``reference`` [len(judged)] is the mean log-probability (nats) of each
    under a model that saw none.
    """
    copies = Counter(record.digest for record in members)
    words = [record.text.split() for record in judged]
    alike = _near_copies(words, [record.line for record in judged])
    holders = Counter(word for each in words for word in set(each))
    labels = Counter(record.label for record in members if record.label is not None)
    hard = np.inf if reference is None or not len(judged) else float(np.quantile(-reference, _HARD))
    found: dict[int, tuple[Reason, ...]] = {}
    for place, record in enumerate(judged):
        reasons = [
            *_copied(copies[record.digest]),
            *_near(alike.get(place)),
            *_rare_words(words[place], holders),
            *_rare_label(record.label, labels, len(members)),
        ]
        if reference is not None and -float(reference[place]) > hard:
            reasons.append(Reason(why=Why.HARD, text="harder for the reference model than 95 % of the members"))
        if reasons:
            found[record.line] = tuple(reasons)
    return found


def _copied(count: int) -> Iterator[Reason]:
    if count > 1:
        yield Reason(why=Why.COPIES, text=f"stands {count} times in its file")


def _near(found: tuple[int, float] | None) -> Iterator[Reason]:
    if found is not None:
        line, share = found
        percent = f"{100 * share:.0f} %"
        yield Reason(why=Why.NEAR_COPY, text=f"{percent} of its sequences of 5 words stand in line {line} too")


def _rare_words(words: Sequence[str], holders: Mapping[str, int]) -> Iterator[Reason]:
    own = sum(holders[word] == 1 for word in set(words))
    if own >= _RARE and own >= _RARE_SHARE * len(set(words)):
        yield Reason(why=Why.RARE_WORDS, text=f"{own} of its {counted(len(set(words)), 'word')} are in no other member")


def _rare_label(label: str | None, labels: Counter[str], members: int) -> Iterator[Reason]:
    if label is not None and labels[label] <= min(_RARE_LABEL * members, _BELOW_MEAN * labels.total() / len(labels)):
        yield Reason(why=Why.RARE_LABEL, text=f"its label is that of {labels[label]} of {members} members")


def _near_copies(words: Sequence[Sequence[str]], lines: Sequence[int]) -> dict[int, tuple[int, float]]:
    """The line with the most sequences of words of each record, and their share, where that is large."""
    places: dict[int, list[int]] = {}
    sequences = [_sequences(each) for each in words]
    for place, found in enumerate(sequences):
        for sequence in found:
            places.setdefault(sequence, []).append(place)
    near = {}
    for place, found in enumerate(sequences):
        shared = Counter(other for sequence in found for other in places[sequence][: _PLACES + 1] if other != place)
        if shared:
            other, count = shared.most_common(1)[0]
            if count >= _ALIKE * len(found):
                near[place] = lines[other], count / len(found)
    return near


def _sequences(words: Sequence[str]) -> list[int]:
    """A name of each sequence of words, once."""
    return list(dict.fromkeys(hash(tuple(words[i : i + _SEQUENCE])) for i in range(len(words) - _SEQUENCE + 1)))
