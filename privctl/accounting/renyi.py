"""Renyi differential privacy (Mironov 2017): divergences of every event, their sum, and its conversion to epsilon.

D_alpha(P || Q) = log E_Q[(dP / dQ)^alpha] / (alpha - 1), in nats, for the dominating pair of a step: P with the record,
Q without. Mironov, Talwar and Zhang 2019 ("Renyi Differential Privacy of the Sampled Gaussian Mechanism", theorem 5)
show that this order of the two is the larger one for subsampled noise that is symmetric about the midpoint of its two
centres; the pair of randomized response is symmetric. For a secret's mixture it is the divergence from the run without
the secret, which bounds the probability of guessing it. Divergences of adaptive steps add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privctl.accounting.events import row_of
from privctl.accounting.pld.extremes import largest_loss
from privctl.accounting.pld.grid_plan import RepeatedPair
from privctl.accounting.pld.pairs import Reversed
from privctl.accounting.poisson_binomial import Floats
from privctl.domain.checks import fraction
from privctl.domain.events import Event, Ledger

#: The default orders of dp-accounting's RdpAccountant, so that numbers are comparable.
ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)

#: Order 1 is replaced by an order this much above it.
_ABOVE_ONE = 1e-8


def renyi(event: Event, orders: Sequence[float] | Floats = ORDERS) -> Floats:
    """D_alpha of all steps of ``event`` at each of ``orders``, in nats; shape of ``orders``, inf where unbounded.

    Exact to rounding for sampled Gaussian and Laplace noise, an upper bound for randomized response (from its
    three-point pair) and for secrets (as ``log_moments``). The divergence of infinite order is the largest loss; that
    of order 1, the KL divergence, is replaced by that of an order slightly above.

    Raises ValueError for orders below 1, and for batches at a rate below 1 that are not Poisson samples: no
    amplification is proved for them here.
    """
    alphas = np.asarray(orders, dtype=np.float64)
    if not (alphas >= 1).all():
        raise ValueError("orders must all be at least 1")
    alphas = np.maximum(alphas, 1 + _ABOVE_ONE)  # divergences increase with the order
    one, whole = np.empty(len(alphas)), np.isinf(alphas)
    one[~whole] = row_of(event).divergences(event, alphas[~whole])
    if whole.any():
        pair = row_of(event).pair(event, False).pair if any(event.rates) else None
        both = [] if pair is None else [pair, Reversed(pair)]
        one[whole] = max((largest_loss([RepeatedPair(pair, 1)]) for pair in both), default=0.0)
    with np.errstate(over="ignore"):
        return np.asarray(one * float(event.steps), dtype=np.float64)


def ledger_epsilon(ledger: Ledger, delta: float, finite: Sequence[float] = ORDERS) -> tuple[float, float]:
    """(epsilon, best order) of ``ledger`` at ``delta``, among ``finite`` orders and infinity. Raises as ``renyi``."""
    orders = (*finite, math.inf)
    with np.errstate(over="ignore"):
        return epsilon_at(orders, sum((renyi(event, orders) for event in ledger.events), np.zeros(len(orders))), delta)


def epsilon_at(orders: Sequence[float] | Floats, values: Sequence[float] | Floats, delta: float) -> tuple[float, float]:
    """(epsilon, best order) at ``delta`` for divergences ``values`` (nats, shape (n,)) at ``orders`` (shape (n,)).

    Canonne, Kamath and Steinke 2020 ("The Discrete Gaussian for Differential Privacy"), proposition 12:

        epsilon = D + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1),

    and 0 if the total variation distance, at most sqrt(1 - exp(-D)) (Bretagnolle and Huber), is at most delta. Never
    below 0; inf if all values are. Raises ValueError for a delta outside (0, 1), an order not above 1, a value that is
    negative or NaN, and for shapes that differ or are empty.
    """
    fraction("delta", delta)
    alphas, nats = np.asarray(orders, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if alphas.ndim != 1 or alphas.shape != nats.shape or not len(alphas):
        raise ValueError(f"orders {alphas.shape} and values {nats.shape} must be lists of one length, not empty")
    if not (alphas > 1).all() or not (nats >= 0).all():
        raise ValueError("orders must all be above 1 and values at least 0")
    finite = np.where(np.isinf(alphas), 2.0, alphas)
    penalty = np.log1p(-1 / finite) - (math.log(delta) + np.log(finite)) / (finite - 1)
    epsilons = nats + np.where(np.isinf(alphas), 0.0, penalty)
    with np.errstate(divide="ignore"):
        close = np.log(-np.expm1(-nats)) <= 2 * math.log(delta)
    epsilons = np.maximum(np.where(close, 0.0, epsilons), 0.0)
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(alphas[best])
