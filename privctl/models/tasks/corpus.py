"""What all tasks on text have in common: a corpus, of which a step sees one example a unit, or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from privctl.models.corpora import Corpus, Encoded
from privctl.models.encoding import TextFacts
from privctl.models.tasks.base import group_by_length


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusTask:
    """Encoded texts for a model of which ``facts`` tell; ``seed`` makes the draws, which need not stay secret.

    ``padding`` is the length in tokens to which every row is padded, whatever it is batched with; None pads to the
    longest of the batch. It must not come from the examples. A unit takes part with up to ``per_draw`` examples.
    """

    corpus: Corpus
    facts: TextFacts
    seed: int = 0
    padding: int | None = None
    per_draw: int = 1

    def __len__(self) -> int:
        """Units that are sampled."""
        return len(self.corpus.units)

    def micro_batches(
        self, units: Sequence[int], step: int, max_examples: int, max_tokens: int | None = None
    ) -> Iterator[list[int]]:
        """See ``Task``; with several a unit, those of one follow each other, as many as of all others in a group."""
        if self.per_draw > 1:
            runs = list(self.corpus.units.draw_several(units, self.seed, step, self.per_draw))
            return _groups_of_runs(runs, self.length, max_examples, max_tokens)
        drawn_examples = list(self.corpus.units.draw(units, self.seed, step))
        return group_by_length(drawn_examples, self.length, max_examples, max_tokens)

    def run_of(self, examples: Sequence[int]) -> int:
        """How many each unit has of the ``examples`` of a group."""
        if self.per_draw == 1 or not examples:
            return 1
        return len(examples) // len({self.corpus.units.owner(example) for example in examples})

    def length(self, example: int) -> int:
        """Tokens of an example with the padding that it always has."""
        return max(self.corpus.length(example), self.padding or 0)

    def rows(self, examples: Sequence[int]) -> list[Encoded]:
        """The examples themselves."""
        return [self.corpus.examples[e] for e in examples]

    def keys(self, examples: Sequence[int]) -> list[int]:
        """See ``Task``."""
        return [row.key for row in self.rows(examples)]


def run_length(task: object, examples: Sequence[int]) -> int:
    """How many of the ``examples`` of a group each unit has, one unit after another; 1 for a task on no texts."""
    return task.run_of(examples) if isinstance(task, CorpusTask) else 1


def _groups_of_runs(
    runs: Sequence[tuple[int, ...]], length: Callable[[int], int], max_examples: int, max_tokens: int | None
) -> Iterator[list[int]]:
    """Groups of units with equally many examples, the most first; a unit that is too large is a group of its own."""
    for size in sorted({len(run) for run in runs}, reverse=True):
        alike = [run for run in runs if len(run) == size]
        fit = max(1, max_examples // size), None if max_tokens is None else max(1, max_tokens // size)
        for group in group_by_length(alike, lambda run: max(map(length, run)), *fit):
            yield [example for run in group for example in run]
