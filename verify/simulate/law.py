"""The distribution of the privacy loss behind one guarantee, for a plot."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privctl.domain.events import Ledger
from privctl.domain.guarantee import Guarantee, Notion, Status
from privctl.domain.mechanism import WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.strength import rests_on_unstated_loss
from verify.recompute import gaussian, ledger
from verify.simulate.losses import Floats

_BINS = 240


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossLaw:
    """The loss ``density`` (n,) with the record at ``losses`` (n,), and upper bounds on delta at ``epsilons`` (m,)."""

    name: str
    losses: Floats
    density: Floats
    epsilons: Floats
    deltas: Floats
    epsilon: float
    delta: float


def law_of(report: PrivacyReport) -> LossLaw | None:
    """The loss distribution of the guarantee with the least established epsilon, or else claimed; None without one.

    A bound on weight noise for a property of the loss that nobody stated comes after the other established ones.
    """
    known = [g for g in report.guarantees if g.notion is Notion.APPROXIMATE_DP and g.epsilon is not None and g.delta]
    noise = report.mechanism if isinstance(report.mechanism, WeightNoise) else None
    known.sort(
        key=lambda g: (
            g.status not in (Status.PROVED, Status.CONDITIONAL),
            noise is not None and rests_on_unstated_loss(g, noise),
            g.epsilon,
        )
    )
    for guarantee in known:
        mechanism = report.mechanism
        if isinstance(mechanism, WeightNoise) and guarantee.noise_multiplier:
            return _gaussian(guarantee, 1 / guarantee.noise_multiplier)
        if isinstance(mechanism, Ledger):
            mu = ledger.exact_shift(mechanism)
            return _composed(guarantee, mechanism) if mu is None else _gaussian(guarantee, mu) if mu else None
    return None


def _gaussian(guarantee: Guarantee, mu: float) -> LossLaw:
    losses = np.linspace(mu * mu / 2 - 4.5 * mu, mu * mu / 2 + 4.5 * mu, _BINS)
    density = np.exp(-(((losses - mu * mu / 2) / mu) ** 2) / 2) / (mu * math.sqrt(2 * math.pi))
    epsilons = np.linspace(0, max(1.3 * (guarantee.epsilon or 1.0), 1e-9), 80)
    deltas = np.array([gaussian.delta_at(float(e), mu).upper for e in epsilons])
    return _law(guarantee, losses, density, epsilons, deltas)


def _composed(guarantee: Guarantee, whole: Ledger) -> LossLaw:
    near = ledger.epsilon_of(whole, guarantee.delta, (guarantee.epsilon or 0.0,)).upper
    bulk = ledger.bounds(whole, None, ledger.PRECISIONS[0])
    law = bulk.above[0].law
    kept = np.flatnonzero(law.masses > 1e-9 * law.masses.max())
    first, last = int(kept[0]), int(kept[-1]) + 1
    step = max(1, (last - first) // _BINS)
    masses = np.add.reduceat(law.masses[first:last], np.arange(0, last - first, step))
    losses = (law.grid.first + first + np.arange(0, last - first, step, dtype=np.float64) + step / 2) * law.grid.width
    sharp = ledger.bounds(whole, math.log(guarantee.delta), ledger.PRECISIONS[0], near)
    epsilons = np.linspace(0, 1.3 * max(near, guarantee.epsilon or 0.0), 80)
    deltas = np.array([min(bulk.delta(float(e)).upper, sharp.delta(float(e)).upper) for e in epsilons])
    return _law(guarantee, losses, masses / (step * law.grid.width), epsilons, deltas)


def _law(guarantee: Guarantee, losses: Floats, density: Floats, epsilons: Floats, deltas: Floats) -> LossLaw:
    return LossLaw(
        name=guarantee.name, losses=losses, density=density, epsilons=epsilons, deltas=deltas,
        epsilon=guarantee.epsilon or 0.0, delta=guarantee.delta,
    )  # fmt: skip
