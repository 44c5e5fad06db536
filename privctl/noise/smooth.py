"""The distance of two trainings on a smooth loss, with the worst visit in each epoch, many epochs at a time.

Without a visit a step maps the distance d to f(d) = k d + lr min(beta d, 2C), with the changed example in its batch to
g(d) = k d + lr ((B - 1) / B min(beta d, 2C) + c / B); k is what weight decay leaves, c the change of one gradient. Both
increase with d, so the largest distance after an epoch of n steps is the largest of f^(n-1-j)(g(f^j(d))) over j.

Up to d = 2C / beta both are linear, beyond it they are affine, so an epoch that stays on one side is one affine map of
d, and many equal ones are a geometric series. Only the epochs between are followed step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.mechanism import ClippedTraining
from privctl.noise.series import geometric

#: Epochs of different lengths that are followed one by one, and steps followed in epochs between the two cases.
MOST_EPOCHS, _MOST_STEPS = 1 << 21, 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """An epoch of ``count`` steps; ``longest`` = 2 C lr, ``visit`` = lr c / B, ``slope`` = lr beta.

    It maps d to ``factor`` d + ``added`` where d is at most ``most``, so that no gradient is clipped. Where all are, it
    maps d to ``clipped_factor`` d + ``clipped_added``; they all are where d is at least ``least``.
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
        # no distance on the way is larger than the start, the start grown, the first visit's or the end
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
        """The distance after ``epochs`` of them from distance 0 on, all below the cut."""
        return self.added * geometric(self.log_factor, epochs) if epochs else 0.0  # ``added`` may be infinite

    def after_clipped(self, start: float, epochs: int) -> float:
        """The same from ``start`` on where all gradients are clipped; no less than the true one where they are not."""
        return math.exp(epochs * self.log_clipped_factor) * start + self.clipped_added * geometric(
            self.log_clipped_factor, epochs
        )

    def step_by_step(self, start: float) -> float:
        """The distance after one epoch, step by step: the maximum over the step of the visit."""
        waiting, behind = start, -math.inf
        for _ in range(self.count):
            growth = min(self.slope * waiting, self.longest)
            now = self.keep * waiting + (self.batch - 1) / self.batch * growth + self.visit
            behind = max(self.keep * behind + min(self.slope * behind, self.longest), now) if behind >= 0 else now
            waiting = self.keep * waiting + growth
        return behind

    def next(self, start: float, room: int) -> tuple[float, int]:
        """The distance after one, and how many of ``room`` steps may still be followed one by one."""
        if start <= self.most:
            return self.factor * start + self.added, room
        if start >= self.least or self.count > room:
            return self.clipped_factor * start + self.clipped_added, room
        return self.step_by_step(start), room - self.count


def distance(training: ClippedTraining, change: float) -> float | None:
    """The largest distance at the end, plain SGD; ``change`` is what one clipped gradient changes by at most.

    None where epochs differ in length and are more than ``MOST_EPOCHS``.
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
        reached, room = (short if end - last_step == short.count else long).next(reached, room)
        last_step = end
    return reached


def _equal_epochs(epoch: _Epoch, epochs: int) -> float:
    done = _linear_epochs(epoch, epochs)
    reached, room = epoch.after_linear(done), _MOST_STEPS
    while done < epochs:
        # distances are monotone and converge to the fixed point of clipped epochs
        stay = min(reached, epoch.after_clipped(reached, 1 << 62)) >= epoch.least
        if stay or epoch.count > room:
            return epoch.after_clipped(reached, epochs - done)
        previous = reached
        reached, room = epoch.next(reached, room)
        done += 1
        if reached == previous:
            break
    return reached


def _linear_epochs(epoch: _Epoch, epochs: int) -> int:
    """How many epochs from distance 0 on stay below the cut: distances grow, so all before the last that does."""
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
