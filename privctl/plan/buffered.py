"""Noise correlated by buffers: its privacy, how many buffers are worth having, and its error beside DP-SGD's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from privctl.accounting.buffered import BufferedMatrix, buffered_event, prefix_error
from privctl.accounting.buffered_search import buffered_matrix
from privctl.accounting.calibrate import noise_multiplier_for, require_comparable
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import BufferedGaussian, Ledger, SampledGaussian
from privctl.plan.accountants import BudgetPlan
from privctl.plan.theorems import plan_ledger

#: So many buffers are tried where none are asked for, as long as one more lowers the error by this factor.
_TRIED, _WORTH = 5, 1.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedRequest:
    """Passes of 1 / ``sample_rate`` steps in one order, for a target epsilon or with a given noise."""

    sample_rate: float
    steps: int
    buffers: int | None
    target: float | None
    noise_multiplier: float | None


def plan_buffered(asked: BufferedRequest, delta: float, *, priors: tuple[float, ...] = ()) -> BudgetPlan:
    """The plan, with remarks on the error of sums of steps. Raises ValueError for a rate of no whole number of steps.

    How private it is follows from the noise multiplier alone, as the matrix moves no row sum by more than a clip norm.
    """
    tried: dict[int, float] = {}
    buffers = 1
    for count in range(1, _TRIED + 1) if asked.buffers is None else [asked.buffers]:
        tried[count] = prefix_error(_matrix(asked, count), asked.steps)
        if tried[count] * _WORTH > tried.get(count - 1, math.inf):
            break
        buffers = count
    noise = asked.noise_multiplier
    if noise is not None:
        require_comparable(noise)
    else:
        assert asked.target is not None
        noise = noise_multiplier_for(asked.target, delta, lambda noise: Ledger(events=(_event(asked, buffers, noise),)))
    event = _event(asked, buffers, noise)
    remarks = tuple(_remarks(event, tried, delta))
    plan = plan_ledger([event], delta, priors=priors, remarks=remarks)
    if asked.target is None:
        return plan
    return replace(plan, solved="noise multiplier", target=asked.target, solution=noise)


def _matrix(asked: BufferedRequest, buffers: int) -> BufferedMatrix:
    return buffered_matrix(buffers, max(1, round(1 / max(asked.sample_rate, 2.0**-52))), asked.steps)


def _event(asked: BufferedRequest, buffers: int, noise: float) -> BufferedGaussian:
    return buffered_event(_matrix(asked, buffers), noise, asked.sample_rate, asked.steps)


def _remarks(event: BufferedGaussian, tried: dict[int, float], delta: float) -> Iterator[str]:
    error = event.noise_multiplier * tried[event.buffers]
    epsilon = epsilon_bound(Ledger(events=(event,)), delta)
    alone = noise_multiplier_for(epsilon, delta, lambda noise: Ledger(events=(_independent(event, noise),)))
    theirs = alone * ((event.steps + 1) / 2) ** 0.5
    yield (
        f"{event.buffers} buffer{'s' * (event.buffers != 1)}: a root mean square error of {error:.4g} clip norms in "
        "sums of the first k steps, over all k; independent noise on Poisson batches (DP-SGD) of the same epsilon has "
        f"noise multiplier {alone:.6g} and an error of {theirs:.4g}, {theirs / error:.3g} times as much"
    )
    if len(tried) > 1:
        found = ", ".join(f"{event.noise_multiplier * each:.4g} with {count}" for count, each in tried.items())
        yield f"error by buffers: {found}"


def _independent(event: BufferedGaussian, noise: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=event.sample_rate, steps=event.steps)
