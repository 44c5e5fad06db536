"""DP-Weights: Gaussian noise added once to finished weights; its size, and the resulting guarantees.

Two calibrations choose the standard deviation: the published formula, and the analytic Gaussian mechanism for a
sensitivity derived under a named regime. With either, ``guarantees`` states the epsilon that follows under each regime;
with the published formula, also the published claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privctl.accounting.gaussian import epsilon_at, gaussian_guarantee, noise_multiplier_for
from privctl.accounting.gridded import (
    NOTE,
    Released,
    epsilon_with_charge,
    exact_target,
    guarantee_of_floats,
)
from privctl.domain.checks import fraction, positive
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Adjacency, Assumption, Guarantee, Scope, Status, status_of
from privctl.domain.mechanism import Calibration, ClippedTraining, Formula, Regime
from privctl.domain.report import Omission
from privctl.noise.sensitivity import REGIMES, NotApplicable, WeightSensitivity, sensitivity
from privctl.randomness.gridded import increments, spacing

PUBLISHED = "published"
#: The paper's fitted additive term, a / epsilon^b.
_TAIL_SCALE, _TAIL_POWER = 0.009760, 0.078008

_ADJACENCIES = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyTarget:
    """The target of a noise level. ``regime`` and ``adjacency`` matter only for the Gaussian calibration."""

    epsilon: float
    delta: float
    calibration: Calibration = Calibration.DP_WEIGHTS
    formula: Formula = Formula.ALGORITHM_2
    regime: Regime = Regime.NONCONVEX
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        fraction("delta", self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """The assumptions of a release; they decide the status of its guarantees."""

    assumptions: tuple[Assumption, ...]

    def status(self, extra: Sequence[Assumption] = ()) -> Status:
        """The status of a bound that rests on these assumptions and ``extra``."""
        return status_of((*self.assumptions, *extra))


def default_delta(dataset_size: int) -> float:
    """The paper's choice, 1 / N^2."""
    return 1.0 / dataset_size**2


def published_shift(training: ClippedTraining) -> float:
    """The paper's claimed bound on the change of the weights, E * lr * C / (N * B).

    It does not hold: docs/papers.md#where-the-dp-weights-proof-fails.
    """
    t = training
    return t.epochs * t.learning_rate * t.clip_norm / (t.dataset_size * t.batch_size)


def published_stddev(training: ClippedTraining, epsilon: float, delta: float, formula: Formula) -> float:
    """The paper's noise standard deviation.

    ``ALGORITHM_2`` (section 8.1): sqrt(2 ln(1.25/delta)) * shift / epsilon + tail, tail = 0.00976 / epsilon^0.078008.
    ``EQUATION_1``: the square root of 2 ln(1.25/delta) * shift / epsilon + tail.

    Example: E=10, lr=5e-5, C=1, N=1000, B=5, epsilon 1, delta 1e-6 gives 0.00976052988025269.
    """
    log_term, shift = 2 * math.log(1.25 / delta), published_shift(training)
    tail = _TAIL_SCALE * math.pow(epsilon, -_TAIL_POWER)
    if formula is Formula.EQUATION_1:
        return math.sqrt(log_term * shift / epsilon + tail)
    return math.sqrt(log_term) * shift / epsilon + tail


def noise_stddev(training: ClippedTraining, target: PrivacyTarget, dimension: int, candidates: int = 1) -> float:
    """The noise standard deviation for ``target``, in the weights' units.

    ``dimension`` counts the weights that get noise, and ``candidates`` the models released by the run. The Gaussian
    calibration's epsilon includes the cost of rounding onto the grid. Raises CommandError, with the reason, if the
    regime does not apply to this training or no finite noise suffices.
    """
    if target.calibration is Calibration.DP_WEIGHTS:
        return published_stddev(training, target.epsilon, target.delta, target.formula)
    bound = sensitivity(training, target.regime, target.adjacency, dimension)
    if isinstance(bound, NotApplicable):
        raise CommandError(f"the regime {target.regime} does not apply: {bound.reason}; choose another --regime")
    epsilon, delta = exact_target(Released(coordinates=dimension, candidates=candidates), target.epsilon, target.delta)
    stddev = bound.value * noise_multiplier_for(epsilon, delta)
    if not math.isfinite(stddev):
        raise CommandError(f"no finite noise reaches epsilon {target.epsilon} under the regime {target.regime}")
    return stddev


def guarantees(
    training: ClippedTraining,
    target: PrivacyTarget,
    stddev: float,
    dimension: int,
    premises: Premises,
    *,
    released_stddevs: Sequence[float] = (),
) -> tuple[tuple[Guarantee, ...], tuple[Omission, ...]]:
    """The guarantees of noise of ``stddev``, under each regime that applies; and omissions for those that do not.

    The published claim comes first, if its calibration was used. ``released_stddevs`` are all standard deviations of
    one run (nested candidates). If there are several, each regime has a second row for someone who holds all
    candidates, which is as costly as the least noisy one.
    """
    rows: list[Guarantee] = []
    omitted: list[Omission] = []
    alone = Released(coordinates=dimension, candidates=max(1, len(released_stddevs)))
    if target.calibration is Calibration.DP_WEIGHTS:
        rows.append(_published_claim(training, target, premises))
    for regime in REGIMES:
        for adjacency in _ADJACENCIES:
            bound = sensitivity(training, regime, adjacency, dimension)
            if isinstance(bound, NotApplicable):
                omitted.append(Omission(what=f"guarantee under the regime {regime}", reason=bound.reason))
                break
            rows.append(_regime_guarantee(bound, stddev, target.delta, premises, alone))
            if len(released_stddevs) > 1:
                every = _all_released(released_stddevs, dimension)
                rows.append(_regime_guarantee(bound, min(released_stddevs), target.delta, premises, every))
    return tuple(rows), tuple(omitted)


def _published_claim(training: ClippedTraining, target: PrivacyTarget, premises: Premises) -> Guarantee:
    void = premises.status() is Status.VOID
    return Guarantee(
        name=PUBLISHED,
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=Adjacency.UNSTATED,
        accountant=f"DP-Weights, {target.formula}",
        status=Status.VOID if void else Status.CLAIMED,
        sensitivity=published_shift(training),
        assumptions=premises.assumptions,
        note="as published; it does not follow from the paper's assumptions",
    )


def _all_released(stddevs: Sequence[float], dimension: int) -> Released:
    """All candidates, released together."""
    ordered = sorted(stddevs)
    return Released(
        coordinates=dimension,
        candidates=len(ordered),
        increments=tuple(increments(ordered)),
        spacings=tuple(spacing(stddev) for stddev in ordered),
    )


def _regime_guarantee(
    bound: WeightSensitivity, stddev: float, delta: float, premises: Premises, released: Released
) -> Guarantee:
    assumptions = (*premises.assumptions, *bound.assumptions)
    together = bool(released.increments)
    guarantee = gaussian_guarantee(
        name=str(bound.regime),
        sensitivity=bound.value,
        noise_stddev=stddev,
        delta=delta,
        adjacency=bound.adjacency,
        status=premises.status(bound.assumptions),
        assumptions=assumptions,
        scope=Scope.ALL_CANDIDATES if together else Scope.THIS_MODEL,
    )
    note = f"the candidates are nested: together they are worth the least noisy one; {NOTE}" if together else NOTE
    guarantee = replace(guarantee, note=note)
    if guarantee.epsilon is None:
        return guarantee
    return guarantee_of_floats(
        guarantee, released, *epsilon_with_charge(lambda less: epsilon_at(less, bound.value / stddev), released, delta)
    )
