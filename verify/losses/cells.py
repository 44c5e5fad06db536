"""The two output distributions of a step, with the record (P) and without it (Q), cut into cells.

Each cell holds its masses under both distributions and the losses log(p / q) at its two ends, which increase along the
output. Upper and lower bounds need nothing else. Masses are integrals of the densities by Gauss-Legendre quadrature
(4 nodes, with cells so narrow that the error is far below ``MASS_ERROR``), or come from the normal cdf for wide cells.

Sampling at rate q turns the pair into (1 - q) Q + q P against Q, and a loss l into log(1 - q + q e^l), which preserves
the order of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

Floats = NDArray[np.float64]

#: A bound on the relative error of any cell's mass, many times what rounding and quadrature cause.
MASS_ERROR = 1e-12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
#: The most cells that fit in memory.
MOST_CELLS = 3_000_000
#: Counts with less mass than this are cut off.
_CUT = 1e-30
#: The delta at which ``most_revealing`` compares cells.
_SMALL_DELTA = 1e-6
#: Losses closer than this count as equal.
_FLAT = 1e-14
#: No mechanism shifts its noise by as many standard deviations; larger shifts leave the range of floats when squared.
_FARTHEST = 1e100


@dataclass(frozen=True, slots=True, eq=False)
class LossCells:
    """The cells of one step in order of increasing loss; all arrays have shape (cells,).

    ``low`` and ``high`` are the losses at a cell's ends, equal for atoms; ``p`` and ``q`` are its masses. ``up`` is the
    part of ``p`` that goes to the upper end if all mass is moved to the ends so that the masses of P and Q are
    preserved. ``p_infinite`` is the mass under P of loss +infinity, ``q_infinite`` the mass under Q of loss -infinity.
    ``error`` is the largest relative error of a mass.
    """

    low: Floats
    high: Floats
    p: Floats
    q: Floats
    up: Floats
    p_infinite: float = 0.0
    q_infinite: float = 0.0
    error: float = MASS_ERROR

    def reversed(self) -> LossCells:
        """The same step with P and Q exchanged."""
        # The part of Q at the new upper end, -low: the masses of the ends under Q are e^-loss times those under P.
        with np.errstate(over="ignore", invalid="ignore"):
            up = np.where(self.p > self.up, (self.p - self.up) * np.exp(-self.low), 0.0)
            up = np.where(self.high - self.low < _FLAT, self.q, up)
        return LossCells(
            low=-self.high[::-1], high=-self.low[::-1], p=self.q[::-1], q=self.p[::-1],
            up=np.minimum(up, self.q)[::-1], p_infinite=self.q_infinite, q_infinite=self.p_infinite,
            error=self.error,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CellReach:
    """The range of cells: to tails of mass exp(``log_tail``), and to losses of +-``loss``; the rest is one cell."""

    log_tail: float
    loss: float = math.inf


class TooFineError(ValueError):
    """More cells would be needed than fit in memory; ``factor`` is how many times more."""

    def __init__(self, factor: float) -> None:
        super().__init__(f"{factor:.3g} times as many cells would be needed as fit")
        self.factor = factor


def atoms(losses: Floats, log_p: Floats) -> LossCells:
    """Cells of a discrete distribution; the mass of each point under Q is e^-loss times that under P."""
    order = np.argsort(losses)
    losses, p = losses[order], np.exp(log_p[order])
    return LossCells(low=losses, high=losses, p=p, q=np.exp(log_p[order] - losses), up=np.zeros_like(p))


def plain_gaussian(mu: float, width: float, reach: CellReach) -> LossCells:
    """Cells of N(mu, 1) against N(0, 1)."""
    return gaussian_mixture(np.array([1.0]), np.array([1.0]), 1 / mu, width, reach)


def gaussian_mixture(shifts: Floats, weights: Floats, stddev: float, width: float, reach: CellReach) -> LossCells:
    """Cells of sum_k weights[k] N(shifts[k], stddev^2) against N(0, stddev^2), for nonnegative ``shifts`` (k,).

    Raises TooFineError if it would take more cells than fit, and OverflowError for a shift whose square is no float.
    """
    keep = weights > 0
    with np.errstate(over="ignore"):
        steps, logs = shifts[keep] / stddev, np.log(weights[keep])
    most, side = float(steps.max()), math.sqrt(-2 * reach.log_tail)
    if not most < _FARTHEST:
        raise OverflowError(f"a record shifts the noise by {most:g} of its standard deviations")
    low, high = (
        _within(lambda x: float(_loss(np.array([x]), steps, logs)[0]), -side, most + side, sign * reach.loss)
        for sign in (-1, 1)
    )
    edges = edges_of(lambda x: _slope(x, steps, logs), low, high, width, most)
    middle = most / 2  # of one shift, where the loss is 0 at any rate
    if np.count_nonzero(steps) == 1 and low < middle < high:
        edges = np.union1d(edges, middle)
    losses = _loss(edges, steps, logs)
    losses[(edges == middle) & (np.abs(losses) < _FLAT)] = 0.0
    p, q, up = _masses(edges, losses, steps, logs)
    # The range beyond each end is a cell of its own; its mass under P counts as infinite loss if the loss is unbounded.
    rest = np.exp(logs[steps > 0])
    bounded = bool((steps == 0).any())
    beyond = np.exp(log_ndtr(edges[0] - steps[steps > 0])) @ rest
    outside = math.exp(log_ndtr(edges[0])), math.exp(log_ndtr(-edges[-1]))
    bottom = float(logs[steps == 0].max()) if bounded else float(losses[0])
    below = float(beyond) + math.exp(bottom) * outside[0] if bounded else float(beyond)
    # Below, P = e^bottom Q plus the contribution of the record, which is put entirely at the larger loss.
    moved = float(beyond) / -math.expm1(bottom - losses[0]) if losses[0] - bottom > _FLAT else below
    return LossCells(
        low=np.concatenate([[bottom], losses]),
        high=np.concatenate([losses[:1], losses[1:], losses[-1:]]),
        p=np.concatenate([[below], p, [0.0]]),
        q=np.concatenate([[outside[0] if bounded else 0.0], q, [outside[1]]]),
        up=np.concatenate([[min(moved, below)], up, [0.0]]),
        p_infinite=float(np.exp(log_ndtr(steps - edges[-1]) + logs).sum()),
        q_infinite=0.0 if bounded else outside[0],
    )


def _within(loss: Callable[[float], float], low: float, high: float, target: float) -> float:
    """The output at which the increasing loss is about ``target``, clipped to [``low``, ``high``]."""
    if loss(low) >= target:
        return low
    if loss(high) <= target:
        return high
    while high - low > 1e-9 and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if loss(middle) < target else (low, middle)
    return high


def edges_of(slope: Callable[[Floats], Floats], low: float, high: float, width: float, rate: float) -> Floats:
    """Outputs from ``low`` to ``high``, so close that the loss changes by at most ``width`` within a cell.

    They are also close enough for the density to be smooth within a cell; ``rate`` bounds the growth of the likelihood.
    Raises TooFineError if it would take more cells than fit, and OverflowError if no float is their number.
    """
    marks = np.linspace(low, high, 4001)
    with np.errstate(divide="ignore"):
        density = np.maximum(slope(marks) * 1.02 / width, (1 + rate + np.abs(marks)) / 0.25)
    total = np.concatenate([[0.0], np.cumsum((np.maximum(density[1:], density[:-1])) * np.diff(marks))])
    if not math.isfinite(total[-1]):
        raise OverflowError("its losses are too small to be told apart by floats")
    count = math.ceil(total[-1])
    if count > MOST_CELLS:
        raise TooFineError(count / MOST_CELLS)
    return np.interp(np.linspace(0, total[-1], count + 1), total, marks)


def _loss(x: Floats, steps: Floats, logs: Floats) -> Floats:
    """Log sum_k w_k exp(a_k x - a_k^2 / 2), with small relative error also near 0."""
    if len(steps) == 1:
        return np.asarray(steps[0] * (x - steps[0] / 2) + logs[0])
    largest = np.maximum.reduce([step * (x - step / 2) for step in steps])
    # Each output takes one of two sums, which are the cost of all bounds of sampled noise.
    near = np.flatnonzero(largest <= 1)
    change = _change(x[near], steps, logs)
    near, change = near[change > -0.5], change[change > -0.5]
    far = np.ones(len(x), bool)
    far[near] = False
    losses = np.empty_like(x)
    losses[near] = np.log1p(change)
    losses[far] = _log_of_sum(x[far], steps, logs)
    return losses


def _change(x: Floats, steps: Floats, logs: Floats) -> Floats:
    """The likelihood ratio at outputs ``x`` less 1, accurate near 0."""
    change = np.zeros_like(x)
    for step, log in zip(steps, logs, strict=True):
        if step:
            change += math.exp(log) * np.expm1(step * (x - step / 2))
    return change


def _log_of_sum(x: Floats, steps: Floats, logs: Floats) -> Floats:
    """The loss at outputs ``x``, accurate where it is not near 0, however large."""
    terms = [step * (x - step / 2) + log for step, log in zip(steps, logs, strict=True)]
    top = np.maximum.reduce(terms)
    total = np.zeros_like(x)
    for term in terms:
        total += np.exp(term - top)
    return np.asarray(top + np.log(total))


def _slope(x: Floats, steps: Floats, logs: Floats) -> Floats:
    """The derivative of the loss."""
    exponents = x[:, None] * steps - steps * steps / 2 + logs
    share = np.exp(exponents - logsumexp(exponents, axis=1, keepdims=True))
    return np.asarray(share @ steps)


def _masses(edges: Floats, losses: Floats, steps: Floats, logs: Floats) -> tuple[Floats, Floats, Floats]:
    """The masses of the cells under P and Q, and the part of P that goes to the upper ends."""
    p, q, up = np.zeros((3, len(edges) - 1))
    gap, span = np.diff(edges), np.diff(losses)
    flat = span < _FLAT
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        whole = np.expm1(-span)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            x = edges[:-1] + node * gap
            loss = np.clip(_loss(x, steps, logs), losses[:-1], losses[1:])
            share = weight * gap / math.sqrt(2 * math.pi)
            with_record = share * np.exp(loss - x * x / 2)  # e^loss alone may overflow
            q += share * np.exp(-x * x / 2)
            p += with_record
            # The part of an atom at loss l that preserves both masses: (1 - e^-(l - low)) / (1 - e^-(high - low)).
            up += with_record * np.where(flat, 1.0, np.expm1(losses[:-1] - loss) / whole)
    return p, q, np.minimum(up, p)


def most_revealing(candidates: Sequence[LossCells]) -> LossCells:
    """Of several candidates for a lower bound, the cells with about the largest epsilon at a small delta."""

    def epsilon(cells: LossCells) -> float:
        low, high = 0.0, 600.0
        while high - low > 1e-3:
            middle = (low + high) / 2
            growth = math.exp(middle)
            sides = np.maximum(cells.p - growth * cells.q, 0).sum(), np.maximum(cells.q - growth * cells.p, 0).sum()
            low, high = (middle, high) if max(sides) > _SMALL_DELTA else (low, middle)
        return low

    return max(candidates, key=epsilon)


def sampled_losses(losses: Floats, rate: float) -> Floats:
    """Losses at sampling ``rate`` from those without sampling, accurate near 0 and where e^loss overflows."""
    if rate == 1:
        return losses
    near = np.log1p(rate * np.expm1(np.clip(losses, -30, 30)))
    return np.where(np.abs(losses) < 30, near, np.logaddexp(math.log1p(-rate), math.log(rate) + losses))


def largest_sampled_loss(most: float, rate: float) -> float:
    """The loss at sampling ``rate`` that corresponds to the loss ``most`` without sampling."""
    if most > 500:  # e^most may overflow
        return most + math.log(rate + (1 - rate) * math.exp(-most))
    return math.log1p(rate * math.expm1(most))


def symmetrize(cells: LossCells) -> LossCells:
    """Cells of a pair that dominates ``cells`` in both orders, at every loss above 0.

    For batches of fixed size, replacement is bounded by the same pair in either order (Balle, Barthe and Gaboardi 2018,
    theorem 9): delta at epsilon >= 0 is that of the first order, and delta at epsilon < 0 follows by exchanging the
    data sets. Cells should end at 0: rounding up one that contains it may leave a total mass above 1, which costs as
    much as the spacing in every step.
    """
    kept = np.maximum(cells.high, 0.0) > 0
    low, high, p, q, up = (part[kept] for part in (cells.low, cells.high, cells.p, cells.q, cells.up))
    # A cell that contains 0 is cut there; its part above 0 is kept, rounded up.
    across = low < 0
    up = np.where(across, p, up)
    low = np.where(across, 0.0, low)
    q = np.where(across, np.minimum(q, p * np.exp(-high)), q)
    above = LossCells(low=low, high=high, p=p, q=q, up=up, p_infinite=cells.p_infinite, q_infinite=0.0)
    below = above.reversed()
    rest = max(0.0, 1 - float(p.sum() + q.sum()) - cells.p_infinite)
    middle = np.zeros(1)
    return LossCells(
        low=np.concatenate([below.low, middle, low]), high=np.concatenate([below.high, middle, high]),
        p=np.concatenate([below.p, [rest], p]), q=np.concatenate([below.q, [rest], q]),
        up=np.concatenate([below.up, [0.0], up]), p_infinite=cells.p_infinite, q_infinite=cells.p_infinite,
    )  # fmt: skip


def observed_mixture(parts: Sequence[tuple[float, LossCells]]) -> LossCells:
    """Cells of a mixture of steps with given probabilities, where the observer sees which one occurred."""
    low = np.concatenate([cells.low for _, cells in parts])
    order = np.argsort(low, kind="stable")
    high = np.concatenate([cells.high for _, cells in parts])[order]
    p, q, up = (
        np.concatenate([chance * getattr(cells, name) for chance, cells in parts])[order] for name in ("p", "q", "up")
    )
    infinite, absent = (
        math.fsum(chance * getattr(cells, name) for chance, cells in parts) for name in ("p_infinite", "q_infinite")
    )
    return LossCells(low=low[order], high=high, p=p, q=q, up=up, p_infinite=infinite, q_infinite=absent)


def doubled_moves(moves: Floats, weights: Floats, stddev: float, width: float, reach: CellReach) -> LossCells:
    """Cells of sum_k weights[k] N(2 moves[k], stddev^2) against the same with ``moves``, which are nonnegative.

    Losses need not increase along the output, so these cells give only lower bounds on delta.
    """
    keep = weights > 0
    steps, logs = moves[keep] / stddev, np.log(weights[keep])
    side, a = math.sqrt(-2 * reach.log_tail), 2 * float(steps.max())
    edges = edges_of(lambda x: _slope(x, 2 * steps, logs) + _slope(x, steps, logs), -side, a + side, width, a)
    losses = _loss(edges, 2 * steps, logs) - _loss(edges, steps, logs)
    p, q = (
        sum(np.exp(log) * normal_masses(edges - times * step) for step, log in zip(steps, logs, strict=True))
        for times in (2, 1)
    )
    left, right = np.concatenate([losses[:1], losses]), np.concatenate([losses, losses[-1:]])
    low, high = np.minimum(left, right), np.maximum(left, right)
    order = np.argsort(high, kind="stable")
    p, q = np.asarray(p)[order], np.asarray(q)[order]
    return LossCells(low=low[order], high=high[order], p=p, q=q, up=p)


def normal_masses(edges: Floats) -> Floats:
    """The masses of N(0, 1) below, between and above ``edges``, each from the smaller tail."""
    left, right = np.exp(log_ndtr(edges)), np.exp(log_ndtr(-edges))
    inner = np.where(edges[1:] < 0, np.diff(left), -np.diff(right))
    return np.concatenate([left[:1], inner, right[-1:]])


def binomial_law(probabilities: Sequence[float]) -> tuple[Floats, float]:
    """The Poisson binomial probabilities of 0, 1, 2, ... successes, and the mass that was cut off."""
    law, lost = np.ones(1), 0.0
    for chance in probabilities:
        law = np.concatenate([law * (1 - chance), [0.0]]) + np.concatenate([[0.0], law * chance])
        while len(law) > 2 and law[-1] < _CUT:
            lost += float(law[-1])
            law = law[:-1]
    return law, lost
