"""The settings to account for, targets to find the noise for, and trainings with planted canaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.harness.running import shuffled

#: The training without noise. The other trainings are named by the accountant that chose the noise.
PLAIN = "plain"
#: The accountants whose noise is used for training, by their names in reports.
WAYS = (
    "basic (naive) composition",
    "advanced composition",
    "moments / Renyi DP",
    "privacy loss distribution",
    "GDP: estimate, not a bound",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A training to account for, with a ``noise`` multiplier or, to find it, the target ``epsilon``."""

    rate: float
    steps: int
    delta: float
    noise: float | None = None
    epsilon: float | None = None

    @property
    def key(self) -> str:
        """A unique name of the setting."""
        return f"{self.noise} {self.epsilon} {self.rate!r} {self.steps} {self.delta}"


#: Settings with known noise, up to the 60 epochs of the MNIST tutorial.
KNOWN = (
    Setting(noise=1.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(noise=1.0, rate=0.005, steps=1000, delta=1e-5),
    Setting(noise=0.8, rate=0.02, steps=500, delta=1e-5),
    Setting(noise=2.0, rate=0.05, steps=2000, delta=1e-6),
    Setting(noise=1.1, rate=256 / 60000, steps=14062, delta=1e-5),
    Setting(noise=0.6, rate=0.001, steps=10000, delta=1e-6),
)
#: Settings with a target epsilon, to find the noise for.
SOUGHT = (
    Setting(epsilon=1.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(epsilon=8.0, rate=0.01, steps=1000, delta=1e-5),
    Setting(epsilon=1.0, rate=0.005, steps=1000, delta=1e-5),
    Setting(epsilon=2.0, rate=0.05, steps=1000, delta=1e-5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A small GPT-2 from random weights, trained on half of ``notes`` synthetic notes with planted canaries."""

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
    """The settings as plain values, in the form of the results."""
    return asdict(settings)


def grid(ways: Sequence[str], seeds: int) -> list[tuple[str, int]]:
    """All pairs of one of ``ways`` and a seed, shuffled within a seed."""
    return shuffled(seeds, lambda seed: [(way, seed) for way in ways])
