"""The best of a random number of private runs: what the choice of settings by results costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from privctl.accounting.calibrate import noise_multiplier_for
from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.runs_law import name_of
from privctl.domain.events import BestOfRuns, Ledger, SampledGaussian
from privctl.plan.accountants import BudgetPlan
from privctl.plan.theorems import plan_ledger


def price(event: BestOfRuns, delta: float) -> str:
    """What releasing the best of the event's runs costs beside one run, in one sentence."""
    run = SampledGaussian(noise_multiplier=event.noise_multiplier, sample_rate=event.sample_rate, steps=event.run_steps)
    alone, whole = (epsilon_bound(Ledger(events=(each,)), delta) for each in (run, event))
    return (
        f"one run alone has epsilon {alone:.4g} at delta {delta:g}; releasing the best of a random number of them, "
        f"{event.mean_runs:g} on average ({name_of(event.shape)} law), raises it to {whole:.4g}"
    )


def plan_search(
    event: BestOfRuns, delta: float, *, target: float | None = None, priors: Sequence[float] = ()
) -> BudgetPlan:
    """The best of the event's runs; with a ``target`` epsilon, of the least noise that meets it.

    Raises ValueError where no noise does.
    """
    if target is not None:
        noise = noise_multiplier_for(
            target, delta, lambda noise: Ledger(events=(replace(event, noise_multiplier=noise),))
        )
        event = replace(event, noise_multiplier=noise)
    remark = price(event, delta)
    plan = plan_ledger([event], delta, priors=priors, remarks=(remark[:1].upper() + remark[1:],))
    if target is None:
        return plan
    return replace(plan, solved="noise multiplier", target=target, solution=event.noise_multiplier)
