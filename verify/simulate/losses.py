"""Privacy losses drawn from a mechanism, with the record and without it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from privctl.domain.events import Ledger
from verify.events import row_of
from verify.events.row import Draw, Floats

__all__ = ["Draw", "Floats", "LossSamples", "gaussian", "ledger_losses", "sample"]

_CHUNK = 20_000
_MOST = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LossSamples:
    """Losses of outputs with the record and without it, each of shape (n,)."""

    present: Floats
    absent: Floats

    def reversed(self) -> LossSamples:
        """The same losses with the data sets exchanged."""
        return LossSamples(-self.absent, -self.present)


def gaussian(mu: float) -> Draw:
    """Draws losses of a Gaussian with shift ``mu``, which are N(+-mu^2 / 2, mu^2)."""

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        return np.asarray(mu * rng.standard_normal(count) + (0.5 if present else -0.5) * mu * mu)

    return draw


def ledger_losses(ledger: Ledger) -> Draw | None:
    """Draws the sum of the losses of all steps; None if a kind of event cannot be simulated here."""
    parts = [
        (row_of(part).draw(part), times)
        for event in ledger.events
        for part, times in row_of(event).parts(event) or [(event, event.steps)]
    ]
    if any(step is None for step, _ in parts):
        return None

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        total = np.zeros(count)
        for step, times in parts:
            assert step is not None
            for _ in range(times):
                total += step(rng, count, present)
        return total

    return draw


def sample(draw: Draw, seed: int, seconds: float, most: int = _MOST) -> LossSamples:
    """As many losses as ``seconds`` allow, but at most ``most`` and at least one chunk."""
    rng = np.random.default_rng(seed)
    deadline = time.monotonic() + seconds
    parts: list[tuple[Floats, Floats]] = []
    while not parts or (len(parts) * _CHUNK < most and time.monotonic() < deadline):
        parts.append((draw(rng, _CHUNK, True), draw(rng, _CHUNK, False)))
    return LossSamples(*(np.concatenate(side) for side in zip(*parts, strict=True)))
