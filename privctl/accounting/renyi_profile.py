"""From Renyi divergences to a pair that dominates every mechanism with these divergences.

A pair whose delta is at least that of a mechanism at every epsilon dominates it and can be composed in its place (Zhu,
Dong and Wang 2022, theorem 10). The deltas that follow from Renyi divergences at finitely many epsilons bound a convex
function of e^epsilon from above, so linear interpolation between them does as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats

#: Number of epsilons at which delta is computed; -log delta at the last one, which counts as infinite loss; and the
#: largest epsilon.
_KNOTS, _LEAST_LOG_DELTA, _MOST_EPSILON = 4001, 690.0, 600.0
#: Generous bound on the relative error of a delta.
_ROUNDING = 1e-12
#: Values of order - 1 among which the best is sought, and factors for refining it.
_FIRST_ORDERS = np.geomspace(1e-8, 1e9, 250)
_MOVES = (1.04, 1.02, 1.01, 1.005, 1.002, 1.001, 1.0003)

#: Maps orders to divergences in nats, of the same shape.
Curve = Callable[[Floats], Floats]


def pair_of_curve(curve: Curve, corners: Sequence[float] | Floats = ()) -> Atoms:
    """A pair that dominates, in both orders of the neighbours, every mechanism with at most these divergences.

    ``curve`` is evaluated at orders above 1; ``corners`` are orders where its slope jumps, or from which on it is
    infinite. If no finite bound follows, the ``infinite`` mass is near 1.
    """
    top = _reach(curve)
    epsilons = np.linspace(0.0, top, _KNOTS)
    deltas = np.minimum(np.exp(log_deltas(curve, epsilons, corners)) * (1 + _ROUNDING), 1.0)
    return pair_of_deltas(epsilons, np.minimum.accumulate(deltas))


def log_deltas(curve: Curve, epsilons: Floats, corners: Sequence[float] | Floats = ()) -> Floats:
    """Logarithms of deltas at ``epsilons`` >= 0, shape (n,), by Canonne, Kamath and Steinke 2020, proposition 12.

    (alpha - 1)(D_alpha - epsilon + log(1 - 1 / alpha)) - log alpha at nearly the best order for each epsilon, or
    log(1 - exp(-D_alpha)) / 2 (Bretagnolle and Huber), which bounds the delta at epsilon 0.
    """
    divergences = curve(1 + _FIRST_ORDERS)
    coarse_epsilons = epsilons[:: max(1, len(epsilons) // 256)]
    log_delta_grid = _log_delta(_FIRST_ORDERS[:, None], divergences[:, None], coarse_epsilons)
    coarse = np.where(log_delta_grid.min(axis=0) < 0, _FIRST_ORDERS[log_delta_grid.argmin(axis=0)], 1.0)
    best = np.exp(np.interp(epsilons, coarse_epsilons, np.log(coarse)))
    least = np.minimum(0.0, _log_delta(best, curve(1 + best), epsilons))
    for move in _MOVES:
        for factor in (move, 1 / move):
            moved = best * factor
            moved_log_delta = _log_delta(moved, curve(1 + moved), epsilons)
            best, least = np.where(moved_log_delta < least, moved, best), np.minimum(moved_log_delta, least)
    if len(corners):
        above = np.asarray(corners, dtype=np.float64)[:, None] - 1
        at_corners = _log_delta(above, curve(1 + above[:, 0])[:, None], epsilons)
        least = np.minimum(least, at_corners.min(axis=0))
    with np.errstate(divide="ignore"):
        log_distance = np.log(-np.expm1(-float(np.min(divergences)))) / 2
    return np.asarray(np.minimum(least, log_distance))


def _log_delta(above: Floats | float, divergence: Floats | float, epsilons: Floats) -> Floats:
    """The logarithm of delta that follows from the divergences of orders 1 + ``above``."""
    with np.errstate(over="ignore", invalid="ignore"):
        shrunk = np.log(above) - np.log1p(above)
        exponents = above * (divergence - epsilons + shrunk) - np.log1p(above)
    return np.asarray(np.where(np.isnan(exponents), math.inf, exponents))


def _reach(curve: Curve) -> float:
    """An epsilon whose delta is close to underflow, or else the largest epsilon considered."""
    low, high = 0.0, 1e-6
    while high < _MOST_EPSILON and log_deltas(curve, np.array([high]))[0] > -_LEAST_LOG_DELTA:
        high *= 2
    high = min(high, _MOST_EPSILON)
    for _ in range(12):
        middle = (low + high) / 2
        enough = log_deltas(curve, np.array([middle]))[0] <= -_LEAST_LOG_DELTA
        low, high = (low, middle) if enough else (middle, high)
    return high


def pair_of_deltas(epsilons: Floats, deltas: Floats) -> Atoms:
    """The symmetric pair whose delta is the largest convex function of e^epsilon below all ``deltas``.

    ``epsilons`` (n,) increase from 0, and ``deltas`` (n,) decrease.

    The mass at +-epsilon is the change of slope there. At 0, the line from each point to its mirror image bounds delta:
    d + (1 - d) tanh(epsilon / 2).
    """
    deltas = deltas.copy()
    deltas[0] = float(np.min(deltas + (1 - deltas) * np.tanh(epsilons / 2)))
    ratios = np.expm1(epsilons)
    kept: list[int] = []
    for i in range(len(ratios)):
        while len(kept) > 1 and _slope(kept[-2], kept[-1], ratios, deltas) >= _slope(kept[-1], i, ratios, deltas):
            kept.pop()
        kept.append(i)
    corners = np.array(kept)
    slopes = np.append(np.diff(deltas[corners]) / np.diff(ratios[corners]), 0.0)
    log_q = np.log(np.maximum(np.diff(slopes), 1e-320))
    losses, infinite = epsilons[corners][1:], float(deltas[-1])
    log_p = log_q + losses
    rest = max(0.0, 1 - infinite - float(np.exp(log_p).sum() + np.exp(log_q).sum()))
    middle = [(0.0, math.log(rest))] if rest > 0 else []
    atoms = [*zip(-losses[::-1], log_q[::-1], strict=True), *middle, *zip(losses, log_p, strict=True)]
    return Atoms(tuple(float(loss) for loss, _ in atoms), tuple(float(log) for _, log in atoms), infinite)


def _slope(left: int, right: int, x: Floats, y: Floats) -> float:
    return float((y[right] - y[left]) / (x[right] - x[left]))
