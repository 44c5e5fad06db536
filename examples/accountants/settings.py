"""What is compared: settings of training, targets to find the noise for, and trainings with planted canaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.harness.running import shuffled

#: Trained without noise; any other key of a training is an accountant that chose its noise.
PLAIN = "plain"
#: Accountants whose noise is trained with: as the report names them.
WAYS = (
    "basic (naive) composition",
    "advanced composition",
    "moments / Renyi DP",
    "privacy loss distribution",
    "GDP: estimate, not a bound",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A training to account for: ``noise`` multiplier, or None where it is sought for ``epsilon``."""

    rate: float
    steps: int
    delta: float
    noise: float | None = None
    epsilon: float | None = None

    @property
    def key(self) -> str:
        """What tells it from the others."""
        return f"{self.noise} {self.epsilon} {self.rate!r} {self.steps} {self.delta}"


#: The noise is known, and epsilon is sought: from the first steps of a run to the MNIST tutorial's 60 epochs.
KNOWN = (
    Setting(noise=1.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(noise=1.0, rate=0.005, steps=1000, delta=1e-5),
    Setting(noise=0.8, rate=0.02, steps=500, delta=1e-5),
    Setting(noise=2.0, rate=0.05, steps=2000, delta=1e-6),
    Setting(noise=1.1, rate=256 / 60000, steps=14062, delta=1e-5),
    Setting(noise=0.6, rate=0.001, steps=10000, delta=1e-6),
)
#: Epsilon is known, and the noise is sought.
SOUGHT = (
    Setting(epsilon=1.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(epsilon=8.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(epsilon=1.0, rate=0.005, steps=1000, delta=1e-5),
    Setting(epsilon=2.0, rate=0.05, steps=1000, delta=1e-5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Invented notes, half of them held out, with planted canaries; a small GPT-2 from nothing."""

    notes: int = 800
    canaries: int = 400
    epsilon: float = 8.0
    delta: float = 1e-5
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 0.003
    references: int = 255


QUICK = Training(notes=120, canaries=60, epochs=2, batch_size=16, references=63)


def plain(settings: Training) -> dict[str, Any]:
    """Settings as results hold them."""
    return asdict(settings)


def grid(ways: Sequence[str], seeds: int) -> list[tuple[str, int]]:
    """Each of ``ways`` with each seed, shuffled within a seed."""
    return shuffled(seeds, lambda seed: [(way, seed) for way in ways])
