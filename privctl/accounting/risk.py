"""What a guarantee means for an attacker: the trade-off function and what follows from it.

For every epsilon, true positive rate <= e^epsilon * false positive rate + delta(epsilon) (Wasserman and Zhou 2010;
Dong, Roth and Su 2022, proposition 2.12). The minimum of these bounds over all epsilons is the whole trade-off
function, which bounds membership inference, reconstruction (Hayes, Mahloujifar and Balle 2023) and every other test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np

from privctl.accounting.ledger import composed, gaussian_shift
from privctl.accounting.pld.pairs import Array
from privctl.domain.checks import probability
from privctl.domain.events import Batches, Event, Ledger
from privctl.domain.guarantee import Risk, RiskMeasure

#: False positive rates at which a report states the best true positive rate.
RATES = (0.01, 0.001)
#: Relative margins by which stated risks are rounded up: if they come from a grid, and from a formula.
_RAISED, _ROUNDED = 1e-4, 1e-11


class TradeOff(Protocol):
    """Bounds on every test of whether one record was used."""

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate of any test at this false positive rate. Raises ValueError outside [0, 1]."""
        ...

    def advantage(self) -> float:
        """The largest true minus false positive rate."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianTradeOff:
    """The trade-off of N(mu, 1) against N(0, 1): Phi(Phi^-1(false positive rate) + mu)."""

    mu: float

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """See ``TradeOff``."""
        probability("false_positive_rate", false_positive_rate)
        if not 0 < false_positive_rate < 1:
            return 1.0 if false_positive_rate else 0.0
        quantile = NormalDist().inv_cdf(false_positive_rate) + self.mu
        return math.erfc(-quantile / math.sqrt(2)) / 2  # importing scipy takes longer than adding noise to a gigabyte

    def advantage(self) -> float:
        """See ``TradeOff``: 2 Phi(mu / 2) - 1."""
        return math.erf(self.mu / 2 / math.sqrt(2))


@dataclass(frozen=True, slots=True)
class PiecewiseTradeOff:
    """True positive rate <= e^epsilons[i] * false positive rate + deltas[i] for every i; ``epsilons`` rise."""

    epsilons: Array
    deltas: Array

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """See ``TradeOff``."""
        probability("false_positive_rate", false_positive_rate)
        rate = math.log(false_positive_rate) if false_positive_rate > 0 else -math.inf
        heights = np.exp(np.minimum(self.epsilons + rate, 1.0)) + self.deltas
        return float(heights.min(initial=1.0))

    def advantage(self) -> float:
        """See ``TradeOff``: delta at epsilon 0; between grid points, delta is linear in e^epsilon."""
        if not self.epsilons[0] <= 0 <= self.epsilons[-1]:
            return 1.0 if self.epsilons[0] > 0 else float(self.deltas[-1])
        right = int(np.searchsorted(self.epsilons, 0.0))
        if self.epsilons[right] == 0:
            return float(self.deltas[right])
        left, low, high = right - 1, self.epsilons[right - 1], self.epsilons[right]
        weight = math.expm1(low) * math.exp(-high) / math.expm1(low - high)
        return float(self.deltas[left] + weight * (self.deltas[right] - self.deltas[left]))


@dataclass(frozen=True, slots=True)
class EitherOrder:
    """The maximum of several curves: the attacker may test for the record's presence or for its absence."""

    curves: tuple[TradeOff, ...]

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """See ``TradeOff``."""
        return max(curve.true_positive_rate(false_positive_rate) for curve in self.curves)

    def advantage(self) -> float:
        """See ``TradeOff``."""
        return max(curve.advantage() for curve in self.curves)


@dataclass(frozen=True, slots=True)
class Tightest:
    """The minimum of several bounds at each point."""

    curves: tuple[TradeOff, ...]

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """See ``TradeOff``."""
        return min(curve.true_positive_rate(false_positive_rate) for curve in self.curves)

    def advantage(self) -> float:
        """See ``TradeOff``."""
        return min(curve.advantage() for curve in self.curves)


def trade_off(ledger: Ledger, *points: tuple[float, float]) -> TradeOff:
    """The trade-off of everything in ``ledger``.

    ``points`` are (epsilon, delta) known to hold, which make the bound tighter. The advantage is also at most the
    probability that the record ever takes part.
    """
    mu = gaussian_shift(ledger)
    if mu is not None:
        return GaussianTradeOff(mu)
    whole = EitherOrder(tuple(PiecewiseTradeOff(*distribution.profile()) for distribution in composed(ledger, None)))
    taking_part = -math.expm1(sum(_log_absent(event) for event in ledger.events))
    return Tightest((whole, line(0.0, taking_part), *(line(epsilon, delta) for epsilon, delta in points)))


def _log_absent(event: Event) -> float:
    """Logarithm of the probability that the record, or every record of a secret, is absent from all steps."""
    if event.batches_needed is not Batches.POISSON:
        return -math.inf
    return event.steps * math.fsum(math.log1p(-rate) if rate < 1 else -math.inf for rate in event.rates)


def line(epsilon: float, delta: float) -> TradeOff:
    """The trade-off of an (epsilon, delta) guarantee about which nothing else is known (Kairouz, Oh, Viswanath 2015).

    Example: for epsilon 1, delta 0.001 and false positive rate 0.8, the true positive rate is at most 0.927.
    """
    if epsilon == 0:
        return PiecewiseTradeOff(np.array([0.0]), np.array([min(delta, 1.0)]))
    # In terms of rates: TPR <= e^eps FPR + delta and 1 - FPR <= e^eps (1 - TPR) + delta.
    mirrored = 1 - (1 - delta) * math.exp(-epsilon)
    return PiecewiseTradeOff(np.array([-epsilon, 0.0, epsilon]), np.array([mirrored, _kink(epsilon, delta), delta]))


def risks(curve: TradeOff, priors: Sequence[float] = ()) -> tuple[Risk, ...]:
    """The bounds that a report states: advantage, true positive rates at low false positive rates, and posteriors.

    A posterior is the largest probability of guessing a secret whose most likely value has the prior's probability. All
    are rounded up: by a ten-thousandth, by which two sound grids may differ, or by much less if there is no grid.
    """
    margin = _ROUNDED if isinstance(curve, GaussianTradeOff) else _RAISED
    listed = [Risk(measure=RiskMeasure.ADVANTAGE, bound=_raised(curve.advantage(), margin))]
    for measure, rates in ((RiskMeasure.TRUE_POSITIVE_RATE, RATES), (RiskMeasure.POSTERIOR, priors)):
        bounds = [(rate, _raised(curve.true_positive_rate(rate), margin)) for rate in rates]
        listed += [Risk(measure=measure, bound=bound, at=rate) for rate, bound in bounds]
    return tuple(listed)


def _raised(bound: float, margin: float) -> float:
    """``bound`` raised by the relative ``margin``, so that another computation of it does not exceed the report's."""
    return min(1.0, bound * (1 + margin))


def _kink(epsilon: float, delta: float) -> float:
    """(e^epsilon - 1 + 2 delta) / (e^epsilon + 1), the advantage at which both lines meet."""
    return math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1)
