"""What it costs, as a module of ``privctl/accounting/events`` would say: the ratio is exp(+-epsilon), nothing else."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.events.row import EventAccounting, NoiseSetting, on_batches
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Atoms
from privctl.accounting.poisson_binomial import Floats
from tests.events.geometric_event import GeometricNoise


def _pair(event: GeometricNoise, lower: bool) -> RepeatedPair:
    up = -math.log1p(math.exp(-event.epsilon))
    atoms = Atoms((-event.epsilon, event.epsilon), (up - event.epsilon, up))
    return on_batches(atoms, event)


def _divergences(event: GeometricNoise, alphas: Floats) -> Floats:
    chances = np.exp([0.0, event.epsilon]) / (1 + math.exp(event.epsilon))  # without the record: up, down
    ratios = 1 - event.sample_rate + event.sample_rate * np.exp([event.epsilon, -event.epsilon])
    moments: Floats = np.log(chances @ ratios[:, None] ** alphas)
    return moments / (alphas - 1)


ROW = EventAccounting(
    pair=_pair,
    divergences=_divergences,
    setting=NoiseSetting(field="epsilon", of_noise=lambda noise: 1 / noise),
    quick=lambda event: True,
)
