"""The ways to choose layers that are compared, the fractions, and the order of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from examples.harness.running import shuffled

FRACTIONS = (0.5, 0.75, 0.9)
#: Ways to choose a fraction of the layers, and ways without a choice.
CHOOSING, FIXED = ("dpquant", "random", "static"), ("none", "all")
EPSILON, DELTA, FORMAT = 8.0, 1e-5, "luq-fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A task's settings, the same for all ways of choosing layers.

    They were found by a few trials in full precision, which no guarantee accounts for. The ``public_epochs``, on public
    data, come first.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    plain_epochs: int
    plain_batch_size: int = 64
    plain_learning_rate: float = 3e-3
    public_epochs: int = 0


TRAININGS = {
    "signs": Training(epochs=20, batch_size=256, learning_rate=1e-2, plain_epochs=10),
    "sentences": Training(
        epochs=4, batch_size=256, learning_rate=1e-3, plain_epochs=4, plain_learning_rate=1e-3, public_epochs=2
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training. ``layers`` is a value of ``--layers``; ``fraction`` is None where all or no layers are chosen."""

    task: str
    private: bool
    layers: str
    fraction: float | None
    seed: int

    @property
    def key(self) -> str:
        """A name for the files of this cell."""
        amount = "" if self.fraction is None else f"-{self.fraction:g}"
        return f"{self.task}-{'private' if self.private else 'plain'}-{self.layers}{amount}-seed{self.seed}"


def grid(tasks: Sequence[str], fractions: Sequence[float], seeds: int, statics: int) -> list[Cell]:
    """Every cell, shuffled within a seed. There are ``statics`` independent static choices."""

    def of_seed(seed: int) -> list[Cell]:
        block: list[Cell] = []
        for task in tasks:
            if seed < seeds:
                block += [
                    Cell(task=task, private=private, layers=layers, fraction=None, seed=seed)
                    for private in (True, False)
                    for layers in FIXED
                ]
            block += [
                Cell(task=task, private=True, layers=layers, fraction=fraction, seed=seed)
                for layers in CHOOSING
                for fraction in fractions
                if seed < (statics if layers == "static" else seeds)
            ]
        return block

    return shuffled(max(seeds, statics), of_seed)
