"""Banded correlated noise: its privacy, the best number of bands for a budget, and its error compared with DP-SGD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from privctl.accounting.banded import banded_coefficients, most_bands, prefix_error, require_bands
from privctl.accounting.calibrate import noise_multiplier_for, require_comparable
from privctl.accounting.ledger import epsilon_bound
from privctl.domain.events import BandedGaussian, Ledger
from privctl.plan.accountants import BudgetPlan
from privctl.plan.theorems import plan_ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedRequest:
    """Steps at a sampling rate, with given ``bands`` or the best number, for a target epsilon or with given noise."""

    sample_rate: float
    steps: int
    bands: int | None
    target: float | None
    noise_multiplier: float | None


def plan_banded(request: BandedRequest, delta: float, *, priors: tuple[float, ...] = ()) -> BudgetPlan:
    """The plan, with remarks on the error of prefix sums.

    If ``bands`` is None, the number among 1, 2, 4, ... with the smallest error at the target epsilon is chosen. Raises
    ValueError for bands that do not fit the sampling rate and steps, or without both bands and a target.
    """
    most = most_bands(request.sample_rate, request.steps)
    if request.bands is not None:
        require_bands(request.bands, request.sample_rate, request.steps)
    epsilon = request.target
    if request.bands is None and request.noise_multiplier is not None:
        raise ValueError("bands is missing; give it with --noise-multiplier, or give --epsilon to have it chosen")
    if request.bands is not None and request.noise_multiplier is not None:
        require_comparable(request.noise_multiplier)
        event = _event(request, request.bands, request.noise_multiplier)
        epsilon = epsilon_bound(Ledger(events=(event,)), delta)
    assert epsilon is not None
    counts = [request.bands] if request.bands is not None else [2**k for k in range(most.bit_length())]
    candidates = {count: _least_noise(request, count, epsilon, delta) for count in {1, *counts}}
    best = min(counts, key=lambda count: candidates[count].error)
    chosen = candidates[best]
    if request.noise_multiplier is not None and request.bands is not None:
        chosen = _Candidate.of(_event(request, request.bands, request.noise_multiplier))
    plan = plan_ledger([chosen.event], delta, priors=priors, remarks=tuple(_remarks(chosen, candidates)))
    if request.target is None:
        return plan
    return replace(plan, solved="noise multiplier", target=request.target, solution=chosen.event.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    event: BandedGaussian
    error: float

    @classmethod
    def of(cls, event: BandedGaussian) -> _Candidate:
        return cls(event=event, error=event.noise_multiplier * prefix_error(event.coefficients, event.steps))


def _event(request: BandedRequest, bands: int, noise: float) -> BandedGaussian:
    return BandedGaussian(
        noise_multiplier=noise,
        coefficients=banded_coefficients(bands, request.steps),
        sample_rate=request.sample_rate,
        steps=request.steps,
    )


def _least_noise(request: BandedRequest, bands: int, epsilon: float, delta: float) -> _Candidate:
    noise = noise_multiplier_for(epsilon, delta, lambda noise: Ledger(events=(_event(request, bands, noise),)))
    return _Candidate.of(_event(request, bands, noise))


def _remarks(chosen: _Candidate, candidates: dict[int, _Candidate]) -> Iterator[str]:
    independent = candidates[1]
    if chosen.event.bands == 1:
        yield f"with 1 band noise is independent: this is DP-SGD, with {_error_text(independent)}"
    else:
        yield (
            f"{chosen.event.bands} bands: {_error_text(chosen)}; independent noise (DP-SGD) of the same epsilon has "
            f"noise multiplier {independent.event.noise_multiplier:.6g} and an error of {independent.error:.4g}, "
            f"{independent.error / chosen.error:.3g} times as much"
        )
    errors = [f"{candidate.error:.4g} with {count}" for count, candidate in sorted(candidates.items())]
    if len(errors) > 2:
        yield f"error by bands: {', '.join(errors)}"


def _error_text(candidate: _Candidate) -> str:
    return f"a root mean square error of {candidate.error:.4g} clip norms in sums of the first k steps, over all k"
