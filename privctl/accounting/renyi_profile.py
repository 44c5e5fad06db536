"""From Renyi divergences to a dominating pair: what bounds every mechanism that has them, at every epsilon at once.

A pair whose delta is at every epsilon at least that of a mechanism dominates it, and composes in its place (Zhu, Dong
and Wang 2022, theorem 10). The deltas that follow from Renyi divergences, at finitely many epsilons, bound a convex
function of e^epsilon from above, so straight lines between them do, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats

#: Epsilons at which delta is computed; the last one's delta is about exp(-_LEAST_LOG_DELTA), and counts as infinite.
_KNOTS, _LEAST_LOG_DELTA, _MOST_EPSILON = 4001, 690.0, 600.0
#: Relative error of a delta, with room.
_ROUNDING = 1e-12
#: Orders less 1 among which the best is sought, and factors by which it is then moved.
_FIRST_ORDERS = np.geomspace(1e-8, 1e9, 250)
_MOVES = (1.04, 1.02, 1.01, 1.005, 1.002, 1.001, 1.0003)

#: Divergences in nats, of the shape of the orders.
Curve = Callable[[Floats], Floats]


def pair_of_curve(curve: Curve) -> Atoms:
    """A pair that dominates every mechanism with at most these divergences, whichever way neighbours are taken.

    ``curve`` is asked for orders above 1. A mechanism that nothing finite follows for has an ``infinite`` mass near 1.
    """
    top = _reach(curve)
    epsilons = np.linspace(0.0, top, _KNOTS)
    deltas = np.minimum(np.exp(log_deltas(curve, epsilons)) * (1 + _ROUNDING), 1.0)
    return _pair_of_deltas(epsilons, np.minimum.accumulate(deltas))


def log_deltas(curve: Curve, epsilons: Floats) -> Floats:
    """Logs of deltas at ``epsilons`` of 0 and more, shape (n,), by Canonne, Kamath and Steinke 2020, proposition 12.

    (alpha - 1)(D_alpha - epsilon + log(1 - 1 / alpha)) - log alpha, at about the best order of each, and half of log(1
    - exp(-D_alpha)) (Bretagnolle and Huber), which bounds delta at 0.
    """
    divergences = curve(1 + _FIRST_ORDERS)
    some = epsilons[:: max(1, len(epsilons) // 256)]
    each = _log_delta(_FIRST_ORDERS[:, None], divergences[:, None], some)
    coarse = np.where(each.min(axis=0) < 0, _FIRST_ORDERS[each.argmin(axis=0)], 1.0)
    best = np.exp(np.interp(epsilons, some, np.log(coarse)))
    least = np.minimum(0.0, _log_delta(best, curve(1 + best), epsilons))
    for move in _MOVES:
        for factor in (move, 1 / move):
            there = best * factor
            found = _log_delta(there, curve(1 + there), epsilons)
            best, least = np.where(found < least, there, best), np.minimum(found, least)
    with np.errstate(divide="ignore"):
        apart = np.log(-np.expm1(-float(np.min(divergences)))) / 2
    return np.asarray(np.minimum(least, apart))


def _log_delta(above: Floats | float, divergence: Floats | float, epsilons: Floats) -> Floats:
    """At orders ``above`` 1 by so much."""
    with np.errstate(over="ignore", invalid="ignore"):
        shrunk = np.log(above) - np.log1p(above)
        found = above * (divergence - epsilons + shrunk) - np.log1p(above)
    return np.asarray(np.where(np.isnan(found), math.inf, found))


def _reach(curve: Curve) -> float:
    """An epsilon whose delta is too small for floats, or where none is, the largest one looked at."""
    low, high = 0.0, 1e-6
    while high < _MOST_EPSILON and log_deltas(curve, np.array([high]))[0] > -_LEAST_LOG_DELTA:
        high *= 2
    high = min(high, _MOST_EPSILON)
    for _ in range(12):
        middle = (low + high) / 2
        enough = log_deltas(curve, np.array([middle]))[0] <= -_LEAST_LOG_DELTA
        low, high = (low, middle) if enough else (middle, high)
    return high


def _pair_of_deltas(epsilons: Floats, deltas: Floats) -> Atoms:
    """The pair whose delta is the largest convex function of e^epsilon below all ``deltas``; its own mirror image.

    Mass at +-epsilon is how much the slope changes there. At 0 the line to the mirror image of each point bounds delta:
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
