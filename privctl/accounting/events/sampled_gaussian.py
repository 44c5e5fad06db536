"""Gaussian noise on a sum of clipped contributions, for Poisson, fixed-size, shuffled and balls-and-bins batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privctl.accounting.events.row import EventAccounting
from privctl.accounting.mixtures import log_moments
from privctl.accounting.passes import participations
from privctl.accounting.pld.allocation import Allocation
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian, Sampled, Symmetrized
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.published import clt_noise_multiplier
from privctl.domain.events import Batches, SampledGaussian

#: With less noise, losses are too large for the grid; sampling is then ignored, which is sound.
_LEAST_NOISE = 1e-6
#: The same for a pass of balls-and-bins batches, whose likelihood ratios are stored as floats.
_LEAST_NOISE_IN_BINS = 0.05
#: Larger sampling rates count as 1.
_CERTAIN = 1 - 1e-9
#: Integer orders up to this one use the binomial expansion, others an integral.
_EXPANDED = 4096
#: The range of noise multipliers for which composition is fast enough for an interactive page.
_QUIETEST, _LOUDEST = 0.2, 1e4


def _sensitivity(event: SampledGaussian) -> int:
    """In clip norms: with fixed-size batches, another record takes the place of the removed one."""
    return 2 if event.batches is Batches.FIXED_SIZE else 1


def _pair(event: SampledGaussian, lower: bool) -> RepeatedPair:
    if event.batches is Batches.BALLS_AND_BINS:
        bins = event.steps_per_pass
        return RepeatedPair(
            Allocation(event.noise_multiplier, bins, min(bins, event.steps), lower), max(1, event.steps // bins)
        )
    sampled = Sampled(Gaussian(_sensitivity(event) / event.noise_multiplier), event.sample_rate)
    return RepeatedPair(Symmetrized(sampled) if event.batches is Batches.FIXED_SIZE else sampled, event.steps)


def _partial_pass(event: SampledGaussian, lower: bool) -> RepeatedPair | None:
    """The last pass of balls-and-bins batches, if it is cut short and not the only one."""
    bins = event.steps_per_pass
    left = event.steps % bins
    if event.batches is not Batches.BALLS_AND_BINS or event.steps < bins or not left:
        return None
    return RepeatedPair(Allocation(event.noise_multiplier, bins, left, lower), 1)


def _shift(event: SampledGaussian) -> float | None:
    mu = 1 / event.noise_multiplier
    if event.batches is Batches.SHUFFLED:
        # A record is in one batch per pass, and the other batches do not depend on it, whatever the order.
        return mu * math.sqrt(participations(event.sample_rate, event.steps))
    if event.sample_rate > _CERTAIN:
        # Rounding the rate up to 1 only increases the loss.
        return mu * math.sqrt(event.steps) * _sensitivity(event)
    return None


def _full_shift(event: SampledGaussian) -> float:
    if event.batches is Batches.BALLS_AND_BINS:
        # The bound for an attacker who knows in which step of each pass the record takes part.
        return math.sqrt(math.ceil(event.steps / event.steps_per_pass)) / event.noise_multiplier
    return _shift(event) or _sensitivity(event) * math.sqrt(event.steps) / event.noise_multiplier


def _has_extreme_rate(event: SampledGaussian) -> bool:
    least = _LEAST_NOISE_IN_BINS if event.batches is Batches.BALLS_AND_BINS else _LEAST_NOISE
    return event.noise_multiplier < least


def _for_floor(event: SampledGaussian) -> SampledGaussian:
    """The event with a rate just below 1 lowered to ``_CERTAIN``, so that it does not count as 1; lowers the loss."""
    return replace(event, sample_rate=_CERTAIN) if _CERTAIN < event.sample_rate < 1 else event


def _guess(event: SampledGaussian, epsilon: float, delta: float) -> float | None:
    """An estimate by the central limit theorem."""
    if not 0 < event.sample_rate < 1:
        return None
    try:
        return clt_noise_multiplier(epsilon, event.sample_rate, event.steps, delta)
    except (ValueError, OverflowError):
        return None


def _divergences(event: SampledGaussian, alphas: Floats) -> Floats:
    """One step of the Poisson-sampled Gaussian; alpha / (2 sigma^2) without sampling."""
    q, sigma = event.sample_rate, event.noise_multiplier
    if q == 0:
        return np.zeros(len(alphas))
    if q == 1:
        with np.errstate(over="ignore"):
            return alphas / 2 / sigma / sigma
    if event.batches is not Batches.POISSON:
        raise ValueError(
            f"batches is {event.batches.value}; Renyi amplification by sampling is proved for Poisson batches only"
        )
    whole = (alphas == np.floor(alphas)) & (alphas <= _EXPANDED)
    logs = np.empty(len(alphas))
    with np.errstate(over="ignore"):
        logs[whole] = [_expanded(q, sigma, int(alpha)) for alpha in alphas[whole]]
    logs[~whole] = log_moments(np.array([1 - q, q]), np.array([0.0, 1.0]), sigma, alphas[~whole].tolist())
    return logs / (alphas - 1)


def _expanded(q: float, sigma: float, alpha: int) -> float:
    """Logarithm of sum_k C(alpha, k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 sigma^2)).

    Mironov, Talwar and Zhang 2019, section 3.3. The binomial probabilities sum to 1, so with exp - 1 in place of exp
    the sum is smaller by exactly 1, and small divergences lose no digits.
    """
    k = np.arange(1, alpha + 1, dtype=np.float64)
    log_binomial = np.cumsum(np.log((alpha - k + 1) / k)) + k * math.log(q) + (alpha - k) * math.log1p(-q)
    growth = k * (k - 1) / 2 / sigma / sigma
    with np.errstate(divide="ignore"):
        log_growth = np.where(growth < 1, np.log(np.expm1(np.minimum(growth, 1))), _log_expm1(np.maximum(growth, 1)))
    terms = log_binomial + log_growth
    top = float(terms.max())
    if not math.isfinite(top):
        return top if top > 0 else 0.0
    return float(np.logaddexp(0.0, top + math.log(np.exp(terms - top).sum())))


def _log_expm1(x: Floats) -> Floats:
    """log(exp(x) - 1) for x >= 1."""
    return np.asarray(x + np.log1p(-np.exp(-x)))


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    rest=_partial_pass,
    shift=_shift,
    full_shift=_full_shift,
    extreme=_has_extreme_rate,
    for_floor=_for_floor,
    guess=_guess,
    quick=lambda event: _QUIETEST <= event.noise_multiplier <= _LOUDEST,
)
