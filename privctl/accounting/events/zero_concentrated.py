"""A mechanism of which only zero-concentrated differential privacy is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

from privctl.accounting.events.row import EventAccounting, NoiseSetting
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Gaussian
from privctl.accounting.poisson_binomial import Floats
from privctl.accounting.renyi_profile import pair_of_curve
from privctl.domain.events import ZeroConcentratedDp


def _joined(events: Sequence[ZeroConcentratedDp]) -> ZeroConcentratedDp:
    """One event for all: divergences add up, and so do xi and rho."""
    return ZeroConcentratedDp(
        rho=math.fsum(e.steps * e.rho for e in events),
        xi=math.fsum(e.steps * e.xi for e in events),
        neighbours=events[0].neighbours,
    )


def _pair(event: ZeroConcentratedDp, lower: bool) -> RepeatedPair:
    """The pair that follows from the divergences; for a lower bound, the Gaussian with this rho."""
    rho, xi = event.rho, event.xi
    if lower:
        return RepeatedPair(Gaussian(math.sqrt(2 * rho)), event.steps)
    return RepeatedPair(pair_of_curve(lambda alphas: xi + rho * alphas), event.steps)


def _divergences(event: ZeroConcentratedDp, alphas: Floats) -> Floats:
    return event.xi + event.rho * alphas


ROW = EventAccounting(
    pair=_pair,
    joined=_joined,
    divergences=_divergences,
    setting=NoiseSetting(field="rho", of_noise=lambda noise: 1 / (2 * noise * noise)),
)
