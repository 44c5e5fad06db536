"""The distance of two training runs on a smooth loss, with the worst visit in each epoch, many epochs at a time.

A step without the changed example maps the distance d to f(d) = k d + lr min(beta d, 2C); a step with it in the batch
maps d to g(d) = k d + lr ((B - 1) / B min(beta d, 2C) + c / B). Here k is the factor of weight decay and c the change
of one gradient. Both increase with d, so the largest distance after an epoch of n steps is the maximum of
f^(n-1-j)(g(f^j(d))) over j.

Below d = 2C / beta, f is linear and g affine; above, both are affine with other coefficients. So an epoch that stays on
one side is an affine map of d, and many equal ones form a geometric series. Only the epochs in between are computed
step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.mechanism import ClippedTraining
from privctl.noise.series import geometric

#: The most epochs of different lengths that are computed one by one, and steps in epochs between the two cases.
MOST_EPOCHS, _MOST_STEPS = 1 << 21, 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """An epoch of ``count`` steps; ``longest`` = 2 C lr, ``visit`` = lr c / B, ``slope`` = lr beta.

    If d is at most ``most``, no gradient difference reaches its limit of 2C, and d is mapped to ``factor`` d +
    ``added``. If d is at least ``least``, all do, and d is mapped to ``clipped_factor`` d + ``clipped_added``.
    """

    count: int
    batch: int
    keep: float
    longest: float
    visit: float
    slope: float
    log_factor: float
    factor: float
    added: float
    most: float
    log_clipped_factor: float
    clipped_factor: float
    clipped_added: float
    least: float

    @classmethod
    def from_training(cls, t: ClippedTraining, change: float, count: int) -> _Epoch:
        """The map of an epoch of ``count`` steps; ``change`` bounds the change of one clipped gradient."""
        assert t.smoothness is not None
        rate, decay = t.learning_rate, t.weight_decay
        longest, visit = 2 * t.clip_norm * rate, rate * change / t.batch_size
        cut = 2 * t.clip_norm / t.smoothness
        log_keep = math.log1p(-rate * decay)
        log_grown = (count - 1) * math.log1p(rate * (t.smoothness - decay))
        at_visit = rate * (t.smoothness * (t.batch_size - 1) / t.batch_size - decay)
        log_factor = log_grown + math.log1p(at_visit)
        grown, factor = _exp(log_grown), _exp(log_factor)
        added = visit * max(grown, 1.0)
        # every distance within the epoch is at most the start, its growth without a visit, a first visit or the end
        most = min(cut, cut / max(grown, 1e-300), (cut - visit) / (1 + at_visit), (cut - added) / max(factor, 1e-300))
        short = longest / t.batch_size - visit
        rest = 2 * t.clip_norm / decay if decay else math.inf
        return cls(
            count=count, batch=t.batch_size, keep=math.exp(log_keep), longest=longest, visit=visit,
            slope=rate * t.smoothness, log_factor=log_factor, factor=factor, added=added, most=most,
            log_clipped_factor=count * log_keep, clipped_factor=math.exp(count * log_keep),
            clipped_added=longest * geometric(log_keep, count) - short * math.exp((count - 1) * log_keep),
            least=cut + short if rest >= cut + short else math.inf,
        )  # fmt: skip

    def after_linear(self, epochs: int) -> float:
        """The distance after ``epochs`` such epochs, starting from 0, if all stay in the linear case."""
        return self.added * geometric(self.log_factor, epochs) if epochs else 0.0  # ``added`` may be infinite

    def after_clipped(self, start: float, epochs: int) -> float:
        """The distance after ``epochs`` from ``start`` in the clipped case; an upper bound in every case."""
        return math.exp(epochs * self.log_clipped_factor) * start + self.clipped_added * geometric(
            self.log_clipped_factor, epochs
        )

    def step_by_step(self, start: float) -> float:
        """The distance after one epoch, computed step by step: the maximum over the step of the visit."""
        before_visit, after_visit = start, -math.inf
        for _ in range(self.count):
            growth = min(self.slope * before_visit, self.longest)
            visited_now = self.keep * before_visit + (self.batch - 1) / self.batch * growth + self.visit
            if after_visit >= 0:
                visited_earlier = self.keep * after_visit + min(self.slope * after_visit, self.longest)
                after_visit = max(visited_earlier, visited_now)
            else:
                after_visit = visited_now
            before_visit = self.keep * before_visit + growth
        return after_visit

    def next_distance(self, start: float, room: int) -> tuple[float, int]:
        """The distance after one epoch, and how many of ``room`` steps may still be computed one by one."""
        if start <= self.most:
            return self.factor * start + self.added, room
        if start >= self.least or self.count > room:
            return self.clipped_factor * start + self.clipped_added, room
        return self.step_by_step(start), room - self.count


def distance(training: ClippedTraining, change: float) -> float | None:
    """The largest final distance of plain SGD; ``change`` bounds the change of one clipped gradient.

    None if there are more than ``MOST_EPOCHS`` epochs, of different lengths.
    """
    epochs, total = training.epochs, training.total_steps
    short = _Epoch.from_training(training, change, total // epochs)
    if total % epochs == 0:
        return _equal_epochs(short, epochs)
    if epochs > MOST_EPOCHS:
        return None
    long = _Epoch.from_training(training, change, total // epochs + 1)
    reached, room, last_step = 0.0, _MOST_STEPS, 0
    for epoch in range(1, epochs + 1):
        end = total * epoch // epochs
        reached, room = (short if end - last_step == short.count else long).next_distance(reached, room)
        last_step = end
    return reached


def _equal_epochs(epoch: _Epoch, epochs: int) -> float:
    done = _linear_epochs(epoch, epochs)
    reached, room = epoch.after_linear(done), _MOST_STEPS
    while done < epochs:
        # distances are monotone and converge to the fixed point of the clipped case
        stay = min(reached, epoch.after_clipped(reached, 1 << 62)) >= epoch.least
        if stay or epoch.count > room:
            return epoch.after_clipped(reached, epochs - done)
        previous = reached
        reached, room = epoch.next_distance(reached, room)
        done += 1
        if reached == previous:
            break
    return reached


def _linear_epochs(epoch: _Epoch, epochs: int) -> int:
    """How many epochs, starting from distance 0, stay in the linear case; bisection, as distances increase."""
    low, high = 0, epochs
    while low < high:
        middle = (low + high + 1) // 2
        if epoch.after_linear(middle - 1) <= epoch.most:
            low = middle
        else:
            high = middle - 1
    return low


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf
