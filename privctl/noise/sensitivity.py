"""The L2 sensitivity of trained weights to one example, under a named regime.

The training is ``ClippedTraining``: T steps, each with the sum of clipped per-example gradients divided by the fixed
batch size B; each example is visited once per epoch in a data-independent order. Sources: Hardt, Recht and Singer 2016;
Wu et al. 2017 ("bolt-on" SGD); the recursions are proved by induction over steps from non-expansiveness or clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.guarantee import Adjacency, Assumption, AssumptionState
from privctl.domain.mechanism import ClippedTraining, Optimizer, Regime
from privctl.noise import smooth
from privctl.noise.series import MOST_ADDED, accumulate, geometric, steps_until_negligible

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Relative rounding error of a bound per term (step or visit); all terms are positive. Sums of more than
#: ``_MOST_TERMS`` terms have closed forms or are added in blocks, with a smaller error.
_TERM_ROUNDING, _MOST_TERMS = 16 * 2.0**-53, 1 << 20
#: Regimes in the order reports list them.
REGIMES = tuple(Regime)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSensitivity:
    """An L2 bound on the change of the weights, with its assumptions beyond the training facts."""

    regime: Regime
    adjacency: Adjacency
    value: float
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """A regime that does not apply to this training, and why."""

    reason: str


@lru_cache(maxsize=64)
def sensitivity(
    training: ClippedTraining, regime: Regime, adjacency: Adjacency, dimension: int
) -> WeightSensitivity | NotApplicable:
    """The L2 sensitivity of the final weights, rounded up; ``dimension`` is their number (used only for Adam).

    ``adjacency`` is REPLACE_ONE, or ZERO_OUT (one example's gradient becomes zero, the normaliser stays).

    Example: E=10, N=1000, B=5, lr=5e-5, C=1, SGD: convex replace-one 2 E lr C / B = 2e-4.
    """
    bound = _RULES[regime](training, adjacency, dimension)
    if isinstance(bound, NotApplicable):
        return bound
    terms = training.epochs if regime in (Regime.CONVEX, Regime.STRONGLY_CONVEX) else training.total_steps
    return replace(bound, value=bound.value * (1 + (min(terms, _MOST_TERMS) + 1) * _TERM_ROUNDING))


def _convex(t: ClippedTraining, adjacency: Adjacency, _: int) -> WeightSensitivity | NotApplicable:
    """E visits, each adding lr * (change of one clipped gradient) / B to the distance; steps are non-expansive."""
    refusal = _not_plain_sgd(t) or _step_too_long(t, t.smoothness)
    return refusal or WeightSensitivity(
        regime=Regime.CONVEX,
        adjacency=adjacency,
        value=t.epochs * t.learning_rate * _gradient_change(t, adjacency) / t.batch_size,
        assumptions=(_CONVEXITY, _LIPSCHITZ, _step_size(t, "2 / smoothness", t.smoothness is not None)),
    )


def _strongly_convex(t: ClippedTraining, adjacency: Adjacency, _: int) -> WeightSensitivity | NotApplicable:
    """Each step contracts by rho = 1 - lr * gamma, so the visits form a geometric series of rho^(steps per epoch)."""
    gamma = t.strong_convexity
    if gamma is None:
        return NotApplicable(reason="the loss's strong convexity was not given")
    bound = None if t.smoothness is None else t.smoothness + gamma
    refusal = _not_plain_sgd(t) or _step_too_long(t, bound)
    if refusal is None and t.learning_rate * gamma >= 1:
        refusal = NotApplicable(
            reason=f"learning rate {t.learning_rate} times strong convexity {gamma} must be below 1",
        )
    if refusal is not None:
        return refusal
    log_epoch = math.floor(t.dataset_size / t.batch_size) * math.log1p(-t.learning_rate * gamma)
    series = math.expm1(t.epochs * log_epoch) / math.expm1(log_epoch)
    return WeightSensitivity(
        regime=Regime.STRONGLY_CONVEX,
        adjacency=adjacency,
        value=t.learning_rate * _gradient_change(t, adjacency) / t.batch_size * series,
        assumptions=(
            _STRONG_CONVEXITY,
            _NEVER_CLIPPED,
            _step_size(t, "2 / (smoothness + strong convexity)", t.smoothness is not None),
        ),
    )


def _smooth(t: ClippedTraining, adjacency: Adjacency, _: int) -> WeightSensitivity | NotApplicable:
    """A distance d grows by lr * min(beta d, 2C) per step, with one visit per epoch at the worst step.

    The maps from one step's distance to the next are increasing, so the worst schedule is the worst in each epoch.
    """
    beta = t.smoothness
    if beta is None:
        return NotApplicable(reason="the loss's smoothness was not given")
    if t.optimizer is not Optimizer.SGD:
        return NotApplicable(reason=f"the bound is derived for plain SGD, not {t.optimizer}")
    reached = smooth.distance(t, _gradient_change(t, adjacency))
    if reached is None:
        return NotApplicable(
            reason=f"more than {smooth.MOST_EPOCHS} epochs are followed only where all have the same number of steps",
        )
    return WeightSensitivity(regime=Regime.SMOOTH, adjacency=adjacency, value=reached, assumptions=(_SMOOTHNESS,))


def _nonconvex(t: ClippedTraining, adjacency: Adjacency, dimension: int) -> WeightSensitivity:
    """No assumption on the loss: after the first visit, every step may add twice the longest step to the distance."""
    steps, log_keep = t.total_steps, math.log1p(-t.learning_rate * t.weight_decay)
    if t.optimizer in (Optimizer.ADAM, Optimizer.ADAMW):
        value = 2 * math.sqrt(dimension) * t.learning_rate * _adam(t, steps, log_keep)
    elif t.optimizer is Optimizer.MOMENTUM:
        log = math.log(t.momentum)
        total = accumulate(lambda number: -np.expm1(number * log), 1.0, steps_until_negligible(log), steps, log_keep)
        value = 2 * t.clip_norm * t.learning_rate / (1 - t.momentum) * total
    else:
        first = _gradient_change(t, adjacency) / t.batch_size * math.exp((steps - 1) * log_keep)
        value = t.learning_rate * (first + 2 * t.clip_norm * geometric(log_keep, steps - 1))
    return WeightSensitivity(regime=Regime.NONCONVEX, adjacency=adjacency, value=value)


_RULES: dict[Regime, Callable[[ClippedTraining, Adjacency, int], WeightSensitivity | NotApplicable]] = {
    Regime.CONVEX: _convex,
    Regime.STRONGLY_CONVEX: _strongly_convex,
    Regime.SMOOTH: _smooth,
    Regime.NONCONVEX: _nonconvex,
}


def _gradient_change(t: ClippedTraining, adjacency: Adjacency) -> float:
    """The largest change of one clipped gradient: to any other (2C) or to zero (C)."""
    return t.clip_norm * (2 if adjacency is Adjacency.REPLACE_ONE else 1)


def _adam(t: ClippedTraining, steps: int, log_keep: float) -> float:
    """The sum of bounds on |update| / lr of one coordinate of Adam, by Cauchy-Schwarz over the gradients so far.

    Independent of the clip norm, which Adam normalises away. If beta1^2 >= beta2 the bound grows with the step number;
    steps beyond those that are added up one by one all get the last step's bound. Example: for betas 0.9 and 0.999, the
    bound is 1 at step 1 and 2.24336 at step 100.
    """
    if t.beta2 == 0:
        return geometric(log_keep, steps) if t.beta1 == 0 else math.inf
    log1, log2 = math.log(t.beta1) if t.beta1 else -math.inf, math.log(t.beta2)
    log_ratio = 2 * log1 - log2
    scale = (1 - t.beta1) / math.sqrt(1 - t.beta2)

    def ratio(number: NDArray[np.float64]) -> NDArray[np.float64]:
        if t.beta1 == 0:
            return scale * np.sqrt(-np.expm1(number * log2))
        series = number if log_ratio == 0 else np.expm1(number * log_ratio) / math.expm1(log_ratio)
        return scale * np.sqrt(series * -np.expm1(number * log2)) / -np.expm1(number * log1)

    constant_from = max(steps_until_negligible(log) for log in (log1, log2, log_ratio))
    begun = float(min(steps, constant_from, MOST_ADDED))
    series = 1 / -math.expm1(log_ratio) if log_ratio < 0 else geometric(log_ratio, steps)
    limit = scale * math.sqrt(series) / -math.expm1(begun * log1)
    return accumulate(ratio, limit, constant_from, steps, log_keep)


def _not_plain_sgd(t: ClippedTraining) -> NotApplicable | None:
    if t.optimizer is Optimizer.SGD:
        return None
    reason = (
        "steps with momentum are not non-expansive, so convexity bounds nothing"
        if t.optimizer is Optimizer.MOMENTUM
        else f"{t.optimizer} rescales each coordinate, so its steps are not non-expansive"
    )
    return NotApplicable(reason=reason)


def _step_too_long(t: ClippedTraining, curvature: float | None) -> NotApplicable | None:
    """The refusal if the learning rate exceeds 2 / (``curvature`` + weight decay); else None."""
    if curvature is None or t.learning_rate * (curvature + t.weight_decay) <= 2:
        return None
    return NotApplicable(
        reason=f"learning rate {t.learning_rate} exceeds 2 / {curvature + t.weight_decay:g}, "
        "beyond which a step may expand distances",
    )


_CONVEXITY = Assumption(
    name="convex-loss",
    statement="every example's loss is convex in the weights",
    state=AssumptionState.ASSERTED,
)
_NEVER_CLIPPED = Assumption(
    name="clipping-inactive",
    statement="no gradient ever exceeds the clip norm: where clipping acts, steps no longer contract",
    state=AssumptionState.ASSERTED,
)
_STRONG_CONVEXITY = Assumption(
    name="strongly-convex-loss",
    statement="every example's loss is strongly convex in the weights, with the constant given",
    state=AssumptionState.ASSERTED,
)
_SMOOTHNESS = Assumption(
    name="smooth-loss",
    statement="every example's loss has a gradient that is Lipschitz with the smoothness given",
    state=AssumptionState.ASSERTED,
)
_LIPSCHITZ = Assumption(
    name="clipping-keeps-convexity",
    statement="the loss is of a generalized linear model, or its gradients never exceed the clip norm "
    "(clipping breaks convexity otherwise)",
    state=AssumptionState.ASSERTED,
)


def _step_size(t: ClippedTraining, bound: str, checked: bool) -> Assumption:
    return Assumption(
        name="step-size",
        statement=f"the learning rate {t.learning_rate} is at most {bound}",
        state=AssumptionState.CHECKED if checked else AssumptionState.ASSERTED,
    )
