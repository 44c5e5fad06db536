"""The synthetic records and batches of the test: as large, as long and as varied as those of the run may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from privctl.models.synthetic import synthetic
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import CorpusTask

#: Tokens of the short record, and of the longest if there is no limit.
_SHORT, _UNLIMITED = 6, 512
#: Number of different records in a batch with the tested one.
_DIFFERENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Public limits of the batches that a run may put through the network.

    A batch has at most ``rows`` records and ``tokens`` padded tokens. A record has at most ``length`` tokens (None: no
    limit is known), and one longer than ``tokens`` is a batch of its own. ``classes`` is the number of classes of a
    classifier.
    """

    rows: int
    tokens: int
    length: int | None = None
    classes: int = 2

    @property
    def longest_in_batch(self) -> int:
        """The most tokens that a row may have in a batch of several."""
        return min(self.length or max(_UNLIMITED, self.tokens), self.tokens // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArrangement:
    """A batch, given by its records' indices in the pool; ``targets`` are the rows that are compared.

    ``mixed`` means that rows differ in length.
    """

    name: str
    rows: tuple[int, ...]
    targets: tuple[int, ...]
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Synthetic records as a ``task``, the tested ones (``subjects``), and the batches in which they are tested.

    ``paddings`` pairs a subject with a length in tokens to which it is padded alone. ``fills`` are batches that are run
    for the state they may leave. ``longest`` is the longest record that can be a batch of its own.
    """

    task: Task
    subjects: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    arrangements: tuple[BatchArrangement, ...]
    fills: tuple[tuple[int, ...], ...]
    longest: int


def probes(task: Task, limits: BatchLimits) -> Probes:
    """The probes for ``task`` with its current padding; an image counts as a record of one token."""
    if not isinstance(task, CorpusTask):
        return _same_length_probes(task, limits, min(limits.rows, 64), length=1)
    if task.padding is not None:
        return _same_length_probes(
            task, limits, max(1, min(limits.rows, limits.tokens // task.padding)), length=task.padding
        )
    if limits.rows < 2 or limits.longest_in_batch < 4:
        return _same_length_probes(task, limits, 1, length=min(limits.length or _SHORT, limits.tokens))
    return _mixed_length_probes(task, limits)


#: Names of batches of the same shape that differ only in the records before the last, which is compared.
COPIES, PLAIN, DIFFERENT = "copies of itself", "one token beside it", "different records beside it"

#: Indices in the pool of ``_same_length_probes``: two subjects, a record that repeats one token, and others.
_FIRST, _SECOND, _ONE_TOKEN, _OTHERS = range(4)


def _same_length_probes(task: Task, limits: BatchLimits, rows: int, *, length: int) -> Probes:
    """Probes whose batches all have the same padded length."""
    short = min(_SHORT, length)
    lengths = [short, max(short, length // 2), length, *_spread(short, length, max(1, rows - 1))]
    synthetic_task = synthetic(task, lengths, plain=[_ONE_TOKEN], classes=limits.classes)
    others = tuple(range(_OTHERS, len(lengths)))
    arrangements = []
    if rows > 1:
        arrangements = [
            BatchArrangement(name="a pair", rows=(_SECOND, _FIRST), targets=(1,)),
            *_crowded_batches(_FIRST, _ONE_TOKEN, others[:_DIFFERENT], rows),
            BatchArrangement(name="others", rows=(*others[: rows - 1], _SECOND), targets=(rows - 1,)),
            BatchArrangement(name="others behind", rows=(_SECOND, *others[: rows - 1]), targets=(0,)),
        ]
    fills = ((*others[: rows - 1], _ONE_TOKEN), (_ONE_TOKEN,) * rows)
    return Probes(
        task=synthetic_task,
        subjects=(_FIRST, _SECOND),
        paddings=(),
        arrangements=tuple(arrangements),
        fills=fills,
        longest=2,
    )


def _crowded_batches(subject: int, plain: int, others: Sequence[int], rows: int) -> Iterator[BatchArrangement]:
    """Batches of the same shape: the subject after copies of itself, after ``plain`` records and after ``others``."""
    last = rows - 1
    yield BatchArrangement(name=COPIES, rows=(subject,) * rows, targets=(0, last))
    yield BatchArrangement(name=PLAIN, rows=(*(plain,) * last, subject), targets=(last,))
    yield BatchArrangement(
        name=DIFFERENT, rows=(*(others[i % len(others)] for i in range(last)), subject), targets=(last,)
    )


def _mixed_length_probes(task: Any, limits: BatchLimits) -> Probes:
    """Probes with batches of all lengths that may occur in the run."""
    longest = limits.longest_in_batch
    short = min(_SHORT, longest)
    middle = min(longest, max(short + 2, limits.tokens // limits.rows))
    crowd, many = min(limits.rows, limits.tokens // short), min(limits.rows, limits.tokens // middle)
    single = longest if limits.length is None else min(limits.length, limits.tokens)
    lengths_of_subjects = [short, middle, longest, longest, max(short, 2 * longest // 3), short, single]
    first, second, long, plain, third, plain_short, lone = range(len(lengths_of_subjects))
    alike = tuple(range(len(lengths_of_subjects), len(lengths_of_subjects) + _DIFFERENT))
    others = tuple(range(alike[-1] + 1, alike[-1] + 1 + max(1, many - 1)))
    lengths = [*lengths_of_subjects, *(short for _ in alike), *_spread(short, middle, len(others))]
    synthetic_task = synthetic(task, lengths, plain=[plain, plain_short], classes=limits.classes)
    in_front = others[: (many - 1) // 2]
    arrangements = [
        BatchArrangement(name="two thirds", rows=(third, first), targets=(1,), mixed=True),
        BatchArrangement(name="padded to the limit", rows=(long, first), targets=(1,), mixed=True),
        BatchArrangement(name="beside one token", rows=(second, plain), targets=(0,), mixed=longest > middle),
        *_crowded_batches(first, plain_short, alike, crowd),
        BatchArrangement(
            name="others", rows=(*in_front, second, *others[len(in_front) : many - 1]), targets=(len(in_front),)
        ),
        BatchArrangement(name="second copies", rows=(second,) * many, targets=(many - 1,)),
    ]
    # Batches of mixed lengths pad by more; padding by one token tests a length that none of them has.
    fits = [(first, short + 1)] if short < longest else []
    fills = ((*others[: many - 1], second), (long, plain))
    return Probes(
        task=synthetic_task,
        subjects=(first, second),
        paddings=tuple(fits),
        arrangements=tuple(arrangements),
        fills=fills,
        longest=lone,
    )


def _spread(least: int, most: int, count: int) -> list[int]:
    """``count`` lengths spread over ``least`` to ``most``, unsorted."""
    return [least + (i * 7 + 3) % (most - least + 1) for i in range(count)]
