"""Noise correlated by buffers (BLT): its privacy, the number of buffers, and its error compared with DP-SGD."""

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

#: The most buffers tried if the user does not give a number, and the factor by which one more must lower the error.
_MOST_BUFFERS, _WORTH = 5, 1.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedRequest:
    """Passes of 1 / ``sample_rate`` steps in a fixed order, for a target epsilon or with given noise."""

    sample_rate: float
    steps: int
    buffers: int | None
    target: float | None
    noise_multiplier: float | None


def plan_buffered(request: BufferedRequest, delta: float, *, priors: tuple[float, ...] = ()) -> BudgetPlan:
    """The plan, with remarks on the error of prefix sums.

    Privacy depends on the noise multiplier alone, as the matrix is scaled to a sensitivity of one clip norm. Raises
    ValueError if a pass is not a whole number of steps.
    """
    errors: dict[int, float] = {}
    buffers = 1
    for count in range(1, _MOST_BUFFERS + 1) if request.buffers is None else [request.buffers]:
        errors[count] = prefix_error(_matrix(request, count), request.steps)
        if errors[count] * _WORTH > errors.get(count - 1, math.inf):
            break
        buffers = count
    noise = request.noise_multiplier
    if noise is not None:
        require_comparable(noise)
    else:
        assert request.target is not None
        noise = noise_multiplier_for(
            request.target, delta, lambda noise: Ledger(events=(_event(request, buffers, noise),))
        )
    event = _event(request, buffers, noise)
    remarks = tuple(_remarks(event, errors, delta))
    plan = plan_ledger([event], delta, priors=priors, remarks=remarks)
    if request.target is None:
        return plan
    return replace(plan, solved="noise multiplier", target=request.target, solution=noise)


def _matrix(request: BufferedRequest, buffers: int) -> BufferedMatrix:
    return buffered_matrix(buffers, max(1, round(1 / max(request.sample_rate, 2.0**-52))), request.steps)


def _event(request: BufferedRequest, buffers: int, noise: float) -> BufferedGaussian:
    return buffered_event(_matrix(request, buffers), noise, request.sample_rate, request.steps)


def _remarks(event: BufferedGaussian, errors: dict[int, float], delta: float) -> Iterator[str]:
    error = event.noise_multiplier * errors[event.buffers]
    epsilon = epsilon_bound(Ledger(events=(event,)), delta)
    independent = noise_multiplier_for(epsilon, delta, lambda noise: Ledger(events=(_independent(event, noise),)))
    independent_error = independent * ((event.steps + 1) / 2) ** 0.5
    yield (
        f"{event.buffers} buffer{'s' * (event.buffers != 1)}: a root mean square error of {error:.4g} clip norms in "
        "sums of the first k steps, over all k; independent noise on Poisson batches (DP-SGD) of the same epsilon has "
        f"noise multiplier {independent:.6g} and an error of {independent_error:.4g}, "
        f"{independent_error / error:.3g} times as much"
    )
    if len(errors) > 1:
        listed = ", ".join(f"{event.noise_multiplier * error:.4g} with {count}" for count, error in errors.items())
        yield f"error by buffers: {listed}"


def _independent(event: BufferedGaussian, noise: float) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sample_rate=event.sample_rate, steps=event.steps)
