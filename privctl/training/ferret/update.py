"""How published numbers move the weights, the same way to the last bit wherever they are replayed.

A step's stand-in for the gradient of a fired group is amount * scale * u: the published sign (or value), and the unit
vector u that everybody can make. It goes into AdamW or (heavy-ball) gradient descent with decoupled weight decay, as
torch defines them. A silent group has a gradient of zero, so that its momentum coasts, or is held as it is.

Only additions, products, quotients and roots of one rounding each touch the weights, never a fused product and sum,
whose rounding depends on the processor. Silent steps are made up for all at once when the weights are next needed: with
no gradient, moments m and v shrink by known factors, so that k steps move the weights by m sum_j a_j / (b_j sqrt(v) +
eps), which is m A / (sqrt(v) + e) with A = sum a_j / b_j and e = eps sum(a_j / b_j^2) / A to first order in eps /
sqrt(v): as one by one to rounding, and one pass over the tensors instead of k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from privctl.domain.checks import at_least, fraction, positive
from privctl.domain.mechanism import Optimizer
from privctl.training.recipe import Schedule, share_at

#: AdamW's guard against a division by zero, as in torch.
_EPS = 1e-8
#: Momentum that has shrunk by this much moves nothing any more.
_REST = 2.0**-60
#: Products of factors below this would leave the floats' range.
_VANISHED = 1e-280

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Silent(StrEnum):
    """What a group that does not fire does: its momentum goes on with a gradient of zero, or nothing happens."""

    COAST = "coast"
    HOLD = "hold"


class UpdateScale(StrEnum):
    """The length of a group's update: 1 as in the paper, or the root of its dimension, so that entries are near 1."""

    UNIT = "unit"
    ROOT_DIMENSION = "root-dimension"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """Everything that turns published numbers into moves; public. Raises ValueError for settings out of range."""

    steps: int
    learning_rate: float
    optimizer: Optimizer = Optimizer.ADAMW
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    silent: Silent = Silent.COAST
    update_scale: UpdateScale = UpdateScale.UNIT

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        positive("learning_rate", self.learning_rate)
        for name in ("momentum", "beta1", "beta2"):
            fraction(name, getattr(self, name), zero=True)
        for name in ("weight_decay", "warmup_steps"):
            at_least(name, getattr(self, name), 0)
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"weight_decay {self.weight_decay} times learning_rate {self.learning_rate} must be below 1"
            )

    @property
    def adaptive(self) -> bool:
        """Whether a second moment is kept."""
        return self.optimizer in (Optimizer.ADAM, Optimizer.ADAMW)

    @property
    def decay(self) -> float:
        """By which a first moment shrinks a step; 0 where none is kept."""
        return self.beta1 if self.adaptive else self.momentum

    def rates(self) -> Reals:
        """The learning rate of each step (steps,), as float32 numbers: a cosine is not the same everywhere."""
        shares = (share_at(i, self.steps, self.schedule, self.warmup_steps) for i in range(self.steps))
        return np.array([self.learning_rate * share for share in shares]).astype(np.float32).astype(np.float64)


