"""Discretising one step's privacy loss: deltas can only increase (``connect``) or only decrease (``merge``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.accounting.pld.pairs import Array, Pair

UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, slots=True)
class LossGrid:
    """A discretised step: log masses at interval * (first + i), and the log mass at infinity."""

    first: int
    log_p: Array
    log_infinity: float


def grid_edges(ends: tuple[float, float], h: float) -> Array:
    """Multiples of ``h`` that extend beyond both ends, at least three."""
    first = math.floor(ends[0] / h) - 1
    return np.asarray(h * np.arange(first, max(math.ceil(ends[1] / h) + 1, first + 2) + 1), dtype=np.float64)


def connect(pair: Pair, edges: Array) -> LossGrid:
    """Connect the dots: each cell's mass is split between its ends, keeping its P and Q mass; tails move up."""
    h = float(edges[1] - edges[0])
    log_p, log_q = pair.cells(edges)
    inner_p, inner_q = log_p[1:-1], log_q[1:-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        # The fraction of a cell's P mass that goes to its upper end; rounded up, which is the safe side.
        slack = _rounding(inner_p, edges[:-1]) / min(h, 1.0)
        fraction = np.clip(np.expm1(inner_q - inner_p + edges[:-1]) / math.expm1(-h) + slack, 0.0, 1.0)
        fraction = np.where(np.isfinite(inner_p), fraction, 0.0)
        upper, lower = inner_p + np.log(fraction), inner_p + np.log1p(-fraction)
    masses = np.full(len(edges), -np.inf)
    masses[1:] = upper
    masses[:-1] = np.logaddexp(masses[:-1], lower)
    masses[0] = np.logaddexp(masses[0], log_p[0])
    return LossGrid(round(edges[0] / h), masses, float(log_p[-1]))


def merge(pair: Pair, edges: Array) -> LossGrid:
    """Merge the masses within half an interval above and below each grid value so that their joint loss is that value.

    One of the two sides has more mass than needed. The excess is merged with some of the mass at the next value on the
    opposite side, so that it is on the grid too; if there is not enough of that, it moves down. The lowest tail is
    dropped. Merging outcomes and moving mass down can only hide the record.
    """
    h = float(edges[1] - edges[0])
    log_p, log_q = pair.cells(np.sort(np.concatenate([edges, edges[:-1] + h / 2])))
    # Around edges[i], i >= 1: (edges[i] - h/2, edges[i]] is ``under``, (edges[i], edges[i] + h/2] is ``over``.
    under_p, under_q = log_p[2:-1:2], log_q[2:-1:2]
    over_p, over_q = np.append(log_p[3:-1:2], -np.inf), np.append(log_q[3:-1:2], -np.inf)
    upper_edges = edges[1:]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # The P mass that ``under`` lacks and that ``over`` has in excess; rounded to the safe side.
        lacks = under_p + np.log(
            np.maximum(np.expm1(under_q + upper_edges - under_p), 0.0) + _rounding(under_p, upper_edges)
        )
        exceeds = over_p + np.log(
            np.maximum(-np.expm1(over_q + upper_edges - over_p) - _rounding(over_p, upper_edges), 0.0)
        )
        log_ratio = np.where(np.isfinite(lacks) & np.isfinite(exceeds), exceeds - lacks, np.nan)
    # The fractions that are merged; if one side is empty, nothing of the other is merged.
    keep_under = np.exp(np.minimum(np.nan_to_num(log_ratio, nan=-np.inf), 0.0))
    keep_over = np.exp(np.minimum(np.nan_to_num(-log_ratio, nan=-np.inf), 0.0))
    with np.errstate(divide="ignore"):
        joined = np.logaddexp(under_p + np.log(keep_under), over_p + np.log(keep_over))
        rest_under, rest_over = np.log1p(-keep_under), np.log1p(-keep_over)
    # The mass at the next higher value that lifts the rest of ``under`` onto the grid, and at the next lower value that
    # brings the rest of ``over`` down onto it.
    pulled = np.nan_to_num(lacks, nan=-np.inf) + rest_under - math.log(-math.expm1(-h))
    lifted = np.nan_to_num(exceeds, nan=-np.inf) + rest_over - _log_expm1(h)
    half = joined - math.log(2)
    stays = pulled <= np.append(half[1:], -np.inf)
    pulled = np.where(stays, pulled, -np.inf)
    lifted = np.minimum(lifted, np.append(-np.inf, half[:-1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        used = np.logaddexp(np.append(-np.inf, pulled[:-1]), np.append(lifted[1:], -np.inf)) - joined
        remaining = joined + np.log1p(-np.exp(np.minimum(np.nan_to_num(used, nan=-np.inf), 0.0)))
    at_value = np.logaddexp(np.logaddexp(remaining, over_p + rest_over), np.logaddexp(pulled, lifted))
    masses = np.full(len(edges), -np.inf)
    masses[1:] = np.logaddexp(at_value, np.where(stays, under_p + rest_under, -np.inf))
    masses[:-1] = np.logaddexp(masses[:-1], np.where(stays, -np.inf, under_p + rest_under))
    masses[0] = np.logaddexp(masses[0], log_p[1])
    masses[-1] = np.logaddexp(masses[-1], log_p[-1])
    return LossGrid(round(edges[0] / h), masses, -math.inf)


def log_sum(log_terms: Array) -> float:
    """Log of the sum of exp(``log_terms``); ten times as fast as ``np.logaddexp.reduce``, and more accurate."""
    top = float(log_terms.max())
    return top + math.log(float(np.exp(log_terms - top).sum())) if math.isfinite(top) else top


def _rounding(log_p: Array, edges: Array) -> Array:
    """A bound on the relative rounding error of the ratio of a cell's masses."""
    return 4 * UNIT_ROUNDOFF * (2 + np.abs(log_p) + np.abs(edges))


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
