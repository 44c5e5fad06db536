"""The common part of all tasks on text: a corpus, of which a step uses one example per unit, or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from privctl.models.corpora import Corpus, Encoded
from privctl.models.encoding import TextFacts
from privctl.models.tasks.base import group_by_length


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusTask:
    """Encoded texts for a model described by ``facts``; ``seed`` determines the draws, which need not be secret.

    ``padding`` is the length in tokens to which every row is padded, whatever its batch; None pads to the longest row
    of the batch. It must not depend on the examples. A sampled unit contributes up to ``per_draw`` examples.
    """

    corpus: Corpus
    facts: TextFacts
    seed: int = 0
    padding: int | None = None
    per_draw: int = 1

    def __len__(self) -> int:
        """The number of units."""
        return len(self.corpus.units)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """See ``Task``; with several examples per unit, a unit's are adjacent, and equally many for all in a group."""
        if self.per_draw > 1:
            runs = list(self.corpus.units.draw_several(units, self.seed, step, self.per_draw))
            return _groups_of_runs(runs, self.length, max_examples, max_tokens)
        drawn_examples = list(self.corpus.units.draw(units, self.seed, step))
        return group_by_length(drawn_examples, self.length, max_examples, max_tokens)

    def run_of(self, examples: Sequence[int]) -> int:
        """How many of the ``examples`` of a group each unit has."""
        if self.per_draw == 1 or not examples:
            return 1
        return len(examples) // len({self.corpus.units.owner(example) for example in examples})

    def length(self, example: int) -> int:
        """The number of tokens of an example, including fixed ``padding``."""
        return max(self.corpus.length(example), self.padding or 0)

    def rows(self, examples: Sequence[int]) -> list[Encoded]:
        """The encoded ``examples``."""
        return [self.corpus.examples[e] for e in examples]

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [row.key for row in self.rows(examples)]


def run_length(task: object, examples: Sequence[int]) -> int:
    """How many adjacent ``examples`` of a group belong to each unit; 1 for a task that is not on text."""
    return task.run_of(examples) if isinstance(task, CorpusTask) else 1


def _groups_of_runs(
    runs: Sequence[tuple[int, ...]], length: Callable[[int], int], max_examples: int, max_tokens: int | None
) -> Iterator[list[int]]:
    """Groups of units with equally many examples, the most first; a unit over the limits is its own group."""
    for size in sorted({len(run) for run in runs}, reverse=True):
        alike = [run for run in runs if len(run) == size]
        fit = max(1, max_examples // size), None if max_tokens is None else max(1, max_tokens // size)
        for group in group_by_length(alike, lambda run: max(map(length, run)), *fit):
            yield [example for run in group for example in run]