class Updates:
    """Weights in groups, moved in place by what the groups publish."""

    def __init__(
        self, parameters: Mapping[str, Tensor], groups: Sequence[Sequence[str]], rule: UpdateRule, fires: Sequence[int]
    ) -> None:
        """``fires`` says how often each group fires in all: what never does gets no moments."""
        self.rule = rule
        self._groups = [[(name, parameters[name].detach()) for name in group] for group in groups]
        self._scales = [_scale(group, rule.update_scale) for group in self._groups]
        self._rates = rule.rates()
        self._shrink = 1 - self._rates * rule.weight_decay
        self._first = _powers(np.full(rule.steps, rule.decay))
        self._second = _powers(np.full(rule.steps, rule.beta2))
        kept = range(1 + rule.adaptive) if rule.decay or rule.adaptive else ()
        self._moments = [
            [{name: torch.zeros_like(tensor) for name, tensor in group} for _ in kept] if count else []
            for group, count in zip(self._groups, fires, strict=True)
        ]
        #: Steps made, by group; and the step after the one it last fired in (coasting), or how often it fired.
        self._done = [0] * len(groups)
        self._fired = [0] * len(groups)

    @property
    def kept_numbers(self) -> int:
        """How many numbers the optimizer keeps beside the weights."""
        return sum(t.numel() for moments in self._moments for moment in moments for t in moment.values())

    @torch.no_grad()
    def settle(self, step: int) -> None:
        """Make up for silent steps, so that the weights are those before ``step``."""
        for group in range(len(self._groups)):
            if not self._at_rest(group):
                self._coast(group, step)

    @torch.no_grad()
    def apply(self, step: int, group: int, direction: Mapping[str, Tensor], amount: float) -> None:
        """Move ``group`` in ``step`` by ``amount`` along the unit vector ``direction``."""
        self._coast(group, step)
        coasting = self.rule.silent is Silent.COAST
        self._done[group] = step + 1
        self._fired[group] = step + 1 if coasting else self._fired[group] + 1
        count = self._fired[group]
        rate, length = float(self._rates[step]), amount * self._scales[group]
        for name, weight in self._groups[group]:
            if self.rule.weight_decay:
                weight.mul_(float(self._shrink[step]))
            gradient = direction[name].to(weight.device, weight.dtype).mul(length)
            moments = [moment[name] for moment in self._moments[group]]
            weight.sub_(self._move(gradient, moments, count).mul_(rate))

    def _move(self, gradient: Tensor, moments: Sequence[Tensor], count: int) -> Tensor:
        """The step's move by its learning rate, after ``count`` steps counted for the bias; moments are renewed."""
        rule = self.rule
        if not moments:
            return gradient
        first = moments[0].mul_(rule.decay)
        if not rule.adaptive:
            return first.add_(gradient).clone()
        first.add_(gradient.mul(1 - rule.beta1))
        second = moments[1].mul_(rule.beta2).add_(gradient.mul(gradient).mul_(1 - rule.beta2))
        spread = second.sqrt().mul_(1 / math.sqrt(1 - float(self._second[count])))
        return first.mul(1 / (1 - float(self._first[count]))).div_(spread.add_(_EPS))

    def _at_rest(self, group: int) -> bool:
        """Whether silent steps leave the group's weights where they are, or as good as."""
        if self.rule.silent is Silent.HOLD:
            return True
        if self.rule.weight_decay:
            return False
        if not self._moments[group] or not self._fired[group]:
            return True
        return float(self._first[self._done[group] - self._fired[group]]) < _REST

    def _coast(self, group: int, step: int) -> None:
        """Silent steps from those done up to ``step``; what is held passes none."""
        done, fired, moments = self._done[group], self._fired[group], self._moments[group]
        if self.rule.silent is Silent.HOLD or done == step:
            return
        self._done[group] = step
        moving = moments if fired else []
        total, guard = self._travel(done, step) if moving else (0.0, 0.0)
        kept = math.prod(self._shrink[done:step].tolist())
        for name, weight in self._groups[group]:
            if kept != 1:
                weight.mul_(kept)
            if total:
                move = moving[0][name]
                if self.rule.adaptive:
                    move = move.div(moving[1][name].sqrt().add_(guard))
                weight.sub_(move.mul(total))
            for moment, powers in zip(moving, (self._first, self._second), strict=False):
                moment[name].mul_(float(powers[step - done]))

    def _travel(self, done: int, step: int) -> tuple[float, float]:
        """A and e of the module's text for the silent steps from ``done`` to ``step``.

        Sums are rounded once, so that they do not depend on the order of additions.
        """
        reach = min(step - done, int(np.count_nonzero(self._first > _VANISHED)) - 1)
        steps = np.arange(done, done + reach)
        later = _powers(self._shrink[step - 1 : done : -1])[::-1][:reach]
        away = self._rates[steps] * self._first[1 : reach + 1] * later
        if not self.rule.adaptive:
            return math.fsum(away), 0.0
        away = away / (1 - self._first[steps + 1])
        spread = np.sqrt(self._second[1 : reach + 1] / (1 - self._second[steps + 1]))
        spread = np.maximum(spread, _VANISHED)
        total = math.fsum(away / spread)
        return total, _EPS * math.fsum(away / spread / spread) / total if total else 0.0

    def tensors(self) -> dict[str, Tensor]:
        """What ``restore`` takes, beside the weights themselves."""
        found = {"ferret.done": torch.tensor(self._done), "ferret.fired": torch.tensor(self._fired)}
        for group, moments in enumerate(self._moments):
            for order, moment in enumerate(moments):
                found |= {f"ferret.moment.{group}.{order}.{name}": tensor for name, tensor in moment.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` gave; the weights are restored elsewhere. Raises KeyError where one is absent."""
        self._done, self._fired = tensors["ferret.done"].tolist(), tensors["ferret.fired"].tolist()
        for group, moments in enumerate(self._moments):
            for order, moment in enumerate(moments):
                for name, tensor in moment.items():
                    tensor.copy_(tensors[f"ferret.moment.{group}.{order}.{name}"])


def _scale(group: Sequence[tuple[str, Tensor]], scale: UpdateScale) -> float:
    dimension = sum(tensor.numel() for _, tensor in group)
    return 1.0 if scale is UpdateScale.UNIT else math.sqrt(dimension)


def _powers(factors: Reals) -> Reals:
    """1 and the products of the first 1, 2, ... ``factors``, multiplied one after another."""
    return np.concatenate([np.ones(1), np.multiply.accumulate(factors)])
