"""A ledger's privacy profile at a few points, which together bound its trade-off function from below."""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting import gaussian
from privctl.accounting.ledger import composed, gaussian_shift
from privctl.domain.events import Ledger

_POINTS = 61
#: Points end where delta is below ``_SMALL``, which no audit can resolve, at the latest at ``_TOP``.
_SMALL, _TOP, _STEP = 1e-8, 30.0, 0.25
#: One composition is tight for large deltas, the other for small ones.
_NEAR = (None, 1e-6)
#: Relative margin for rounding.
_SLOP = 1e-9


def profile(ledger: Ledger) -> tuple[tuple[float, float], ...]:
    """Pairs (epsilon, delta) that hold simultaneously, in both orders of the neighbours, with epsilons rising from 0.

    Raises ValueError for events that do not compose.
    """
    mu = gaussian_shift(ledger)
    if mu is None:
        laws = [composed(ledger, near) for near in _NEAR]

        def delta_of(epsilon: float) -> float:
            return min(max(math.exp(law.log_delta(epsilon)) for law in orders) for orders in laws)
    else:

        def delta_of(epsilon: float) -> float:
            return gaussian.delta_at(epsilon, mu) if mu else 0.0

    top = next((e for e in np.arange(_STEP, _TOP, _STEP) if delta_of(float(e)) < _SMALL), _TOP)
    epsilons = np.linspace(0.0, float(top), _POINTS).tolist()
    return tuple((epsilon, min(1.0, delta_of(epsilon) * (1 + _SLOP))) for epsilon in epsilons)
