"""One test from several sets of guesses on the same canaries, by the stronger of two theorems for each.

Each set has an equal share of the allowed failure probability (Bonferroni). Within a set, theorem 5.2 of Steinke, Nasr
and Jagielski 2023 and algorithm 3 of Mahloujifar, Melis and Chaudhuri 2024 each reject if the number of correct guesses
reaches a threshold. Rejecting if either does amounts to using the lower threshold, whose probability is also within the
share, so choosing between the theorems costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from audits.statistics import f_dp, one_run
from audits.statistics.search import smallest

#: The range of p-values that is searched, and the relative precision of the result (rounded up).
_LEAST, _MOST, _PRECISION = 1e-12, 0.499, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCount:
    """Of ``canaries``, at most ``guesses`` were guessed, and ``correct`` guesses were right.

    ``guesses`` is fixed before the coins are revealed; a guess that was not made counts as wrong.
    """

    canaries: int
    guesses: int
    correct: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """(canaries, guesses, correct)."""
        return self.canaries, self.guesses, self.correct


def epsilon_bound(sets: Sequence[GuessCount], delta: float, alpha: float) -> tuple[float, int]:
    """The largest epsilon that any of ``sets`` rejects at ``delta``, and the index of the set.

    It exceeds the true epsilon with probability at most ``alpha``.
    """
    share = alpha / len(sets)
    bounds = [one_run.epsilon_bound(*guess_set.counts, delta, share) for guess_set in sets]
    best = max(range(len(sets)), key=bounds.__getitem__)
    epsilon = bounds[best]
    for index, guesses in enumerate(sets):  # slow, so only where it can be larger
        if f_dp.rejects(*guesses.counts, f_dp.line(epsilon, delta), share):
            epsilon, best = f_dp.epsilon_bound(*guesses.counts, delta, share), index
    return epsilon, best


def mu_bound(sets: Sequence[GuessCount], alpha: float) -> tuple[float, int]:
    """The largest mu of Gaussian differential privacy that any of ``sets`` rejects, and the index of the set."""
    share = alpha / len(sets)
    mu, best = 0.0, 0
    for index, guess_set in enumerate(sets):
        if f_dp.rejects(*guess_set.counts, f_dp.gaussian(mu), share):
            mu, best = f_dp.mu_bound(*guess_set.counts, share), index
    return mu, best


def rejects_claim(sets: Sequence[GuessCount], epsilon: float, delta: float, alpha: float) -> bool:
    """Whether (``epsilon``, ``delta``)-DP is refuted, wrongly with probability at most ``alpha``."""
    share = alpha / len(sets)
    return any(
        one_run.p_value(*guess_set.counts, epsilon, delta) < share
        or f_dp.rejects(*guess_set.counts, f_dp.line(epsilon, delta), share)
        for guess_set in sets
    )


def curve_p_value(sets: Sequence[GuessCount], curve: f_dp.Curve) -> float:
    """An upper bound on the probability of results this extreme if ``curve`` holds, over all ``sets`` (Bonferroni).

    It is 1 if no set rejects at a level below 1/2, and not resolved below 1e-12.
    """
    smallest_p = 1.0
    for guess_set in sets:
        if f_dp.rejects(*guess_set.counts, curve, _MOST):
            rejecting = partial(_rejects_at, guess_set, curve)
            smallest_p = min(smallest_p, math.exp(smallest(rejecting, math.log(_LEAST), math.log(_MOST), _PRECISION)))
    return min(1.0, len(sets) * smallest_p)


def _rejects_at(counted: GuessCount, curve: f_dp.Curve, log_level: float) -> bool:
    return f_dp.rejects(*counted.counts, curve, math.exp(log_level))


def ceiling(sizes: Sequence[tuple[int, int]], delta: float, alpha: float) -> float:
    """The largest epsilon that sets of these (canaries, guesses) can certify, with every guess right."""
    perfect = [GuessCount(canaries=canaries, guesses=guesses, correct=guesses) for canaries, guesses in sizes]
    return epsilon_bound(perfect, delta, alpha)[0]
