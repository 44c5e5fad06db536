"""Gaussian noise on linear combinations of all steps' sums, computed with a few buffers, in passes of fixed order.

The release is y_t = c_0 x_t + c_1 x_(t-1) + ... + c_t x_0 + z_t with independent z_t and nonnegative c. A record at
position p contributes to x_t only if t mod b = p, so it moves y by sum_i g_i C e_(p + i b) with |g_i| <= 1. Inner
products of columns are nonnegative, so the squared length is largest for equal g_i. It is largest for p = 0, since
other positions have the same rows, but later and cut off. This is one Gaussian with that shift, whose length follows
from geometric series, pass by pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flint import arb, ctx

from privctl.domain.events import BufferedGaussian, SampledGaussian
from privctl.reports.parameters import BudgetParameters
from verify.events.fixed_order import row_of_passes
from verify.events.row import OF_STEPS, Draw, Floats, PlannedAs

#: The precision in bits for summing series.
_BITS = 256


@lru_cache(maxsize=64)
def moved_by_one(
    first: float, weights: tuple[float, ...], decays: tuple[float, ...], steps_per_pass: int, steps: int
) -> tuple[float, float]:
    """Lower and upper bounds on how far a record moves the rows, in clip norms, in ball arithmetic."""
    before = ctx.prec
    ctx.prec = _BITS
    try:
        terms = [(arb(weight), arb(decay)) for weight, decay in zip(weights, decays, strict=True)]
        held, total = [arb(0) for _ in terms], arb(0)
        for begun in range(0, steps, steps_per_pass):
            after = min(steps_per_pass, steps - begun) - 1  # steps of the pass after the record's own
            total += (arb(first) + sum((w * h for (w, _), h in zip(terms, held, strict=True)), arb(0))) ** 2
            grown = [decay * h + 1 for (_, decay), h in zip(terms, held, strict=True)]
            for (w, decay), g in zip(terms, grown, strict=True):
                for (other_w, other), other_g in zip(terms, grown, strict=True):
                    both = decay * other
                    total += w * other_w * g * other_g * (1 - both**after) / (1 - both)
            held = [decay**after * g for (_, decay), g in zip(terms, grown, strict=True)]
        norm = total.sqrt()
        # The conversion to a float may round either way.
        return math.nextafter(float(norm.lower()), 0.0), math.nextafter(float(norm.upper()), math.inf)
    finally:
        ctx.prec = before


def column(first: float, weights: Sequence[float], decays: Sequence[float], steps: int) -> Floats:
    """The first column [steps] of the matrix: the weight of a contribution in each row from its step on."""
    later = np.power(np.array(decays)[:, None], np.arange(max(0, steps - 1)))
    return np.append(first, np.array(weights) @ later)


def _whole(event: BufferedGaussian) -> SampledGaussian:
    """The single Gaussian that all steps together are equivalent to."""
    length = round(1 / event.sample_rate)
    _, high = moved_by_one(event.first, event.weights, event.decays, length, event.steps)
    return SampledGaussian(noise_multiplier=event.noise_multiplier / high)


def toy_training(event: BufferedGaussian, steps: int, *, noise: float = 1.0) -> Draw:
    """Draws losses of runs of ``steps`` steps that release X + W with C W = Z, for the first record.

    Its gradient has clip norm along an axis of its own. ``noise`` scales the noise that is added: 1 is correct, and 0.5
    is a fault that a test must detect.
    """
    weights, decays = np.array(event.weights)[:, None], np.array(event.decays)[:, None]
    length, sigma = round(1 / event.sample_rate), event.noise_multiplier
    shares = column(event.first, event.weights, event.decays, steps)
    rows = np.zeros(steps)
    for begun in range(0, steps, length):
        rows[begun:] += shares[: steps - begun]

    def draw(rng: np.random.Generator, count: int, present: bool) -> Floats:
        released = np.zeros((len(decays), count))  # the buffers of an observer who recomputes C X + Z
        held, losses = np.zeros_like(released), np.zeros(count)
        for step in range(steps):
            fresh = noise * sigma * rng.standard_normal(count)
            correlated = (fresh - (weights * held).sum(0)) / event.first
            seen = correlated + (present and step % length == 0)
            row = event.first * seen + (weights * released).sum(0)
            losses += rows[step] * (row - rows[step] / 2) / sigma**2
            held, released = decays * held + correlated, decays * released + seen
        return losses

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedParameters(BudgetParameters):
    """A plan of buffered noise; ``buffers`` is absent if the plan chose their number."""

    buffers: int | None = None


def _more(parameters: Any) -> dict[str, Any]:
    return {} if parameters.buffers is None else {"buffers": parameters.buffers}


ROW = row_of_passes(
    PlannedAs(
        mechanism="blt",
        parameters=BufferedParameters,
        fields={"noise_multiplier": ("noise_multiplier", None), **OF_STEPS},
        solved={"noise multiplier": "noise_multiplier"},
        more=_more,
    ),
    _whole,
    lambda event: _whole(event).noise_multiplier ** -2,
    toy_training,
)
