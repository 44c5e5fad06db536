"""Renyi differential privacy (Mironov 2017): divergences of every event, their sum, and its conversion to epsilon.

D_alpha(P || Q) = log E_Q[(dP / dQ)^alpha] / (alpha - 1), in nats, of the pair that dominates a step: P with the record,
Q without. Mironov, Talwar and Zhang 2019 ("Renyi Differential Privacy of the Sampled Gaussian Mechanism", theorem 5)
show that this order of the two is the larger one when sampling noise that is symmetric about the middle of its two
centres; the pair of randomized response is its own mirror image. For a secret's mixture it is the divergence from the
run without the secret, which is what bounds guessing it. Divergences of adaptive steps add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privctl.accounting.mixtures import gauss_legendre, log_moment, log_moments
from privctl.accounting.poisson_binomial import Floats, poisson_binomial
from privctl.accounting.randomized_response import three_point
from privctl.domain.checks import fraction
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
)

#: The orders that dp-accounting's RdpAccountant takes unless told otherwise, so that numbers can be compared.
ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)

#: Whole orders up to this one are expanded binomially, others integrated.
_EXPANDED = 4096
#: Losses farther than this from both ends of a Laplace pair's range carry no weight.
_REACH = 90.0


def renyi(event: Event, orders: Sequence[float] | Floats = ORDERS) -> Floats:
    """D_alpha of all steps of ``event`` at each of ``orders``, in nats; shape of ``orders``, inf where unbounded.

    Exact to rounding for sampled Gaussian and Laplace noise, an upper bound for randomized response (that of its
    three-point pair) and for secrets (as ``log_moments``). Raises ValueError for an order that is not finite or not
    above 1, and for batches that are not Poisson samples at a rate below 1: no amplification is proved for them here.
    """
    alphas = np.asarray(orders, dtype=np.float64)
    if not ((alphas > 1) & np.isfinite(alphas)).all():
        raise ValueError("orders must all be finite and above 1")
    if isinstance(event, SampledGaussian):
        one = _sampled_gaussian(event, alphas)
    elif isinstance(event, LaplaceNoise):
        one = np.array([_sampled_laplace(1 / event.scale, event.sample_rate, float(alpha)) for alpha in alphas])
    elif isinstance(event, RandomizedResponse):
        one = _three_points(*three_point(event.epsilon, event.bits, event.sample_rate), alphas)
    else:
        one = _secret(event, alphas)
    with np.errstate(over="ignore"):
        return np.asarray(one * float(event.steps), dtype=np.float64)


def ledger_epsilon(ledger: Ledger, delta: float) -> tuple[float, float]:
    """(epsilon, best of ``ORDERS``) at ``delta`` of everything in ``ledger``. Raises ValueError as ``renyi`` does."""
    with np.errstate(over="ignore"):
        return epsilon_at(ORDERS, sum((renyi(event) for event in ledger.events), np.zeros(len(ORDERS))), delta)


def epsilon_at(orders: Sequence[float] | Floats, values: Sequence[float] | Floats, delta: float) -> tuple[float, float]:
    """(epsilon, best order) at ``delta`` for divergences ``values`` (nats, shape (n,)) at ``orders`` (shape (n,)).

    Canonne, Kamath and Steinke 2020 ("The Discrete Gaussian for Differential Privacy"), proposition 12:

        epsilon = D + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1),

    and 0 where already the total variation distance, at most sqrt(1 - exp(-D)) (Bretagnolle and Huber), is below delta.
    Never below 0; inf where all values are. Raises ValueError for a delta outside (0, 1), an order not above 1, a value
    that is negative or NaN, and for shapes that differ or are empty.
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


def _sampled_gaussian(event: SampledGaussian, alphas: Floats) -> Floats:
    """One step of the (Poisson) sampled Gaussian; alpha / (2 sigma^2) without sampling."""
    q, sigma = event.sample_rate, event.noise_multiplier
    if q == 0:
        return np.zeros(len(alphas))
    if q == 1:
        with np.errstate(over="ignore"):
            return alphas / 2 / sigma / sigma
    if event.batches is not Batches.POISSON:
        raise ValueError(
            f"batches is {event.batches.value}; Renyi amplification by sampling is proved for Poisson batches only"
        )
    whole = (alphas == np.floor(alphas)) & (alphas <= _EXPANDED)
    logs = np.empty(len(alphas))
    with np.errstate(over="ignore"):
        logs[whole] = [_expanded(q, sigma, int(alpha)) for alpha in alphas[whole]]
    logs[~whole] = log_moments(np.array([1 - q, q]), np.array([0.0, 1.0]), sigma, alphas[~whole].tolist())
    return logs / (alphas - 1)


def _expanded(q: float, sigma: float, alpha: int) -> float:
    """Logarithm of sum_k C(alpha, k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 sigma^2)).

    Mironov, Talwar and Zhang 2019, section 3.3. The binomial probabilities sum to 1, so with exp - 1 in place of exp
    the sum is short by just that 1, and small divergences keep all their digits.
    """
    k = np.arange(1, alpha + 1, dtype=np.float64)
    log_share = np.cumsum(np.log((alpha - k + 1) / k)) + k * math.log(q) + (alpha - k) * math.log1p(-q)
    growth = k * (k - 1) / 2 / sigma / sigma
    with np.errstate(divide="ignore"):
        log_growth = np.where(growth < 1, np.log(np.expm1(np.minimum(growth, 1))), _log_expm1(np.maximum(growth, 1)))
    terms = log_share + log_growth
    top = float(terms.max())
    if not math.isfinite(top):
        return top if top > 0 else 0.0
    return float(np.logaddexp(0.0, top + math.log(np.exp(terms - top).sum())))


