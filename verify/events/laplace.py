"""Laplace noise on one number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from privctl.domain.events import LaplaceNoise
from privctl.reports.parameters import BudgetParameters
from verify.events.row import (
    OF_STEPS,
    CellMaker,
    DeltaOfRatio,
    Draw,
    Floats,
    PlannedAs,
    PoissonVerification,
)
from verify.losses.cells import MOST_CELLS, LossCells, largest_sampled_loss, sampled_losses
from verify.losses.tails import delta_of_tails


def _cells(event: LaplaceNoise, attained_only: bool) -> CellMaker:
    return lambda width, reach: _cells_of(event, width)


def _cells_of(event: LaplaceNoise, width: float) -> LossCells:
    """Cells of Laplace noise on a number that the record shifts by 1, on a Poisson batch."""
    most = 1 / event.scale
    # Without sampling, the losses -most and most are atoms; between them, P has density e^((l - most) / 2) / 4.
    rate = event.sample_rate
    base = _laplace_edges(most, rate, width)
    between = np.exp((base[:-1] - most) / 2) * np.expm1(np.diff(base) / 2) / 2
    without = np.exp((-base[1:] - most) / 2) * np.expm1(np.diff(base) / 2) / 2
    p0 = np.concatenate([[math.exp(-most) / 2], between, [0.5]])
    q0 = np.concatenate([[0.5], without, [math.exp(-most) / 2]])
    low, high = np.concatenate([base[:1], base[:-1], base[-1:]]), np.concatenate([base[:1], base[1:], base[-1:]])
    p, (low, high) = (1 - rate) * q0 + rate * p0, (sampled_losses(ends, rate) for ends in (low, high))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(high > low, (p - np.exp(low) * q0) / -np.expm1(low - high), p)
    return LossCells(low=low, high=high, p=p, q=q0, up=np.clip(share, 0.0, p))


def _laplace_edges(most: float, rate: float, width: float) -> Floats:
    """Losses without sampling from -``most`` to ``most``, about ``width`` apart once the batch is sampled."""
    marks = np.linspace(-most, most, 4001)
    slope = rate / (rate + (1 - rate) * np.exp(-np.clip(marks, -700, 700)))
    density = np.maximum(slope[1:], slope[:-1]) / width
    total = np.concatenate([[0.0], np.cumsum(density * np.diff(marks))])
    count = min(MOST_CELLS, max(1, math.ceil(total[-1])))
    return np.asarray(np.interp(np.linspace(0, total[-1], count + 1), total, marks))


def _once(event: LaplaceNoise) -> DeltaOfRatio | None:
    if event.scale < 1e-3:
        return None

    def delta(ratio: arb) -> arb:
        reach = 1 / arb(event.scale)

        def tail(ratio: arb) -> tuple[arb, arb]:
            root = ratio.sqrt()
            return 1 - root * (-reach / 2).exp() / 2, (-reach / 2).exp() / root / 2

        return delta_of_tails(tail, reach.exp(), arb(event.sample_rate), ratio)

    return delta


def _draw(event: LaplaceNoise) -> Draw:
    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        x = rng.laplace(0, event.scale, count)
        if present:
            x += rng.random(count) < event.sample_rate
        return np.asarray(sampled_losses((np.abs(x) - np.abs(x - 1)) / event.scale, event.sample_rate))

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceParameters(BudgetParameters):
    """A plan of Laplace noise."""

    scale: float | None = None


ROW = PoissonVerification(
    planned=PlannedAs(
        mechanism="laplace",
        parameters=LaplaceParameters,
        fields={"scale": ("scale", None), **OF_STEPS},
        solved={"scale": "scale"},
    ),
    cells=_cells,
    largest_loss=lambda event: largest_sampled_loss(1 / event.scale, event.sample_rate),
    once=_once,
    draw=_draw,
)
