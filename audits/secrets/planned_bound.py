"""The success that a plan of protection permits an attack, and a test of the plan by the observed success.

For every single secret, a plan bounds how often the best guess is right, over the secret's own prior and the noise of
training. For the number of right guesses in one run, only a bound on its mean follows: a training that published all
secrets with probability p, and otherwise none, would satisfy every single bound of p. So a run is judged by Markov's
inequality, P[right guesses >= k] <= sum of bounds / k, which holds for any dependence of the outcomes and is attained
by that training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from audits.statistics.search import smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBound:
    """A plan's bound for one secret.

    The model reveals at most ``information`` nats about it. An adversary with a prior of at most ``prior`` is right
    with probability at most ``posterior``, by the trade-off curve or by Fano's inequality.
    """

    information: float
    prior: float
    posterior: float

    def success(self, count: int) -> float:
        """The largest probability of identifying the secret among ``count`` equally likely values, including itself.

        If guessing is easier than planned for, concavity is used: the largest success is a concave function of the
        prior that is at least 0 at 0, so it grows no faster than the prior.
        """
        if count < 2:
            return 1.0
        return min(fano(self.information, 1 / count), self.posterior * max(1.0, 1 / count / self.prior), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Markov:
    """``recovered`` of ``secrets`` guesses were right, where the bounds permit ``expected`` on average.

    ``needed`` right guesses would contradict the bounds at the requested level; it may exceed ``secrets``.
    """

    secrets: int
    recovered: int
    expected: float
    p_value: float
    needed: int


def fano(information: float, prior: float) -> float:
    """The largest p in [prior, 1] with kl(p, prior) <= ``information`` nats, rounded up (Fano's inequality).

    ``fano(0.1, 0.1)`` is 0.256866401710. Implemented independently, so that the audit of a plan does not share the code
    that made it.
    """
    if information >= -math.log(prior):
        return 1.0
    return smallest(lambda p: _kl(p, prior) > information, prior, 1.0, 0.0)


def _kl(p: float, r: float) -> float:
    """KL(Bernoulli(p) || Bernoulli(r)) in nats, for 0 < r < p < 1."""
    return p * math.log1p((p - r) / r) + (1 - p) * math.log1p((r - p) / (1 - r))


def markov_test(recovered: int, bounds: list[float], level: float) -> Markov:
    """The test at ``level`` of ``bounds``, one per secret, by the number of secrets ``recovered``."""
    expected = math.fsum(bounds)
    return Markov(
        secrets=len(bounds),
        recovered=recovered,
        expected=expected,
        p_value=min(1.0, expected / recovered) if recovered else 1.0,
        needed=max(1, math.ceil(expected / level)),
    )
