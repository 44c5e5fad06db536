"""The curves of a plan: epsilon while training goes on, and what is left to an attacker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privctl.accounting import risk
from privctl.accounting.ledger import COARSE, epsilon_bound
from privctl.accounting.methods import METHODS
from privctl.domain.events import Batches, Ledger, SampledGaussian
from privctl.plan.accountants import BudgetPlan
from privctl.show.plots.curves import AccountCurves, RateCurve, StepCurve

_POINTS = 16
#: Methods drawn beside the tight one, where the batches are Poisson.
_BESIDE = ("advanced", "rdp", "gdp-clt")
#: Where the picture itself says what is no bound.
_LABELS = {"gdp-clt": "GDP central limit"}


def curves_of(plan: BudgetPlan) -> AccountCurves:
    """Both panels. Raises ValueError for a mechanism without a trade-off curve (published signs)."""
    if not isinstance(plan.mechanism, Ledger):
        raise ValueError("published signs have no (epsilon, delta) curve to draw; drop --plot")
    ledger, guarantee = plan.mechanism, plan.differential
    sampled = ledger.events[0] if len(ledger.events) == 1 else None
    return AccountCurves(
        title=_title(ledger),
        subtitle=f"{guarantee.unit}-level, {guarantee.adjacency}; delta {plan.delta:g}",
        epsilon_over_steps=_over_steps(sampled, plan.delta) if isinstance(sampled, SampledGaussian) else (),
        target=plan.target,
        trade_off=_trade_offs(ledger, guarantee.epsilon, plan.delta),
    )


def _title(ledger: Ledger) -> str:
    event = ledger.events[0]
    if len(ledger.events) == 1 and isinstance(event, SampledGaussian):
        return (
            f"{event.steps:,} steps, {event.batches} batches at rate {event.sample_rate:.6g}, "
            f"noise multiplier {event.noise_multiplier:.6g}"
        )
    return f"a ledger of {len(ledger.events)} events" if len(ledger.events) > 1 else type(event).__name__


def _over_steps(event: SampledGaussian, delta: float) -> tuple[StepCurve, ...]:
    steps = _marks(event)
    at = [replace(event, steps=n) for n in steps]
    found = [
        StepCurve(
            label="privacy loss distribution" if event.batches is Batches.POISSON else f"proved for {event.batches}",
            sound=True,
            steps=steps,
            epsilons=tuple(epsilon_bound(Ledger(events=(e,)), delta, precision=COARSE) for e in at),
        )
    ]
    for key in _BESIDE if event.batches is Batches.POISSON else ():
        method = METHODS[key]
        found.append(
            StepCurve(
                label=_LABELS.get(key, method.title),
                sound=event.batches in method.sound_for,
                steps=steps,
                epsilons=tuple(method.epsilon(e, delta) for e in at),
            )
        )
    return tuple(found)


def _marks(event: SampledGaussian) -> tuple[int, ...]:
    """Numbers of steps to draw; for passes, where epsilon is a staircase, both ends of each stair."""
    if event.batches is not Batches.SHUFFLED:
        return tuple(int(n) for n in np.unique(np.geomspace(1, event.steps, _POINTS).round()))
    a_pass = max(1, round(1 / event.sample_rate))
    passes = [int(n) for n in np.unique(np.geomspace(1, max(1, -(-event.steps // a_pass)), _POINTS).round())]
    marks = {mark for n in passes for mark in ((n - 1) * a_pass + 1, n * a_pass)}
    return tuple(sorted({min(mark, event.steps) for mark in marks} | {event.steps}))


def _trade_offs(ledger: Ledger, epsilon: float | None, delta: float) -> tuple[RateCurve, ...]:
    rates = np.unique(np.concatenate([np.geomspace(1e-5, 1, 90), np.linspace(0, 1, 60)]))
    curves = {"the whole curve": risk.trade_off(ledger)}
    if epsilon is not None:
        curves = {"the whole curve": risk.trade_off(ledger, (epsilon, delta))}
        curves[f"epsilon {epsilon:.4g}, delta {delta:g} alone"] = risk.line(epsilon, delta)
    return tuple(
        RateCurve(
            label=label,
            false_positive_rates=tuple(rates.tolist()),
            false_negative_rates=tuple(1 - curve.true_positive_rate(rate) for rate in rates.tolist()),
        )
        for label, curve in curves.items()
    )
