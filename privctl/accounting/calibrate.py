"""The least noise for a target: secant steps with a coarse privacy loss distribution, then with a fine one.

At the returned multiplier, epsilon by the fine, pessimistic distribution does not exceed the target; this is checked
last, in both orders of the neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privctl.accounting import gaussian
from privctl.accounting.brackets import costly_root
from privctl.accounting.events import row_of
from privctl.accounting.ledger import COARSE, FINE, epsilon_bound, gaussian_shift, order_epsilons
from privctl.domain.checks import fraction, positive
from privctl.domain.events import Ledger

#: The range of noise multipliers that is searched.
LEAST, MOST = 1e-3, 1e9

#: Allowed relative excess over the optimum, not counting the cost of the grid.
_TOLERANCE = 2e-5


def require_comparable(noise: float) -> None:
    """Raise ValueError for a noise multiplier so small that ``noise_multiplier_for`` does not search there."""
    if noise < LEAST:
        raise ValueError(
            f"noise_multiplier is {noise:g}; a plan that is compared with DP-SGD of the same epsilon needs at least "
            f"{LEAST:g}"
        )


def noise_multiplier_for(epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> float:
    """The least noise multiplier at which ``ledger_of(noise_multiplier)`` meets (epsilon, delta).

    The ledger's epsilon must not increase with the noise multiplier. Raises ValueError if the target is met with less
    noise than ``LEAST``, or by no multiplier up to ``MOST``.

    Example: sampling rate 0.01, 1000 steps, epsilon 1 and delta 1e-5 give 1.41463.
    """
    positive("epsilon", epsilon)
    fraction("delta", delta)
    exact = _without_sampling(epsilon, delta, ledger_of)
    if exact is not None:
        return _require_in_range(exact, epsilon, delta)
    search = _Search(epsilon, delta, ledger_of)
    coarse = search.root(_guess(epsilon, delta, ledger_of(1.0)), COARSE, 20 * _TOLERANCE)
    noise_multiplier = search.root(coarse, FINE, _TOLERANCE)
    if noise_multiplier < MOST and epsilon_bound(ledger_of(noise_multiplier), delta) > epsilon:
        search.both_orders()  # here the other order is the worse one, which is rare
        noise_multiplier = search.root(noise_multiplier, FINE, _TOLERANCE)
    step = _TOLERANCE
    while noise_multiplier < MOST and epsilon_bound(ledger_of(noise_multiplier), delta) > epsilon:
        noise_multiplier, step = noise_multiplier * (1 + step), 2 * step
    return _require_in_range(noise_multiplier, epsilon, delta)


def _without_sampling(epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> float | None:
    """The result if the ledger is one Gaussian whose shift is proportional to 1 / noise; else None."""
    shift, halved = (gaussian_shift(ledger_of(noise)) for noise in (1.0, 2.0))
    if shift is None or halved is None or not math.isclose(shift, 2 * halved, rel_tol=1e-12):
        return None
    noise = shift * gaussian.noise_multiplier_for(epsilon, delta)
    while noise > 0 and epsilon_bound(ledger_of(noise), delta) > epsilon:
        noise = math.nextafter(noise, math.inf)
    return noise


class _Search:
    """Finds the root of log epsilon(noise) - log target as a function of log noise."""

    def __init__(self, epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> None:
        self._target, self._delta, self._ledger_of = epsilon, delta, ledger_of
        self._order: int | None = None
        self._one_order = True

    def root(self, start: float, precision: float, tolerance: float) -> float:
        """A multiplier that meets the target at this precision, within a relative ``tolerance`` of one that fails."""
        log_multiplier = costly_root(
            lambda x: self._excess(math.exp(x), precision),
            math.log(start),
            math.log(LEAST),
            math.log(MOST),
            tolerance=tolerance,
            stride=0.5 if precision > FINE else 10 * tolerance,
        )
        return math.exp(log_multiplier)

    def both_orders(self) -> None:
        """From now on, evaluate both orders of the neighbours."""
        self._one_order = False

    def _excess(self, noise: float, precision: float) -> float:
        """Log epsilon - log target; inf if epsilon is infinite, -inf if it is 0."""
        ledger = self._ledger_of(noise)
        shift = gaussian_shift(ledger)
        if shift is not None:
            epsilon = gaussian.epsilon_at(self._delta, shift) if shift else 0.0
        else:
            epsilon = self._epsilon(ledger, precision)
        if epsilon == 0:
            return -math.inf
        return math.log(epsilon) - math.log(self._target)

    def _epsilon(self, ledger: Ledger, precision: float) -> float:
        """Epsilon in the order of neighbours that was worse at the first evaluation.

        By other bounds where a loss is beyond the grid.
        """
        if any(row_of(event).extreme(event) for event in ledger.events):
            return epsilon_bound(ledger, self._delta, precision=precision)
        order = self._order if self._one_order else None
        values = order_epsilons(ledger, self._delta, precision=precision, order=order)
        if self._order is None:
            self._order = values.index(max(values))
        worst = max(values)
        return worst if math.isfinite(worst) else epsilon_bound(ledger, self._delta, precision=precision)


def _guess(epsilon: float, delta: float, ledger: Ledger) -> float:
    """A starting point: the largest of the events' guesses."""
    guesses = (row_of(event).guess(event, epsilon, delta) for event in ledger.events)
    return min(max(max((guess for guess in guesses if guess is not None), default=1.0), 10 * LEAST), MOST / 10)


def _require_in_range(noise: float, epsilon: float, delta: float) -> float:
    if noise <= LEAST * (1 + 1e-3):
        raise ValueError(
            f"epsilon {epsilon} at delta {delta} is met with a noise multiplier below {LEAST}: hardly any noise is "
            "needed for so large an epsilon, or almost no record takes part; ask for a smaller epsilon or delta"
        )
    if noise >= MOST * (1 - 1e-3):
        raise ValueError(f"no noise multiplier up to {MOST:g} meets epsilon {epsilon} at delta {delta}")
    return noise
