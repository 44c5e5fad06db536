"""How published numbers update the weights, reproducible to the last bit in a replay.

In place of the gradient of a fired group, a step uses amount * scale * u: the published sign (or value) times the unit
vector u, which anyone can generate. It is the input of AdamW or (heavy-ball) gradient descent with decoupled weight
decay, as torch defines them. A silent group has a gradient of zero, so that its momentum coasts, or its state is held.

Weights are only changed by sums and products with one rounding each, never by fused multiply-adds, whose rounding
depends on the processor. All entries of u have the magnitude 1 / sqrt(d), so AdamW's second moment is one number v for
all entries of a group: it is stored once, and the step is a multiple of the first moment. Silent steps are made up for
together when the weights are next needed: without a gradient, the moments m and v shrink by known factors, so k steps
move the weights by m sum_j a_j / (sqrt(b_j v) + eps). That equals k single steps up to rounding, with one pass over the
tensors instead of k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privctl.domain.checks import at_least, fraction, positive
from privctl.domain.mechanism import Optimizer
from privctl.train.methods.ferret.settings import SilentMomentum, UpdateScale
from privctl.train.settings.choices import Schedule
from privctl.train.settings.recipe import learning_rate_factor

#: AdamW's epsilon, as in torch.
_EPS = 1e-8
#: The largest learning rate, as rates are float32 numbers.
_LARGEST = float(np.finfo(np.float32).max)
#: Momentum that has shrunk by this factor no longer moves the weights.
_REST = 2.0**-60
#: Smaller products of factors are treated as zero, as they would underflow.
_VANISHED = 1e-280

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """The public settings of updates by published numbers. Raises ValueError for settings out of range.

    With several ``directions`` each group occurs as often among the groups, and the sum of their updates has the length
    of one direction's.
    """

    steps: int
    learning_rate: float
    optimizer: Optimizer = Optimizer.ADAMW
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    silent: SilentMomentum = SilentMomentum.COAST
    update_scale: UpdateScale = UpdateScale.UNIT
    directions: int = 1

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("directions", self.directions, 1)
        positive("learning_rate", self.learning_rate)
        for name in ("momentum", "beta1", "beta2"):
            fraction(name, getattr(self, name), zero=True)
        for name in ("weight_decay", "warmup_steps"):
            at_least(name, getattr(self, name), 0)
        if self.learning_rate > _LARGEST:
            raise ValueError(f"learning_rate is {self.learning_rate:g}; it must be at most {_LARGEST:g}, as in float32")
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"weight_decay {self.weight_decay} times learning_rate {self.learning_rate} must be below 1"
            )

        if self.directions > 1 and (self.decay or self.adaptive or self.weight_decay):
            raise ValueError(
                f"directions is {self.directions}, which needs --optimizer sgd without --weight-decay: what else is "
                "kept for a group would be kept for each direction"
            )

    @property
    def adaptive(self) -> bool:
        """Whether the optimizer has a second moment."""
        return self.optimizer in (Optimizer.ADAM, Optimizer.ADAMW)

    @property
    def decay(self) -> float:
        """The factor by which the first moment shrinks per step; 0 without one."""
        return self.beta1 if self.adaptive else self.momentum

    def rates(self) -> Reals:
        """The learning rates (steps,), rounded to float32, as cosines differ between platforms in the last bits."""
        shares = (learning_rate_factor(i, self.steps, self.schedule, self.warmup_steps) for i in range(self.steps))
        return np.array([self.learning_rate * share for share in shares]).astype(np.float32).astype(np.float64)


class Updates:
    """Updates weights in place by the amounts that their groups publish."""

    def __init__(
        self, parameters: Mapping[str, Tensor], groups: Sequence[Sequence[str]], rule: UpdateRule, fires: Sequence[int]
    ) -> None:
        """``fires`` is how often each group fires in the whole run; groups that never do get no moments."""
        self.rule = rule
        self._groups = [[(name, parameters[name].detach()) for name in group] for group in groups]
        self._dimensions = [sum(tensor.numel() for _, tensor in group) for group in self._groups]
        self._rates = rule.rates()
        self._shrink = 1 - self._rates * rule.weight_decay
        self._first = _powers(np.full(rule.steps, rule.decay))
        self._second = _powers(np.full(rule.steps, rule.beta2))
        kept = rule.adaptive or rule.decay > 0
        self._moments = [
            {name: torch.zeros_like(tensor) for name, tensor in group} if kept and count else {}
            for group, count in zip(self._groups, fires, strict=True)
        ]
        self._second_moments = [0.0] * len(groups)
        #: For each group, the number of steps made; and the step after it last fired (COAST) or how often it fired.
        self._done = [0] * len(groups)
        self._fired = [0] * len(groups)

    @torch.no_grad()
    def catch_up(self, step: int) -> None:
        """Make up for silent steps, so that all weights are those before ``step``."""
        for group in range(len(self._groups)):
            if not self._is_at_rest(group):
                self._coast(group, step)

    @torch.no_grad()
    def apply(self, step: int, group: int, direction: Mapping[str, Tensor], amount: float) -> None:
        """Update ``group`` in ``step`` by ``amount`` along the unit vector ``direction``, of entries of equal size."""
        self._coast(group, step)
        rule, moments = self.rule, self._moments[group]
        self._done[group] = step + 1
        self._fired[group] = step + 1 if rule.silent is SilentMomentum.COAST else self._fired[group] + 1
        length = amount * _scale(self._dimensions[group], rule.update_scale) / math.sqrt(rule.directions)
        pace = float(self._rates[step])
        if rule.adaptive:
            square = length * length / self._dimensions[group]
            self._second_moments[group] = rule.beta2 * self._second_moments[group] + (1 - rule.beta2) * square
            count = self._fired[group]
            spread = math.sqrt(self._second_moments[group] / (1 - float(self._second[count])))
            pace /= (1 - float(self._first[count])) * (spread + _EPS)
            length *= 1 - rule.beta1
        for name, weight in self._groups[group]:
            if rule.weight_decay:
                weight.mul_(float(self._shrink[step]))
            move = direction[name].to(weight.device, weight.dtype).mul(length)
            if moments:
                move = moments[name].mul_(rule.decay).add_(move)
            weight.sub_(move.mul(pace))

    def _is_at_rest(self, group: int) -> bool:
        """Whether silent steps do not change the group's weights beyond rounding."""
        if self.rule.silent is SilentMomentum.HOLD:
            return True
        if self.rule.weight_decay:
            return False
        if not self._moments[group] or not self._fired[group]:
            return True
        return float(self._first[self._done[group] - self._fired[group]]) < _REST

    def _coast(self, group: int, step: int) -> None:
        """Make up for the group's silent steps up to ``step``; with HOLD there is nothing to do."""
        done = self._done[group]
        if self.rule.silent is SilentMomentum.HOLD or done == step:
            return
        self._done[group] = step
        moments = self._moments[group] if self._fired[group] else {}
        total = self._coasting_factor(group, done, step) if moments else 0.0
        kept = math.prod(self._shrink[done:step].tolist())
        for name, weight in self._groups[group]:
            if kept != 1:
                weight.mul_(kept)
            if total:
                weight.sub_(moments[name].mul(total))
            if moments:
                moments[name].mul_(float(self._first[step - done]))
        self._second_moments[group] *= float(self._second[step - done])

    def _coasting_factor(self, group: int, done: int, step: int) -> float:
        """The multiple of its first moment by which a group moves in the silent steps from ``done`` to ``step``.

        The sum is rounded once, so that it does not depend on the order of additions.
        """
        reach = min(step - done, int(np.count_nonzero(self._first > _VANISHED)) - 1)
        steps = np.arange(done, done + reach)
        later = _powers(self._shrink[step - 1 : done : -1])[::-1][:reach]
        away = self._rates[steps] * self._first[1 : reach + 1] * later
        if self.rule.adaptive:
            spreads = self._second_moments[group] * self._second[1 : reach + 1] / (1 - self._second[steps + 1])
            away = away / (1 - self._first[steps + 1]) / (np.sqrt(spreads) + _EPS)
        return math.fsum(away)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for ``restore``, without the weights."""
        state = {"ferret.done": torch.tensor(self._done), "ferret.fired": torch.tensor(self._fired)}
        state["ferret.spreads"] = torch.tensor(self._second_moments, dtype=torch.float64)
        for group, moments in enumerate(self._moments):
            state |= {f"ferret.moment.{group}.{name}": moment for name, moment in moments.items()}
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from ``tensors``, except the weights. Raises KeyError if a tensor is missing."""
        self._done, self._fired = tensors["ferret.done"].tolist(), tensors["ferret.fired"].tolist()
        self._second_moments = tensors["ferret.spreads"].tolist()
        for group, moments in enumerate(self._moments):
            for name, moment in moments.items():
                moment.copy_(tensors[f"ferret.moment.{group}.{name}"])


def _scale(dimension: int, scale: UpdateScale) -> float:
    return 1.0 if scale is UpdateScale.UNIT else math.sqrt(dimension)


def _powers(factors: Reals) -> Reals:
    """1 followed by the cumulative products of ``factors``."""
    return np.concatenate([np.ones(1), np.multiply.accumulate(factors)])
