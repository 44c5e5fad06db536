"""The curves of a plan: epsilon over the steps of training, and trade-off functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from privctl.accounting import risk
from privctl.accounting.ledger import COARSE, epsilon_bound
from privctl.accounting.methods import METHODS
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.domain.shown import upward
from privctl.plan.accountants import BudgetPlan

#: Values from here on are treated as infinite on an axis.
ENDLESS = 1e300
_POINTS = 16
#: Methods drawn for comparison with the tight one, for Poisson batches.
_COMPARED = ("advanced", "rdp", "gdp-clt")
#: Shorter labels for the plot, which itself marks curves that are not bounds.
_LABELS = {"gdp-clt": "GDP central limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """Epsilon by number of steps; inf if none is finite.

    ``sound`` means a proved upper bound, ``claimed`` another party's unchecked number. Raises ValueError for lists of
    different lengths, decreasing steps, and epsilons that are negative or NaN.
    """

    label: str
    sound: bool
    steps: tuple[float, ...]
    epsilons: tuple[float, ...]
    claimed: bool = False

    def __post_init__(self) -> None:
        _require_increasing(self.label, "steps", self.steps, "epsilons", self.epsilons)
        if not all(0 <= step < ENDLESS for step in self.steps):
            raise ValueError(f"{self.label}: steps must be finite and 0 or more")
        if not all(epsilon >= 0 for epsilon in self.epsilons):
            raise ValueError(f"{self.label}: epsilons must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """A trade-off function: the false negative rate at each false positive rate, linear in between.

    Raises ValueError for lists of different lengths, decreasing false positive rates and rates outside [0, 1].
    """

    label: str
    false_positive_rates: tuple[float, ...]
    false_negative_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        rates = (self.false_positive_rates, self.false_negative_rates)
        _require_increasing(self.label, "false_positive_rates", rates[0], "false_negative_rates", rates[1])
        if not all(0 <= rate <= 1 for side in rates for rate in side):
            raise ValueError(f"{self.label}: rates must lie between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCurves:
    """All curves of a plan. ``target`` is the target epsilon or None; raises ValueError unless finite and above 0."""

    title: str
    subtitle: str
    epsilon_over_steps: tuple[StepCurve, ...]
    target: float | None
    trade_off: tuple[RateCurve, ...]

    def __post_init__(self) -> None:
        if self.target is not None and not 0 < self.target < ENDLESS:
            raise ValueError(f"target is {self.target}; it must be finite and above 0")


def curves_of(plan: BudgetPlan) -> AccountCurves:
    """The curves of ``plan``. Raises ValueError for a mechanism without a trade-off function (published signs)."""
    if not isinstance(plan.mechanism, Ledger):
        raise ValueError("published signs have no (epsilon, delta) curve to draw; drop --plot")
    ledger, guarantee = plan.mechanism, plan.differential
    sampled = ledger.events[0] if len(ledger.events) == 1 else None
    return AccountCurves(
        title=_title(ledger),
        subtitle=f"{guarantee.unit}-level, {guarantee.adjacency}; delta {plan.delta:g}",
        epsilon_over_steps=_over_steps(sampled, plan) if isinstance(sampled, SampledGaussian) else (),
        target=plan.target,
        trade_off=_trade_offs(ledger, guarantee.epsilon, plan.delta),
    )


def _title(ledger: Ledger) -> str:
    return f"a ledger of {len(ledger.events)} events" if len(ledger.events) > 1 else ledger.events[0].caption


def _over_steps(event: SampledGaussian, plan: BudgetPlan) -> tuple[StepCurve, ...]:
    """Epsilon over the steps of training. The proved curve uses coarse bounds and ends at the plan's own epsilon."""
    delta, end = plan.delta, plan.differential.epsilon
    steps = _plotted_steps(event)
    events = [replace(event, steps=n) for n in steps]
    epsilons = [
        StepCurve(
            label="privacy loss distribution" if event.batches is Batches.POISSON else f"proved for {event.batches}",
            sound=True,
            steps=steps,
            epsilons=tuple(
                end
                if e.steps == event.steps and end is not None
                else epsilon_bound(Ledger(events=(e,)), delta, precision=COARSE)
                for e in events
            ),
        )
    ]
    for key in _COMPARED if event.batches is Batches.POISSON else ():
        method = METHODS[key]
        epsilons.append(
            StepCurve(
                label=_LABELS.get(key, method.title),
                sound=event.batches in method.sound_for,
                steps=steps,
                epsilons=tuple(method.epsilon(e, delta) for e in events),
            )
        )
    return tuple(epsilons)


def _plotted_steps(event: SampledGaussian) -> tuple[int, ...]:
    """The numbers of steps to plot: for shuffled passes, where epsilon is a step function, both ends of each step.

    For balls-and-bins batches, whole passes, whose losses are identically distributed.
    """
    if event.batches not in (Batches.SHUFFLED, Batches.BALLS_AND_BINS):
        return tuple(int(n) for n in np.unique(np.geomspace(1, event.steps, _POINTS).round()))
    a_pass = max(1, round(1 / event.sample_rate))
    passes = [int(n) for n in np.unique(np.geomspace(1, max(1, -(-event.steps // a_pass)), _POINTS).round())]
    if event.batches is Batches.BALLS_AND_BINS:
        return tuple(sorted({min(n * a_pass, event.steps) for n in passes} | {event.steps}))
    marks = {mark for n in passes for mark in ((n - 1) * a_pass + 1, n * a_pass)}
    return tuple(sorted({min(mark, event.steps) for mark in marks} | {event.steps}))


def _trade_offs(ledger: Ledger, epsilon: float | None, delta: float) -> tuple[RateCurve, ...]:
    rates = np.unique(np.concatenate([np.geomspace(1e-5, 1, 90), np.linspace(0, 1, 60)]))
    curves = {"the whole curve": risk.trade_off(ledger)}
    if epsilon is not None:
        curves = {"the whole curve": risk.trade_off(ledger, (epsilon, delta))}
        curves[f"epsilon {upward(epsilon, 4)}, delta {upward(delta)} alone"] = risk.line(epsilon, delta)
    return tuple(
        RateCurve(
            label=label,
            false_positive_rates=tuple(rates.tolist()),
            false_negative_rates=tuple(1 - curve.true_positive_rate(rate) for rate in rates.tolist()),
        )
        for label, curve in curves.items()
    )


def _require_increasing(label: str, x_name: str, x: Sequence[float], y_name: str, y: Sequence[float]) -> None:
    if len(x) != len(y):
        raise ValueError(f"{label}: {len(x)} {x_name} and {len(y)} {y_name}; they must be equally many")
    if any(b < a for a, b in pairwise(x)):
        raise ValueError(f"{label}: {x_name} must rise")
