"""Cells of one step with Gaussian noise in which a record of a Poisson batch is replaced by its opposite."""

from __future__ import annotations

import math

import numpy as np
from flint import arb
from scipy.special import expit, log_ndtr

from verify.losses.cells import CellReach, Floats, LossCells, edges_of
from verify.losses.tails import normal_above

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
#: Losses closer than this count as equal.
_FLAT = 1e-14
#: The exponential of this does not overflow.
_LARGE = 700.0


def opposite_cells(noise_multiplier: float, sample_rate: float, width: float, reach: CellReach) -> LossCells:
    """Cells of (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1), with the same standard deviation; 0 < q < 1.

    Cells are narrow only where the loss changes, which is far out if q is small. Raises TooFineError if it would take
    more of them than fit.
    """
    far, side = 1 / noise_multiplier, math.sqrt(-2 * reach.log_tail)
    end = _within(far, sample_rate, far + side, reach.loss)
    edges = edges_of(lambda x: _slope(x, far, sample_rate) + _slope(-x, far, sample_rate), -end, end, width, far)
    count = len(edges) - 1
    losses = _loss(edges, far, sample_rate)
    span, flat = np.diff(losses), np.diff(losses) < _FLAT
    p, q, up = np.zeros((3, count))
    with np.errstate(divide="ignore", invalid="ignore"):
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            x = edges[:-1] + node * np.diff(edges)
            loss = np.clip(_loss(x, far, sample_rate), losses[:-1], losses[1:])
            absent = weight * np.diff(edges) * _density(-x, far, sample_rate)
            # If the exponential would overflow, the density is computed directly, which is as accurate.
            present = np.where(
                loss < _LARGE,
                absent * np.exp(np.minimum(loss, _LARGE)),
                weight * np.diff(edges) * _density(x, far, sample_rate),
            )
            q += absent
            p += present
            up += present * np.where(flat, 1.0, np.expm1(losses[:-1] - loss) / np.expm1(-span))
    # Losses beyond the edges are unbounded: the likelier order's mass counts as infinite, the other's as at the edge.
    likely, unlikely = (
        math.exp(log_ndtr(at - end)) * sample_rate + (1 - sample_rate) * math.exp(log_ndtr(-end)) for at in (far, -far)
    )
    return LossCells(
        low=np.concatenate([losses[:1], losses]), high=np.concatenate([losses, losses[-1:]]),
        p=np.concatenate([[unlikely], p, [0.0]]), q=np.concatenate([[0.0], q, [unlikely]]),
        up=np.concatenate([[unlikely], np.minimum(up, p), [0.0]]), p_infinite=likely, q_infinite=likely,
    )  # fmt: skip


def opposite_delta(noise_multiplier: float, sample_rate: float, ratio: arb) -> arb:
    """Delta of one step of ``opposite_cells`` at e^epsilon = ``ratio`` >= 1, in ball arithmetic.

    The likelihood ratio rises with the output x. With u = e^(x / noise) for x in standard deviations, and a = q
    e^(-1 / (2 noise^2)), it is (1 - q + a u) / (1 - q + a / u), and equals ``ratio`` at the root of
    a u^2 - (ratio - 1)(1 - q) u - ratio a = 0.
    """
    far, rate = 1 / arb(noise_multiplier), arb(sample_rate)
    a, b = rate * (-far * far / 2).exp(), (ratio - 1) * (1 - rate)
    at = ((b + (b * b + 4 * ratio * a * a).sqrt()) / (2 * a)).log() / far
    still = (1 - rate) * normal_above(at)
    return still + rate * normal_above(at - far) - ratio * (still + rate * normal_above(at + far))


def _density(x: Floats, far: float, rate: float) -> Floats:
    """The density of (1 - rate) N(0, 1) + rate N(far, 1)."""
    still, moved = np.exp(-x * x / 2), np.exp(-((x - far) ** 2) / 2)
    return np.asarray(((1 - rate) * still + rate * moved) / math.sqrt(2 * math.pi))


def _loss(x: Floats, far: float, rate: float) -> Floats:
    """The log ratio of the densities at ``x`` and ``-x``, with common terms cancelled first."""
    drop = far * far / 2
    # (a + c e^y) / (a + c e^-y) = 1 + 2 c sinh(y) / (a + c e^-y); negative x follow by symmetry.
    y = far * np.abs(x)
    with np.errstate(over="ignore"):
        small = np.log1p(2 * rate * math.exp(-drop) * np.sinh(np.minimum(y, 30.0)) / (
            1 - rate + rate * np.exp(-y - drop)
        ))  # fmt: skip
    rest = math.log1p(-rate)
    large = np.logaddexp(rest, math.log(rate) + y - drop) - np.logaddexp(rest, math.log(rate) - y - drop)
    return np.asarray(np.copysign(np.where(y < 30, small, large), x))


def _slope(x: Floats, far: float, rate: float) -> Floats:
    """The derivative of the log density at ``x``, up to a term common to both distributions."""
    return np.asarray(far * expit(math.log(rate) - math.log1p(-rate) + far * (x - far / 2)))


def _within(far: float, rate: float, most: float, loss: float) -> float:
    """The output at which the loss reaches ``loss``, rounded up, or ``most`` if that is smaller."""
    low, high = 0.0, most
    if float(_loss(np.array([most]), far, rate)[0]) <= loss:
        return most
    while high - low > 1e-9 * most:
        middle = (low + high) / 2
        low, high = (middle, high) if float(_loss(np.array([middle]), far, rate)[0]) < loss else (low, middle)
    return high
