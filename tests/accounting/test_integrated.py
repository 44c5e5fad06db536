"""Bounds against sums and trapezoids written here: nothing of the accounting is used but the bound that is judged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

from privctl.accounting.ledger import epsilon_bound
from privctl.accounting.renyi import renyi
from privctl.domain.events import (
    DiscreteGaussianNoise,
    Event,
    Ledger,
    ManyWayResponse,
    MixtureOfGaussians,
    RedrawnGaussian,
    SampledGaussian,
    TruncatedGaussian,
)
from privctl.domain.guarantee import Adjacency

#: A pair of laws by their outcomes' probabilities, or densities times widths, with the record and without.
Laws = tuple[np.ndarray, np.ndarray]


def gaussians(shifts: Sequence[float], weights: Sequence[float], sigma: float, points: int = 1601) -> Laws:
    """A mixture of Gaussians against the one at 0, on a grid wide enough for 1e-16 of either."""
    ends = min(shifts) - 9 * sigma, max(shifts) + 9 * sigma
    x, width = np.linspace(*ends, points, retstep=True)

    def density(shift: float) -> np.ndarray:
        return np.asarray(np.exp(-((x - shift) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * width)

    found = np.zeros(points)
    for shift, weight in zip(shifts, weights, strict=True):
        found = found + weight * density(shift)
    return found, density(0.0)


def joined(parts: Sequence[tuple[float, Laws]]) -> Laws:
    """One of several pairs, drawn with these chances, and which one is seen."""
    sides = [np.concatenate([weight * pair[side] for weight, pair in parts]) for side in (0, 1)]
    return sides[0], sides[1]


def product(first: Laws, second: Laws) -> Laws:
    """Both, independently."""
    return np.outer(first[0], second[0]).ravel(), np.outer(first[1], second[1]).ravel()


def delta_of(laws: Laws, epsilon: float) -> float:
    """The largest of both orders."""
    p, q = laws
    orders = ((p, q), (q, p))
    return max(float(np.maximum(above - math.exp(epsilon) * below, 0).sum()) for above, below in orders)


def sampled(rate: float, sigma: float, points: int = 1601) -> Laws:
    return gaussians((0.0, 1.0), (1 - rate, rate), sigma, points)


def truncated(examples: int, largest: int, rate: float, sigma: float, points: int = 1601) -> Laws:
    """A batch that others leave room in, or that they fill; of the latter the record replaces one, or nobody."""
    others = np.arange(examples)
    law = binom.pmf(others, examples - 1, rate)
    full = float(law[largest:].sum())
    parts = [(1 - full, sampled(rate, sigma, points))] if full < 1 else []
    if full > 0:
        drawn = float((law[largest:] * rate * largest / (others[largest:] + 1)).sum()) / full
        parts.append((full, gaussians((0.0, 2.0), (1 - drawn, drawn), sigma, points)))
    return joined(parts)


def held(event: Event | Sequence[Event], laws: Laws, delta: float, near: float) -> None:
    """The bound is one, and an epsilon lower by ``near`` is none."""
    events = (event,) if isinstance(event, Event) else tuple(event)
    epsilon = epsilon_bound(Ledger(events=events), delta)
    assert delta_of(laws, epsilon) <= delta * (1 + 1e-6)
    assert delta_of(laws, epsilon * (1 - near)) > delta


#: Always cut, nearly always, never by chance, rarely, and never: examples, largest batch, rate, noise.
EXTREMES = [(3, 2, 1.0, 2.0), (5, 1, 0.9, 1.0), (2, 2, 0.5, 0.8), (60, 1, 0.01, 0.7), (40, 20, 0.2, 1.0)]


@pytest.mark.parametrize("case", EXTREMES)
def test_truncated_batches_at_their_extremes(case: tuple[int, int, float, float]) -> None:
    examples, largest, rate, sigma = case
    event = TruncatedGaussian(
        noise_multiplier=sigma, largest_batch=largest, examples=examples, sample_rate=rate, steps=1
    )
    held(event, truncated(examples, largest, rate, sigma, 40_001), 1e-4, 5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", EXTREMES)
def test_two_truncated_steps(case: tuple[int, int, float, float]) -> None:
    examples, largest, rate, sigma = case
    event = TruncatedGaussian(
        noise_multiplier=sigma, largest_batch=largest, examples=examples, sample_rate=rate, steps=2
    )
    one = truncated(examples, largest, rate, sigma)
    held(event, product(one, one), 1e-4, 1e-2)


def redrawn(values: Sequence[float], draws: int, sigma: float, grid: np.ndarray) -> np.ndarray:
    """The noisy sum of ``draws`` places, each drawn afresh among ``values``: every batch by itself."""
    sums = np.array([math.fsum(batch) for batch in itertools.product(values, repeat=draws)])
    found, counts = np.unique(sums, return_counts=True)
    width = grid[1] - grid[0]
    densities = np.exp(-((grid[:, None] - found) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * width
    return np.asarray(densities @ (counts / counts.sum()))


@pytest.mark.parametrize(
    ("neighbours", "near"),
    [(Adjacency.ADD_OR_REMOVE, 5e-3), (Adjacency.ZERO_OUT, 0.75), (Adjacency.REPLACE_ONE, 0.4)],
)
@pytest.mark.parametrize(("examples", "draws", "sigma"), [(3, 2, 2.0), (5, 3, 4.0), (2, 4, 1.5), (4, 1, 1.0)])
def test_redrawn_batches_against_every_batch(
    neighbours: Adjacency, near: float, examples: int, draws: int, sigma: float
) -> None:
    """All data sets whose others contribute -1, 0 or 1: none exceeds delta, and the worst is near the bound."""
    event = RedrawnGaussian(noise_multiplier=sigma, examples=examples, draws=draws, steps=1, neighbours=neighbours)
    epsilon = epsilon_bound(Ledger(events=(event,)), 1e-3)
    grid = np.linspace(-draws - 8 * sigma, draws + 8 * sigma, 8001)
    worst = {epsilon: 0.0, epsilon * (1 - near): 0.0}
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), examples - 1):
        present = redrawn((1.0, *others), draws, sigma, grid)
        if neighbours is Adjacency.ADD_OR_REMOVE:
            absent = redrawn(others, draws, sigma, grid)
        else:
            absent = redrawn((0.0 if neighbours is Adjacency.ZERO_OUT else -1.0, *others), draws, sigma, grid)
        for at in worst:
            worst[at] = max(worst[at], delta_of((present, absent), at))
    assert worst[epsilon] <= 1e-3 * (1 + 1e-6)
    assert worst[epsilon * (1 - near)] > 1e-3


def test_redrawn_batches_of_less_noise_exceed_the_bound() -> None:
    """What a ledger with a twentieth too much noise would promise does not hold."""
    event = RedrawnGaussian(noise_multiplier=2.1, examples=3, draws=2, steps=1)
    grid = np.linspace(-18, 18, 8001)
    laws = redrawn((1.0, -1.0, -1.0), 2, 2.0, grid), redrawn((-1.0, -1.0), 2, 2.0, grid)
    assert delta_of(laws, epsilon_bound(Ledger(events=(event,)), 1e-3)) > 1e-3


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("alpha", [1.25, 2.0, 3.7, 16.0])
def test_renyi_divergences_of_mixtures_in_both_orders(rate: float, alpha: float) -> None:
    """That of the mixture against no change is the larger one, and the one that is stated."""
    amounts, chances, sigma = (0.5, 1.0, 3.0), (0.5, 0.3, 0.2), 1.5
    event = MixtureOfGaussians(noise_stddev=sigma, sensitivities=amounts, probabilities=chances, sample_rate=rate)
    top = 3 * alpha + 12 * sigma
    x, width = np.linspace(-3 * alpha - 12 * sigma, top + 3, 200_001, retstep=True)

    def log_density(shift: float) -> np.ndarray:
        return np.asarray(-((x - shift) ** 2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi)))

    law = [(0.0, 1 - rate), *((a, rate * c) for a, c in zip(amounts, chances, strict=True))]
    with_it = logsumexp([math.log(c) + log_density(a) for a, c in law if c > 0], axis=0)
    without = log_density(0.0)
    found = [
        float(logsumexp(alpha * above + (1 - alpha) * below)) + math.log(width)
        for above, below in ((with_it, without), (without, with_it))
    ]
    forward, backward = (value / (alpha - 1) for value in found)
    assert renyi(event, [alpha])[0] == pytest.approx(forward, rel=1e-7)
    assert backward <= forward * (1 + 1e-9)


def discrete(stddev: float, sensitivity: int, rate: float) -> Laws:
    """Whole numbers with discrete Gaussian noise, moved by ``sensitivity`` with the chance ``rate``."""
    k = np.arange(-math.ceil(12 * stddev) - sensitivity, math.ceil(12 * stddev) + 2 * sensitivity + 1)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * stddev**2))
    moved = np.exp(-((k - sensitivity).astype(float) ** 2) / (2 * stddev**2))
    without, with_it = weights / weights.sum(), moved / moved.sum()
    return (1 - rate) * without + rate * with_it, without


@pytest.mark.parametrize(("stddev", "sensitivity", "rate"), [(1.0, 1, 0.2), (0.3, 2, 1.0), (6.0, 5, 0.5)])
def test_two_steps_of_discrete_gaussian_noise(stddev: float, sensitivity: int, rate: float) -> None:
    event = DiscreteGaussianNoise(stddev=stddev, sensitivity=sensitivity, sample_rate=rate, steps=2)
    one = discrete(stddev, sensitivity, rate)
    epsilon = epsilon_bound(Ledger(events=(event,)), 1e-4)
    assert delta_of(product(one, one), epsilon) <= 1e-4 * (1 + 1e-6)
    assert delta_of(product(one, one), 0.8 * epsilon) > 1e-4


def answers(epsilon: float, count: int) -> Laws:
    """One of ``count`` answers, the true one likelier, against any alike."""
    found = np.ones(count)
    found[0] = math.exp(epsilon)
    return found / found.sum(), np.full(count, 1 / count)


@pytest.mark.parametrize("count", [2, 7])
def test_a_ledger_of_answers_and_steps_is_integrated(count: int) -> None:
    """Records that answer at random where they are zeroed, beside steps whose neighbours differ by a record."""
    events = (
        ManyWayResponse(epsilon=1.0, answers=count, neighbours=Adjacency.ZERO_OUT),
        SampledGaussian(noise_multiplier=1.0, sample_rate=0.3, steps=1),
    )
    laws = product(answers(1.0, count), sampled(0.3, 1.0, 20_001))
    epsilon = epsilon_bound(Ledger(events=events), 1e-3)
    assert delta_of(laws, epsilon) <= 1e-3 * (1 + 1e-6)
    assert delta_of(laws, 0.5 * epsilon) > 1e-3


@pytest.mark.parametrize("fault", [1.05, 0.9])
def test_a_wrong_number_would_be_seen(fault: float) -> None:
    """Noise a little less than the ledger's, and a bound that is far too large, fail what the others pass."""
    event = SampledGaussian(noise_multiplier=1.0, sample_rate=0.3, steps=1)
    held(event, sampled(0.3, 1.0, 20_001), 1e-3, 5e-3)
    with pytest.raises(AssertionError):
        held(event, sampled(0.3, fault, 20_001), 1e-3, 5e-3)