def _log_expm1(x: Floats) -> Floats:
    """log(exp(x) - 1) for x of at least 1."""
    return np.asarray(x + np.log1p(-np.exp(-x)))


def _sampled_laplace(epsilon: float, q: float, alpha: float) -> float:
    """One step of the Poisson sampled Laplace mechanism of this ``epsilon`` without sampling.

    Without the record the loss t of the unsampled pair is epsilon with probability exp(-epsilon) / 2, -epsilon with 1/2
    and has density exp(-(t + epsilon) / 2) / 4 between; sampling turns it into log(1 - q + q exp(t)).
    """
    if q == 0:
        return 0.0
    if math.isinf(epsilon):
        return math.inf
    t, dt = gauss_legendre(*_laplace_panels(epsilon, q, alpha))
    with np.errstate(divide="ignore", under="ignore"):
        log_mass = np.concatenate([np.log(dt / 4) - (t + epsilon) / 2, -math.log(2) - np.array([0.0, epsilon])])
        losses = _amplified_losses(np.concatenate([t, [-epsilon, epsilon]]), q)
        return log_moment(log_mass, losses, alpha) / (alpha - 1)


def _laplace_panels(epsilon: float, q: float, alpha: float) -> tuple[Floats, Floats]:
    """Ends of panels over the losses that count.

    The integrand's logarithm is convex in t, so it is largest at the ends. Its slope, alpha times the share of the
    sampled part less 1/2, says how fine panels must be: 1 long while it is below 8, 16 / alpha from there on.
    """
    share = min(8 / alpha, 1.0)
    steep = math.log(share) - math.log1p(-share) + math.log1p(-q) - math.log(q) if share < 1 and q < 1 else math.inf
    steep = min(epsilon, max(-epsilon, -math.inf if q == 1 and share < 1 else steep))
    pieces = [
        _pieces(-epsilon, min(steep, _REACH - epsilon), 1.0),
        _pieces(max(-epsilon, min(_REACH - epsilon, steep), steep - _REACH), steep, 1.0),
        _pieces(max(steep, epsilon - 8), epsilon, 16 / alpha),
    ]
    return np.concatenate([p[:-1] for p in pieces]), np.concatenate([p[1:] for p in pieces])


def _pieces(low: float, high: float, length: float) -> Floats:
    """Ends of equal pieces of at most ``length``; one end, so no piece, where ``high`` is not above ``low``."""
    return np.linspace(low, high, math.ceil((high - low) / length) + 1) if high > low else np.array([low])


def _amplified_losses(t: Floats, q: float) -> Floats:
    """log(1 - q + q exp(t)), accurate relative to itself near t = 0."""
    near = np.log1p(q * np.expm1(np.minimum(t, 1))) if q < 1 else t
    return np.where(t < 1, near, t + np.log(q + (1 - q) * np.exp(-np.maximum(t, 1))))


def _three_points(loss: float, weight: float, alphas: Floats) -> Floats:
    """A loss of ``loss``, 0 or -``loss`` with probability w A, 1 - w, w (1 - A), where A = 1 / (1 + exp(-loss)).

    The moment less 1 is w (cosh c - 1 + tanh(loss / 2) sinh c) for c = (alpha - 1) loss: no term is negative.
    """
    if weight * loss == 0:
        return np.zeros(len(alphas))
    c, half = (alphas - 1) * loss, math.tanh(loss / 2)
    near = np.minimum(c, 1.0)
    small = np.log1p(weight * (2 * np.sinh(near / 2) ** 2 + half * np.sinh(near)))
    # w A e^c with the rest, all divided by e^c, where e^c may be too large.
    decay = np.exp(-np.maximum(c, 1.0))
    with np.errstate(divide="ignore"):
        rest = (1 - weight) * decay + weight * ((1 + half) / 2 + (1 - half) / 2 * decay * decay)
        large = np.maximum(c + np.log(rest), 0.0)
    return np.asarray(np.where(c < 1, small, large) / (alphas - 1))


def _secret(event: SecretMixture, alphas: Floats) -> Floats:
    """One step of a secret's mixture against no secret; what the law of K leaves out is put back by Minkowski.

    ||r||_alpha <= ||kept||_alpha + sum_cut w_k ||r_k||_alpha, with ||r_k||_alpha = exp((alpha - 1) k^2 / (2 sigma^2)).
    """
    law, sigma = poisson_binomial(event.probabilities), event.noise_multiplier
    kept = log_moments(law.weights, law.shifts, sigma, alphas.tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.array([law.log_tail_norm(growth) for growth in (alphas - 1) / 2 / sigma / sigma])
        ratio = np.where(np.isfinite(kept), lost - kept / alphas, -np.inf)
    return np.asarray((kept + alphas * np.logaddexp(0.0, ratio)) / (alphas - 1))
