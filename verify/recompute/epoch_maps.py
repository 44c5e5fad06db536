"""Epochs of a training as affine maps of the distance between two runs, from an epoch's start to its end.

If no gradient is clipped, or all are, an epoch maps the distance d to (1 + x) d + c. Two epochs in a row are again such
a map, with x' = 2 x + x^2 and c' = (2 + x) c, so any number of epochs is reached by doubling. x is stored rather than
1 + x, which would lose a small x to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.mechanism import ClippedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMap:
    """The map d -> (1 + ``x``) d + ``c`` of one epoch, valid for d from ``least`` to ``most`` at its start."""

    x: float
    c: float
    least: float
    most: float

    def _apply(self, start: float) -> float:
        return start + (self.x * start + self.c)

    def _is_valid(self, start: float) -> bool:
        return self.least <= start <= self.most

    def run(self, start: float, epochs: int) -> tuple[int, float]:
        """The number of ``epochs`` from distance ``start`` for which the map is valid, and the distance after them.

        Distances change monotonically, so the map is valid for all epochs between two for which it is valid.
        """
        powers = [self]
        while 2 ** len(powers) <= epochs:
            last = powers[-1]
            x = last.x * (2 + last.x)
            if not math.isfinite(x):
                break
            powers.append(EpochMap(x=x, c=last.c * (2 + last.x), least=self.least, most=self.most))
        done = 0
        for power in range(len(powers) - 1, -1, -1):
            # The last epoch of the run must begin at a distance for which the map is valid.
            while done + 2**power <= epochs and self._is_valid(start):
                reached = powers[power]._apply(start)
                if not (self._is_valid(self._before(reached)) and math.isfinite(reached)):
                    break
                start, done = reached, done + 2**power
        return done, start

    def _before(self, reached: float) -> float:
        """The distance at the start of the epoch that ended at ``reached``."""
        return (reached - self.c) / (1 + self.x) if self.x > -1 else reached


def unclipped_epoch(t: ClippedTraining, count: int, change: float) -> EpochMap:
    """The map of an epoch of ``count`` steps in which all distances are at most 2C / smoothness.

    The worst step in which the record may be visited is the last one, or the first if distances grow.
    """
    assert t.smoothness is not None
    rate, room = t.learning_rate, 2 * t.clip_norm / t.smoothness
    step = rate * (t.smoothness - t.weight_decay)
    at_visit = rate * (t.smoothness * (t.batch_size - 1) / t.batch_size - t.weight_decay)
    exponent = (count - 1) * math.log1p(step)
    if exponent > 600:
        return EpochMap(x=0.0, c=0.0, least=math.inf, most=-math.inf)
    grown, visit = math.exp(exponent), rate * change / t.batch_size
    x = math.expm1(exponent + math.log1p(at_visit))
    c = visit * max(grown, 1.0)
    # Every distance within the epoch is at most the largest of the start, the grown start, and the end.
    limits = [room, room / grown, (room - c) / (1 + x), (room - visit) / (1 + at_visit)]
    return EpochMap(x=x, c=c, least=0.0, most=min(limits))


def clipped_epoch(t: ClippedTraining, count: int, change: float) -> EpochMap:
    """The map of an epoch of ``count`` steps in which all distances are at least 2C / smoothness."""
    assert t.smoothness is not None
    longest = 2 * t.clip_norm * t.learning_rate
    log_keep = math.log1p(-t.learning_rate * t.weight_decay)
    x = math.expm1(count * log_keep)
    total = longest * (count if log_keep == 0 else x / math.expm1(log_keep))
    less = (longest - t.learning_rate * change) / t.batch_size
    c = total - less * math.exp((count - 1) * log_keep)
    floor = 2 * t.clip_norm / t.smoothness + less
    rests = 2 * t.clip_norm / t.weight_decay if t.weight_decay else math.inf
    end = math.inf if x == 0 else -c / x
    never = min(rests, end) < floor
    return EpochMap(x=x, c=c, least=math.inf if never else floor, most=math.inf)
