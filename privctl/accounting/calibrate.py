"""The least noise for a target: secant steps on a coarse privacy loss distribution, then a fine one has the last word.

At the returned multiplier, epsilon by the fine, pessimistic distribution never exceeds the target; this is checked
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

#: Noise multipliers between which an answer is sought.
LEAST, MOST = 1e-3, 1e9

#: Relative excess allowed over the optimum, grid cost aside.
_TOLERANCE = 2e-5


def require_comparable(noise: float) -> None:
    """Raises ValueError for a noise multiplier whose epsilon ``noise_multiplier_for`` would find no noise for."""
    if noise < LEAST:
        raise ValueError(
            f"noise_multiplier is {noise:g}; a plan that is compared with DP-SGD of the same epsilon needs at least "
            f"{LEAST:g}"
        )


def noise_multiplier_for(epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> float:
    """The least noise multiplier at which ``ledger_of(noise_multiplier)`` meets (epsilon, delta).

    ``ledger_of`` must lose no privacy when its argument rises. Raises ValueError where the target is met by almost no
    noise (below ``LEAST``) or by no multiplier up to ``MOST``.

    Example: sampling rate 0.01, 1000 steps, epsilon 1 and delta 1e-5 give 1.41463.
    """
    positive("epsilon", epsilon)
    fraction("delta", delta)
    exact = _without_sampling(epsilon, delta, ledger_of)
    if exact is not None:
        return _within(exact, epsilon, delta)
    search = _Search(epsilon, delta, ledger_of)
    coarse = search.root(_guess(epsilon, delta, ledger_of(1.0)), COARSE, 20 * _TOLERANCE)
    found = search.root(coarse, FINE, _TOLERANCE)
    step = _TOLERANCE
    while found < MOST and epsilon_bound(ledger_of(found), delta) > epsilon:
        # The other order binds here; rare, and a little more noise settles it.
        found, step = found * (1 + step), 2 * step
    return _within(found, epsilon, delta)


def _without_sampling(epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> float | None:
    """The answer where the ledger is one Gaussian whose shift falls as 1 / noise; None elsewhere."""
    shift, halved = (gaussian_shift(ledger_of(noise)) for noise in (1.0, 2.0))
    if shift is None or halved is None or not math.isclose(shift, 2 * halved, rel_tol=1e-12):
        return None
    noise = shift * gaussian.noise_multiplier_for(epsilon, delta)
    while noise > 0 and epsilon_bound(ledger_of(noise), delta) > epsilon:
        noise = math.nextafter(noise, math.inf)
    return noise


class _Search:
    """The root of log epsilon(noise) - log target over log noise."""

    def __init__(self, epsilon: float, delta: float, ledger_of: Callable[[float], Ledger]) -> None:
        self._target, self._delta, self._ledger_of = epsilon, delta, ledger_of
        self._order: int | None = None

    def root(self, start: float, precision: float, tolerance: float) -> float:
        """A multiplier that meets the target by this precision, at most ``tolerance`` above one that does not."""
        found = costly_root(
            lambda x: self._excess(math.exp(x), precision),
            math.log(start),
            math.log(LEAST),
            math.log(MOST),
            tolerance=tolerance,
            stride=0.5 if precision > FINE else 10 * tolerance,
        )
        return math.exp(found)

    def _excess(self, noise: float, precision: float) -> float:
        """Log epsilon - log target; infinite where epsilon is, -infinite where it is 0."""
        ledger = self._ledger_of(noise)
        shift = gaussian_shift(ledger)
        if shift is not None:
            found = gaussian.epsilon_at(self._delta, shift) if shift else 0.0
        else:
            found = self._epsilon(ledger, precision)
        if found == 0:
            return -math.inf
        return math.log(found) - math.log(self._target)

    def _epsilon(self, ledger: Ledger, precision: float) -> float:
        """Epsilon in the order that was worse at the first evaluation; it does not change."""
        values = order_epsilons(ledger, self._delta, precision=precision, order=self._order)
        if self._order is None:
            self._order = values.index(max(values))
        return max(values)


def _guess(epsilon: float, delta: float, ledger: Ledger) -> float:
    """A first multiplier, from the event that costs most; only a starting point."""
    guesses = (row_of(event).guess(event, epsilon, delta) for event in ledger.events)
    return min(max(max((guess for guess in guesses if guess is not None), default=1.0), 10 * LEAST), MOST / 10)


def _within(noise: float, epsilon: float, delta: float) -> float:
    if noise <= LEAST * (1 + 1e-3):
        raise ValueError(
            f"epsilon {epsilon} at delta {delta} is met with a noise multiplier below {LEAST}: hardly any noise is "
            "needed for so large an epsilon, or almost no record takes part; ask for a smaller epsilon or delta"
        )
    if noise >= MOST * (1 - 1e-3):
        raise ValueError(f"no noise multiplier up to {MOST:g} meets epsilon {epsilon} at delta {delta}")
    return noise
