"""The paper's training settings and epsilons, and the models that are noised here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from examples.harness.running import shuffled

#: The model without noise; any other key of a model is how its noise was found, and for which epsilon.
UNNOISED = "none"
PUBLISHED, CONVEX, ANY_LOSS = "published", "convex", "nonconvex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The paper's fine-tuning: ``examples`` records at a constant rate, gradients clipped, and epsilons claimed."""

    examples: int = 1000
    learning_rate: float = 5e-5
    clip_norm: float = 1.0
    epochs: tuple[int, ...] = (1, 5, 10, 20)
    batches: tuple[int, ...] = (5, 10, 50, 100)
    claims: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Epochs with batch sizes."""
        return list(product(self.epochs, self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A small GPT-2, trained on invented ``notes`` until it knows half of them by heart, and noised.

    ``published`` are epsilons for the paper's formula, ``follows`` one that follows, for a convex and for any loss.
    """

    notes: int = 800
    delta: float = 1e-5
    published: tuple[float, ...] = (100.0, 10.0, 1.0, 0.1)
    follows: float = 8.0


QUICK_FORMULA = Formula(epochs=(10,), batches=(5,), claims=(0.01, 1.0, 100.0))
QUICK_MODELS = Models(notes=60, published=(1.0,))


def plain(settings: Formula | Models) -> dict[str, Any]:
    """Settings as results hold them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


def grid(models: Models, seeds: int) -> list[tuple[str, float, int]]:
    """Every kind of noise and epsilon with each seed, shuffled within a seed."""
    kinds = [(UNNOISED, 0.0), *((PUBLISHED, claim) for claim in models.published)]
    kinds += [(CONVEX, models.follows), (ANY_LOSS, models.follows)]
    return shuffled(seeds, lambda seed: [(*kind, seed) for kind in kinds])
