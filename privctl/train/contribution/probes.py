"""Which made-up records stand together: batches as large, as long and as unlike each other as the run may make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from privctl.models.synthetic import synthetic
from privctl.models.tasks.base import Task
from privctl.models.tasks.corpus import CorpusTask

#: Tokens of the short record, and of the longest where nothing limits it.
_SHORT, _UNLIMITED = 6, 512
#: Different records that stand in turn beside the one that is looked at.
_DIFFERENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a run may put through the network at once, all of it public.

    At most ``rows`` records of ``tokens`` padded tokens together; a record has at most ``length`` tokens (None: no
    limit is known), and one that is longer than ``tokens`` passes alone. ``classes`` are those of a classifier.
    """

    rows: int
    tokens: int
    length: int | None = None
    classes: int = 2

    @property
    def beside(self) -> int:
        """The most tokens of a row that has another beside it."""
        return min(self.length or max(_UNLIMITED, self.tokens), self.tokens // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArrangement:
    """A batch by the places of its records in the pool; ``targets`` are the rows that are looked at.

    ``mixed`` says that rows differ in length.
    """

    name: str
    rows: tuple[int, ...]
    targets: tuple[int, ...]
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Made-up records as a ``task``, those that are looked at (``subjects``), and batches to look at them in.

    ``paddings`` are lengths in tokens that a lone subject may meet; ``fills`` are batches that are run for what they
    leave behind, ``longest`` is the longest record that passes alone.
    """

    task: Task
    subjects: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    arrangements: tuple[BatchArrangement, ...]
    fills: tuple[tuple[int, ...], ...]
    longest: int


def probes(task: Task, limits: BatchLimits) -> Probes:
    """For ``task`` with the padding that it has; an image is a record of one token."""
    if not isinstance(task, CorpusTask):
        return _alike(task, limits, min(limits.rows, 64), length=1)
    if task.padding is not None:
        return _alike(task, limits, max(1, min(limits.rows, limits.tokens // task.padding)), length=task.padding)
    if limits.rows < 2 or limits.beside < 4:
        return _alike(task, limits, 1, length=min(limits.length or _SHORT, limits.tokens))
    return _texts(task, limits)


#: Batches that are alike but for what stands beside the record that is looked at last.
COPIES, PLAIN, DIFFERENT = "copies of itself", "one token beside it", "different records beside it"

#: Places in the pool of ``_alike``: two subjects, one that repeats a token, and others.
_FIRST, _SECOND, _ONE_TOKEN, _OTHERS = range(4)


def _alike(task: Task, limits: BatchLimits, rows: int, *, length: int) -> Probes:
    """Batches of one padded length."""
    short = min(_SHORT, length)
    lengths = [short, max(short, length // 2), length, *_spread(short, length, max(1, rows - 1))]
    synthetic_task = synthetic(task, lengths, plain=[_ONE_TOKEN], classes=limits.classes)
    others = tuple(range(_OTHERS, len(lengths)))
    arrangements = []
    if rows > 1:
        arrangements = [
            BatchArrangement(name="a pair", rows=(_SECOND, _FIRST), targets=(1,)),
            *_crowds(_FIRST, _ONE_TOKEN, others[:_DIFFERENT], rows),
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


def _crowds(subject: int, plain: int, others: Sequence[int], rows: int) -> Iterator[BatchArrangement]:
    """The subject last among copies of itself, among records of one token and among ``others``, in the same shape."""
    last = rows - 1
    yield BatchArrangement(name=COPIES, rows=(subject,) * rows, targets=(0, last))
    yield BatchArrangement(name=PLAIN, rows=(*(plain,) * last, subject), targets=(last,))
    yield BatchArrangement(
        name=DIFFERENT, rows=(*(others[i % len(others)] for i in range(last)), subject), targets=(last,)
    )


def _texts(task: Any, limits: BatchLimits) -> Probes:
    """Batches of all lengths that the run may make."""
    longest = limits.beside
    short = min(_SHORT, longest)
    middle = min(longest, max(short + 2, limits.tokens // limits.rows))
    crowd, many = min(limits.rows, limits.tokens // short), min(limits.rows, limits.tokens // middle)
    single = longest if limits.length is None else min(limits.length, limits.tokens)
    own = [short, middle, longest, longest, max(short, 2 * longest // 3), short, single]
    first, second, long, plain, third, plain_short, lone = range(len(own))
    alike = tuple(range(len(own), len(own) + _DIFFERENT))
    others = tuple(range(alike[-1] + 1, alike[-1] + 1 + max(1, many - 1)))
    lengths = [*own, *(short for _ in alike), *_spread(short, middle, len(others))]
    synthetic_task = synthetic(task, lengths, plain=[plain, plain_short], classes=limits.classes)
    before = others[: (many - 1) // 2]
    arrangements = [
        BatchArrangement(name="two thirds", rows=(third, first), targets=(1,), mixed=True),
        BatchArrangement(name="padded to the limit", rows=(long, first), targets=(1,), mixed=True),
        BatchArrangement(name="beside one token", rows=(second, plain), targets=(0,), mixed=longest > middle),
        *_crowds(first, plain_short, alike, crowd),
        BatchArrangement(
            name="others", rows=(*before, second, *others[len(before) : many - 1]), targets=(len(before),)
        ),
        BatchArrangement(name="second copies", rows=(second,) * many, targets=(many - 1,)),
    ]
    paddings = {(first, short + 1), (first, 2 * longest // 3), (first, longest), (second, longest)}
    fits = sorted((who, length) for who, length in paddings if lengths[who] < length <= longest)
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
    """``count`` lengths from ``least`` to ``most``, in no order that length could explain."""
    return [least + (i * 7 + 3) % (most - least + 1) for i in range(count)]
