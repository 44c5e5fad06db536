"""The paper's training settings and epsilons, and the settings of the models that noise is added to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from examples.harness.running import shuffled

#: The kind of the model without noise. The other kinds are calibrations of the noise.
UNNOISED = "none"
PUBLISHED, CONVEX, ANY_LOSS = "published", "convex", "nonconvex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The paper's fine-tuning: ``examples`` records, constant learning rate, clipped gradients, claimed epsilons."""

    examples: int = 1000
    learning_rate: float = 5e-5
    clip_norm: float = 1.0
    epochs: tuple[int, ...] = (1, 5, 10, 20)
    batches: tuple[int, ...] = (5, 10, 50, 100)
    claims: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """All pairs of a number of epochs and a batch size."""
        return list(product(self.epochs, self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A small GPT-2, trained until it has memorized half of ``notes`` synthetic notes, to which noise is added.

    ``published`` are epsilons for the paper's formula. ``follows`` is the epsilon of noise for which it holds, for a
    convex loss and for any loss.
    """

    notes: int = 800
    delta: float = 1e-5
    published: tuple[float, ...] = (100.0, 10.0, 1.0, 0.1)
    follows: float = 8.0


QUICK_FORMULA = Formula(epochs=(10,), batches=(5,), claims=(0.01, 1.0, 100.0))
QUICK_MODELS = Models(notes=60, published=(1.0,))


def plain(settings: Formula | Models) -> dict[str, Any]:
    """The settings as plain values, in the form of the results."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


def grid(models: Models, seeds: int) -> list[tuple[str, float, int]]:
    """Every kind of noise and its epsilons, with each seed, shuffled within a seed."""
    kinds = [(UNNOISED, 0.0), *((PUBLISHED, claim) for claim in models.published)]
    kinds += [(CONVEX, models.follows), (ANY_LOSS, models.follows)]
    return shuffled(seeds, lambda seed: [(*kind, seed) for kind in kinds])
