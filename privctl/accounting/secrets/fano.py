"""Protection of secrets: how much a training run helps an adversary to guess a secret, and the noise that limits it.

Reference form. Let a secret take one of several values, to none of which the adversary's prior gives more than r, and
let P_theta be the distribution of everything published if the value is theta. For every fixed distribution Q, the
mutual information is at most max_theta KL(P_theta || Q), and the success probability p of the best guess satisfies
kl(p, r) <= that information, because success under Q has probability at most r (data processing on the indicator of
success; Fano). Let Q be the same run with the secret's records contributing nothing. Then one step has
KL(P_theta || Q) <= KL(MoG || N(0, sigma^2)), where MoG is the mixture over the number of those records drawn; adaptive
steps add up (chain rule). This bounds guessing among arbitrary replacement values at the cost of zeroing out. The
pairwise form instead uses KL(P_theta || P_theta') of two values with opposite contributions, MoG(+k) against MoG(-k),
which costs up to four times as much.

All divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from privctl.accounting.brackets import falling_root
from privctl.accounting.mixtures import kl, replace_kl
from privctl.accounting.poisson_binomial import PoissonBinomial, poisson_binomial
from privctl.accounting.secrets import trade_off
from privctl.domain.checks import at_least, fraction, probability
from privctl.domain.events import SecretMixture

#: The range of noise multipliers that is searched; beyond, squares overflow or underflow.
_LEAST, _MOST = 1e-150, 1e150
#: Relative width of the bracket at which the search stops.
_CLOSE = 1e-13


def binary_kl(p: float, r: float) -> float:
    """KL(Bernoulli(p) || Bernoulli(r)) in nats, with a small relative error even for p near r, 0 or 1.

    Raises ValueError unless 0 <= p <= 1 and 0 < r < 1. Example: binary_kl(0.1, 0.001) = 0.366593004807...
    """
    probability("p", p)
    fraction("r", r)
    return _kl_term(p, r, p - r) + _kl_term(1 - p, 1 - r, r - p)


def _kl_term(x: float, y: float, gap: float) -> float:
    """The term x log(x / y) - x + y with ``gap`` = x - y; never negative, so two terms add without cancellation."""
    change = gap / y
    if abs(change) > 0.25:
        return (x * (math.log(x) - math.log(y)) if x else 0.0) - gap
    total = 0.0
    for n in range(28, 1, -1):
        total = 1 / (n * (n - 1)) - change * total
    return y * change * change * total


def posterior(budget: float, prior: float) -> float:
    """The largest p in [prior, 1] with binary_kl(p, prior) <= ``budget`` nats, rounded up (Fano's inequality).

    1 if certainty does not exceed the budget. Raises ValueError for a budget that is negative or NaN, or a prior
    outside (0, 1). Example: posterior(1, 0.1) = 0.689217226545...
    """
    fraction("prior", prior)
    if not budget >= 0:
        raise ValueError(f"budget is {budget!r}; it must be a number of nats of at least 0")
    if budget >= -math.log(prior):
        return 1.0
    low, high = prior, 1.0
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (middle, high) if binary_kl(middle, prior) <= budget else (low, middle)
    return high


def information(event: SecretMixture, *, pairwise: bool = False) -> float:
    """The information in nats that all steps of ``event`` reveal, in the reference form or the ``pairwise`` one."""
    return event.steps * _one_step(pairwise)(poisson_binomial(event.probabilities), event.noise_multiplier)


def curve_posterior(event: SecretMixture, prior: float) -> float:
    """As ``posterior``, but from the whole trade-off function instead of one divergence; in the reference form.

    The probability of a correct guess is at most the largest probability of an event that has probability ``prior``
    without the secret: min over epsilon of e^epsilon prior + delta(epsilon) (Hayes, Mahloujifar and Balle 2023), with
    deltas from a pessimistic privacy loss distribution. Usually much tighter than Fano's inequality, but slower.

    Raises ValueError for a prior outside (0, 1). Example: for ten records of probability 0.005, 500 steps, noise
    multiplier 1.378 and prior 0.01 it is 0.0851, where Fano's inequality gives 0.2.
    """
    fraction("prior", prior)
    if not any(event.probabilities):
        return prior
    tails = trade_off.tails_of_law(poisson_binomial(event.probabilities))
    return trade_off.curve_of(tails, event.noise_multiplier, event.steps).posterior(prior)


def noise_multiplier_for(
    probabilities: Sequence[float], steps: int, prior: float, posterior: float, *, pairwise: bool = False
) -> float:
    """The smallest noise multiplier with steps * KL <= binary_kl(posterior, prior), rounded up to about 1e-12 relative.

    ``probabilities`` are those with which the secret's records are in a batch. Raises ValueError for parameters out of
    range, a posterior not above the prior, records that are never drawn, and a multiplier outside 1e-150..1e150.

    Example: one record of probability 0.01, 1000 steps, prior 0.001, posterior 0.1 gives 0.6643833650...
    """
    at_least("steps", steps, 1)
    fraction("prior", prior)
    fraction("posterior", posterior)
    if posterior <= prior:
        raise ValueError(f"posterior is {posterior!r}; it must be above the prior, {prior!r}")
    law = poisson_binomial(probabilities)
    if law.most == 0:
        raise ValueError("probabilities are all 0; records that are never drawn need no noise")
    budget, divergence = binary_kl(posterior, prior), _one_step(pairwise)
    return least_multiplier(
        lambda sigma: math.log(steps) + math.log(divergence(law, sigma)) - math.log(budget),
        float(law.weights @ law.shifts**2) ** 0.5,
    )


def _one_step(pairwise: bool) -> Callable[[PoissonBinomial, float], float]:
    return replace_kl if pairwise else kl


def least_multiplier(excess: Callable[[float], float], start: float) -> float:
    """The smallest sigma with ``excess`` <= 0, which decreases with sigma, for large sigma about as -2 log sigma.

    The search begins at ``start``; the condition was checked at the returned sigma. Raises ValueError if sigma would be
    outside 1e-150..1e150.
    """
    low, high = _bracket(excess, start)
    return falling_root(excess, low, excess(low), high, excess(high), close=_CLOSE)


def _bracket(excess: Callable[[float], float], start: float) -> tuple[float, float]:
    """Two multipliers at least a factor of 2 apart, with ``excess`` above 0 only at the first."""
    start = min(max(start, _LEAST), _MOST)
    factor, low, high = 2.0, start, start
    while excess(high) > 0:
        if high == _MOST:
            raise ValueError(f"no noise multiplier up to {_MOST:g} keeps the posterior within its bound")
        low, high, factor = high, min(high * factor, _MOST), factor * factor
    while low == high or excess(low) <= 0:
        if low == _LEAST:
            raise ValueError(f"a noise multiplier of {_LEAST:g} keeps the posterior within its bound; none is needed")
        low, high, factor = max(low / factor, _LEAST), low, factor * factor
    return low, high
