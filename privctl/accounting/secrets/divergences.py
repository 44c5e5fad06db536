"""Divergences of many mixtures of Gaussians with the same noise: those of ``accounting.mixtures``, on one grid.

With z = x / sigma, s_k = k / sigma and the density phi of N(0, 1), the reference form integrates F = phi (r l - r + 1)
with l = log r and r(z) = sum_k w_k exp(s_k z - s_k^2 / 2), and the pairwise one half of G = phi (r(z) - r(-z))
(l(z) - l(-z)), both over the whole line. On a grid of width h the sum h F(z_i) is a matrix product and a few functions.

Error of the sum over the infinite grid. r has no zero within pi sigma of the real line (see ``accounting.mixtures``),
so for every a below that, the sum differs from the integral by at most 2 N / (e^(2 pi a / h) - 1), where N is the
integral of |F(t + i a)| over t (Trefethen and Weideman 2014, theorem 5.1). Write r = e^(l): |r l - r + 1| is |l|^2
times at most max(1, |r|) / 2, and |r(t + i a)| <= r(t). From the factors 1 + c_i e^(z / sigma) of r, c_i > 0,
|l'(t + i b)| <= l'(t) / cos(a / (2 sigma)) for b up to a, so |l(t + i a)| <= |l(t)| + A l'(t) with
A = a / cos(a / (2 sigma)). l is increasing and convex: l'(t) <= (l(t + 1/R) - l(t)) R. On the real line
r l - r + 1 >= max(1, r) l^2 / (2 (1 + |l|)^2). Over [-R, R], where |l| <= 2 R^2, this gives

    N <= 7.5 e^(a^2 / 2) (1 + A R)^2 (1 + 2 R^2)^2 * (integral of F),

and the part of N outside is less than that of F. The same steps for G, with l(z) - l(-z) in place of l, have 2 A in
place of A. h is chosen so that the error is below 1e-13 of the integral, by this proof and not by experiment.

The grid ends where the rest is small, and a bound on the rest is added. On the right, F <= sum_k w_k F_k, since F is
convex in the distribution, where F_k is that of N(k, sigma^2) alone, and G is at most 4 times that. On the left, below
-9, F <= phi (r - 1)^2 leaves less than 1e-14 of the total.

With very little noise the components are well separated. Since log(1 + x) <= sqrt(x), l < log w_k + s_k z - s_k^2 / 2
plus terms whose mean under N(k, sigma^2) is at most sum_j sqrt(w_j / w_k) e^(-(j - k)^2 / (8 sigma^2)): a closed form
and a bound on its error.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, xlogy

from privctl.accounting.brackets import threshold_bracket
from privctl.accounting.mixtures import kl, replace_kl
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.secrets.count_laws import Integers, LawBlock

#: Left end of the grid of the reference form, in units of sigma.
_LEFT = -9.0
#: Allowed relative errors of a divergence from the spacing of the grid, and from its right end.
_SPACING, _END = 1e-13, 1e-13
#: Relative error of everything else: the left end, and rounding of weights (a tree of up to 20 levels of sums of
#: positive terms), of exponentials (of at most 300) and of sums. Added to the results.
_ROUNDING = 4e-12
#: Bound on what terms that underflow may add.
_UNDERFLOW = 1e-300
#: Below this sigma, or beyond this many nodes or nodes times components, graded panels are faster.
_LEAST_SIGMA, _MOST_NODES, _MOST_TERMS = 0.05, 1 << 14, 1 << 22
#: Upper and lower limits of sigma for the closed form, and the largest relative excess at which it is used.
_SEPARATED, _VACUOUS, _OVERLAP = 0.07, 1e-100, 1e-12
#: Mean shifts below this, in units of sigma, have squares that underflow.
_LEAST_SHIFT = 1e-100
#: Ratios above e^300 are computed relative to the nearest component.
_LARGE = 300.0
_BLOCK = 1 << 18
_SQRT_2PI = math.sqrt(2 * math.pi)


def divergences(block: LawBlock, sigma: float, *, pairwise: bool = False) -> Floats:
    """KL(mixture || N(0, sigma^2)) in nats for every secret of the block, or KL(MoG(+k) || MoG(-k)); shape [secrets].

    Upper bounds with a relative excess below 1e-11; computed by ``accounting.mixtures`` if sigma is below 0.05 or a
    distribution is extremely long.
    """
    cut: Floats = block.tail_squares * (2 if pairwise else 0.5)
    if _VACUOUS < sigma < _SEPARATED:
        nats, overlap = _separated(block, sigma, pairwise=pairwise)
        if (overlap <= _OVERLAP * nats).all():
            return (nats + overlap + cut / sigma / sigma) * (1 + _ROUNDING) + _UNDERFLOW
    grid = _grid(block, sigma)
    if grid is None:
        return _one_by_one(block, sigma, pairwise=pairwise)
    end, spacing = grid
    # G is even, and 0 at 0.
    first, left = (1, 0.0) if pairwise else (0, _LEFT)
    z: Floats = left + spacing * np.arange(first, math.ceil((end - left) / spacing) + 2, dtype=np.float64)
    shifts = np.arange(len(block.weights)) / sigma
    count = len(block.places)
    nats = np.empty(count)
    width = max(1, _BLOCK // len(z))
    integral = _opposed if pairwise else _forward
    for i in range(0, count, width):
        nats[i : i + width] = spacing * integral(z, shifts, block.weights[:, i : i + width])
    rest = (4 if pairwise else 1) * (_tail_bounds(end, shifts) @ block.weights)
    nats = (nats + rest + cut / sigma / sigma) * (1 + _ROUNDING) + _UNDERFLOW
    overflowed = ~np.isfinite(nats)
    if overflowed.any():
        nats[overflowed] = _one_by_one(block, sigma, pairwise=pairwise, columns=np.flatnonzero(overflowed))
    return nats


def _separated(block: LawBlock, sigma: float, *, pairwise: bool) -> tuple[Floats, Floats]:
    """The closed form for components that hardly overlap, and an upper bound on its error.

    In the pairwise form, the density of the opposite mixture is at least that of its component nearest to zero.
    """
    weights, columns = block.weights, np.arange(len(block.places))
    shifts = np.arange(len(weights))[:, None] / sigma
    top = weights.argmax(axis=0)
    others = weights.copy()
    others[top, columns] = 0
    logs = np.log1p(-others.sum(axis=0))  # of the largest weights, which may be close to 1
    entropy = xlogy(others, others).sum(axis=0) + weights[top, columns] * logs
    overlap = 2 * np.sqrt(weights[1:] * weights[:-1]).sum(axis=0) * math.exp(-1 / (8 * sigma * sigma))
    overlap += 3 * math.exp(-1 / (2 * sigma * sigma))
    if not pairwise:
        return (shifts**2 / 2 * weights).sum(axis=0) + entropy, overlap
    first = (weights > 0).argmax(axis=0)
    least = np.where(first == top, logs, np.log(weights[first, columns]))
    return ((shifts + shifts[first, 0]) ** 2 / 2 * weights).sum(axis=0) + entropy - least, overlap


def _one_by_one(block: LawBlock, sigma: float, *, pairwise: bool, columns: Integers | None = None) -> Floats:
    """The divergences of all columns, or of some ``columns``, by ``accounting.mixtures``."""
    divergence = replace_kl if pairwise else kl
    indices = range(len(block.places)) if columns is None else columns
    return np.array([divergence(block.law(int(i)), sigma) for i in indices])


def _grid(block: LawBlock, sigma: float) -> tuple[float, float] | None:
    """The right end and the spacing of a grid fine enough for the whole block; None if that is too expensive."""
    if sigma < _LEAST_SIGMA or float(block.means.min()) / sigma < _LEAST_SHIFT:
        return None
    shifts = np.arange(len(block.weights)) / sigma
    # A lower bound to compare the rest with: KL >= (mean / sigma)^2 / 2, by the variational formula.
    least = (block.means / sigma) ** 2 / 2
    _, high = threshold_bracket(
        lambda end: bool((_tail_bounds(end, shifts) @ block.weights <= _END * least).all()),
        -_LEFT,
        float(shifts[-1]) + 40,
        within=0.25,
    )
    spacing = _widest_spacing(high, sigma)
    nodes = (high - _LEFT) / spacing
    return (high, spacing) if nodes <= min(_MOST_NODES, _MOST_TERMS / len(shifts)) else None


def _tail_bounds(end: float, shifts: Floats) -> Floats:
    """For each component alone, a bound on its sum over the grid beyond ``end``.

    phi(z - s) (s z - s^2 / 2) decreases from s + 1 on and has a closed-form integral; its total is s^2 / 2.
    """
    distance = np.maximum(end - shifts, 0.0)
    part = shifts * np.exp(-distance * distance / 2) / _SQRT_2PI + shifts * shifts / 2 * ndtr(-distance)
    return np.where(distance < 1, shifts * shifts / 2, part)


def _widest_spacing(end: float, sigma: float) -> float:
    """The widest spacing whose error is below ``_SPACING``, for the best of several a (see the module)."""
    a = np.minimum(np.linspace(0.02, 0.98, 49) * math.pi * sigma, np.linspace(0.3, 14.7, 49))
    slope = 2 * a / np.cos(a / (2 * sigma))
    need = a * a / 2 + np.log(15 / _SPACING * (1 + slope * end) ** 2 * (1 + 2 * end * end) ** 2)
    return float((2 * math.pi * a / need).max())


def _forward(z: Floats, shifts: Floats, weights: Floats) -> Floats:
    """Sum of F over the nodes ``z`` (ascending) for each column of ``weights``."""
    ceiling, gap = _ceilings(z, shifts)
    near = int(np.searchsorted(ceiling, _LARGE))
    column = z[:near, None]
    excess = np.expm1(shifts[1:] * (column - shifts[1:] / 2)) @ weights[1:]
    total = np.exp(-(z[:near] ** 2) / 2) @ _cost(np.maximum(excess, -1.0, out=excess))
    if near < len(z):
        column, top = z[near:, None], ceiling[near:]
        share = np.exp(shifts * (column - shifts / 2) - top[:, None]) @ weights
        cost = share * (np.log(np.maximum(share, 1e-300)) + (top[:, None] - 1))
        total += np.exp(-(gap[near:] ** 2) / 2) @ cost + np.exp(-(z[near:] ** 2) / 2).sum()
    return total / _SQRT_2PI


def _opposed(z: Floats, shifts: Floats, weights: Floats) -> Floats:
    """Sum of G over the nodes ``z`` > 0 (ascending) for each column of ``weights``; NaN where it underflows."""
    ceiling, gap = _ceilings(z, shifts)
    column = z[:, None]
    gains = np.exp(shifts[1:] * (column - shifts[1:] / 2) - ceiling[:, None]) * -np.expm1(-2 * shifts[1:] * column)
    difference = gains @ weights[1:]
    opposite = np.exp(-shifts * (column + shifts / 2)) @ weights
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = difference / opposite
        loss = np.where(
            ceiling[:, None] < _LARGE, np.log1p(quotient * np.exp(np.minimum(ceiling, _LARGE))[:, None]),
            np.log(np.maximum(quotient, 1e-300)) + ceiling[:, None],
        )  # fmt: skip
        loss[:, opposite.min(axis=0) < 1e-280] = math.nan
        return np.asarray(np.exp(-gap * gap / 2) @ (difference * loss) / _SQRT_2PI)


def _ceilings(z: Floats, shifts: Floats) -> tuple[Floats, Floats]:
    """At each z: the maximum of s z - s^2 / 2 over ``shifts``, and the distance to that component."""
    nearest = shifts[np.clip(np.rint(z / shifts[1]), 0, len(shifts) - 1).astype(np.int64)]
    return nearest * (z - nearest / 2), z - nearest


def _cost(excess: Floats) -> Floats:
    """The value of r log r - r + 1 from r - 1, with a small relative error.

    Near r = 1 by log r = 2 artanh(v), v = (r - 1) / (r + 1): (r - 1) v + 2 r (v^3 / 3 + v^5 / 5 + ...).
    """
    ratio = 1 + excess
    cost = ratio * np.log(np.maximum(ratio, 1e-300)) - excess
    close = np.abs(excess) < 0.1
    x = excess[close]
    v = x / (2 + x)
    square, series = v * v, np.zeros_like(v)
    for n in (13, 11, 9, 7, 5, 3):
        series = series * square + 1 / n
    cost[close] = x * v + 2 * (1 + x) * v * square * series
    return cost
