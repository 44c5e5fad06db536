"""Mixtures of Gaussians N(k, sigma^2) whose weights are the distribution of a sum of independent Bernoulli variables.

One step of a sampled Gaussian mechanism, along the worst direction, is such a mixture against N(0, sigma^2): K is the
number of a secret's records in the batch (one record: K is Bernoulli(q)). Everything here is an integral over x, with
the likelihood ratio

    r(x) = sum_k w_k exp((k x - k^2 / 2) / sigma^2),        l = log r.

Gauss-Legendre panels cover the support of the integrand. The generating polynomial of K has only real zeros, and the
factor exp(-k^2 / (2 sigma^2)) keeps them real (Laguerre's multiplier sequence), so l is analytic within pi sigma^2 of
the real line: for large sigma, panels of one sigma suffice; for small sigma, panels are graded towards the kinks of l,
where the dominant component changes. Units: shifts and sigma in clip norms, divergences in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from privctl.accounting.poisson_binomial import Floats, PoissonBinomial
from privctl.domain.checks import positive

#: Mass of K that may be truncated at its lower end.
_TAIL = 1e-18
#: Below this sigma, neighbouring components overlap by less than exp(-1250), and divergences have closed forms.
_SEPARATED = 0.01
#: Below this sigma, k^2 / sigma^2 overflows; no useful bound exists.
_VACUOUS = 1e-150
#: Relative error of the quadrature, added to its results so that rounding cannot make a bound too small.
_ROUNDING = 2e-13
#: Bound on what terms that underflow may add.
_UNDERFLOW = 1e-300
_NODES = 16
_BLOCK = 1 << 19
#: Panel ends around a kink, in units of its width: their distances double.
_GRADES = np.array([-64, -32, -16, -8, -4, -2, 0, 2, 4, 8, 16, 32, 64], dtype=np.float64)
#: Limit on components times nodes of one integral, beyond which a closed upper bound is used instead.
_AFFORDABLE = 4_000_000
#: Limit on the distance of a component from 0, in standard deviations, beyond which that bound is used as well: farther
#: out, the nodes of a panel coincide in floating point, and the integral would miss the component.
_FARTHEST = 1e7
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def kl(law: PoissonBinomial, sigma: float) -> float:
    """KL(mixture || N(0, sigma^2)) in nats, never below the true value.

    int q (r l - r + 1) dx with q the density of N(0, sigma^2): a positive integrand. The mass t truncated at both ends
    is accounted for by convexity: KL <= (1 - t) KL_kept + sum_cut w_k k^2 / (2 sigma^2). If hundreds of narrow
    components would take too long, E[K^2] / (2 sigma^2) is returned, which is too large by at most K's entropy. inf for
    sigma below 1e-150.

    Example: one record of probability 0.01 at sigma 1 gives 8.38122076508e-05.
    """
    positive("sigma", sigma)
    first = int(np.searchsorted(np.cumsum(law.weights), _TAIL))
    shifts, weights = law.shifts[first:], law.weights[first:] / law.weights[first:].sum()
    cut = law.tail_square + float(law.weights[:first] @ law.shifts[:first] ** 2)

    def separated() -> float:
        return float(weights @ ((shifts / sigma) ** 2 / 2 + _log_weights(weights)))

    def bound() -> float:
        return float(weights @ (shifts / sigma) ** 2) / 2

    return _evaluate(law, sigma, cut / 2, separated, bound, lambda: _integrate(_forward, shifts, weights, sigma))


def replace_kl(law: PoissonBinomial, sigma: float) -> float:
    """KL(MoG(+k) || MoG(-k)) in nats, equal in both directions; never below the true value.

    The records of a secret are replaced by their opposites. By symmetry it is int_0^inf (p - p') log(p / p') dx, with
    both factors positive. By joint convexity the truncated mass adds sum_cut w_k (2 k)^2 / (2 sigma^2), and
    2 E[K^2] / sigma^2 is a bound if the integral would take too long. inf for sigma below 1e-150.
    """
    positive("sigma", sigma)
    shifts, weights = law.shifts, law.weights

    def separated() -> float:
        logs = _log_weights(weights)
        return float(weights @ (((shifts + shifts[0]) / sigma) ** 2 / 2 + logs) - logs[0])

    def bound() -> float:
        return float(weights @ (shifts / sigma) ** 2) * 2

    def exact() -> float:
        return _integrate(_opposed, shifts, weights, sigma, mirrored=True)

    return _evaluate(law, sigma, 2 * law.tail_square, separated, bound, exact)


def _evaluate(
    law: PoissonBinomial,
    sigma: float,
    cut: float,
    separated: Callable[[], float],
    bound: Callable[[], float],
    exact: Callable[[], float],
) -> float:
    """A divergence by the formula that suits ``sigma``, plus ``cut`` / sigma^2, rounded up."""
    if not law.most:
        return 0.0
    if sigma < _VACUOUS:
        return math.inf
    nodes = min(24 * len(law.weights), law.shifts[-1] / sigma + 24) * _NODES
    form = exact if nodes * len(law.weights) <= _AFFORDABLE else bound
    value = separated() if sigma < _SEPARATED else form()
    # Nodes are accurate to the spacing of floats at the farthest component.
    spread = min(float(law.shifts[-1]) / sigma, 1e6)
    return (value + cut / sigma / sigma) * (1 + _ROUNDING + 1e-15 * spread) + _UNDERFLOW


def _log_weights(weights: Floats) -> Floats:
    """Logarithms of weights that sum to 1; the largest is computed from the others, as it may be close to 1."""
    logs, top = np.log(weights), int(weights.argmax())
    logs[top] = math.log1p(-(weights[:top].sum() + weights[top + 1 :].sum()))
    return logs


def _integrate(
    integrand: Callable[[Floats, Floats, Floats], Floats],
    shifts: Floats,
    weights: Floats,
    sigma: float,
    *,
    mirrored: bool = False,
) -> float:
    """The integral over x / sigma within about 12 standard deviations of every component; if ``mirrored``, x > 0."""
    scaled = shifts / sigma
    mean = max(float(weights @ shifts), 1e-300)
    # If the weights are tiny, the integrand r (log r) q behaves like (r - 1)^2 q beyond the component, up to 2 k.
    half = max(12.0, 9.0 + math.sqrt(max(0.0, -math.log(mean))))
    breaks = _kinks(scaled, weights)
    z, dz = _panels(np.append(scaled, 0.0), half, np.append(np.abs(breaks), 0.0) if mirrored else breaks)
    if mirrored:
        z, dz = z[z > 0], dz[z > 0]
    return float(dz @ _by_blocks(integrand, z, scaled, weights))


def _by_blocks(
    function: Callable[[Floats, Floats, Floats], Floats], z: Floats, scaled: Floats, weights: Floats
) -> Floats:
    """``function`` at all of ``z``, in blocks to limit memory."""
    step = max(1, _BLOCK // len(scaled))
    return np.concatenate([function(z[i : i + step], scaled, weights) for i in range(0, len(z), step)])


def _forward(z: Floats, scaled: Floats, weights: Floats) -> Floats:
    """The integrand q (r l - r + 1) at z = x / sigma; shape of z."""
    loss, density = log_ratio(z, scaled, weights), np.exp(-z * z / 2 - _HALF_LOG_2PI)
    far = np.exp(_log_density(z, scaled, weights)) * (loss - 1) + density
    near = np.clip(loss, -0.5, 0.5)
    exact = near * np.exp(near) - np.expm1(near)
    series = _series(near, [(n - 1) / math.factorial(n) for n in range(2, 13)])
    return np.where(np.abs(loss) < 0.5, density * np.where(np.abs(loss) < 0.1, series, exact), far)


def _series(x: Floats, coefficients: Sequence[float]) -> Floats:
    """x^2 (c_0 + c_1 x + ...)."""
    total = np.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total * x * x


def _opposed(z: Floats, scaled: Floats, weights: Floats) -> Floats:
    """(p - p') log(p / p') at z = x / sigma > 0; shape of z."""
    column = z[:, None]
    with np.errstate(divide="ignore"):
        log_factors = np.log(-np.expm1(-2 * column * scaled))
        logs = np.log(weights)
    positive_terms = logs - (column - scaled) ** 2 / 2
    difference = _log_sum(positive_terms + log_factors)
    negative = _log_sum(logs - (column + scaled) ** 2 / 2)
    gap = difference - negative
    loss = np.where(gap < 1, np.log1p(np.exp(np.minimum(gap, 1))), _log_sum(positive_terms) - negative)
    return np.asarray(np.exp(difference - _HALF_LOG_2PI) * loss)


def log_ratio(z: Floats, scaled: Floats, weights: Floats) -> Floats:
    """The loss log r at z = x / sigma (shape (m,)) for components at ``scaled`` = shift / sigma; accurate near 0."""
    exponent = scaled * (z[:, None] - scaled / 2)
    logs = np.log(weights)
    loss = _log_sum(exponent + logs)
    near = np.abs(loss) < 0.5
    if near.any():
        # r - 1 without cancellation: w expm1(u), or w exp(u) - w if exp(u) is large.
        u = exponent[near]
        terms = np.where(u < 1, weights * np.expm1(np.minimum(u, 1)), np.exp(u + logs) - weights)
        loss[near] = np.log1p(terms.sum(axis=1))
    return loss


def _log_density(z: Floats, scaled: Floats, weights: Floats) -> Floats:
    """Log density of the mixture at z = x / sigma; not by ``log_ratio``, whose error grows with (k / sigma)^2."""
    return _log_sum(np.log(weights) - (z[:, None] - scaled) ** 2 / 2) - _HALF_LOG_2PI


def _log_sum(exponents: Floats) -> Floats:
    """Log of the sum of exponentials along the last axis."""
    top = exponents.max(axis=-1, keepdims=True)
    return np.asarray((top + np.log(np.exp(exponents - top).sum(axis=-1, keepdims=True)))[..., 0])


def _kinks(scaled: Floats, weights: Floats) -> Floats:
    """Panel ends graded towards the points where the dominant component changes; none if panels are fine enough."""
    if len(scaled) < 2 or (gap := float(scaled[1] - scaled[0])) < 2:
        return np.empty(0)
    middle = (scaled[1:] + scaled[:-1]) / 2 - np.diff(np.log(weights)) / gap
    grades = _GRADES[np.abs(_GRADES) <= 2 * gap]  # farther ones would be more than a panel away
    return np.asarray((middle[:, None] + grades / gap).ravel())


def _panels(centers: Floats, half: float, breaks: Floats) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights over the union of ``centers`` +- ``half``, in panels of length at most 1.

    ``breaks`` are additional panel ends.
    """
    breaks, starts = np.sort(breaks), np.sort(centers) - half
    gaps = np.flatnonzero(starts[1:] > starts[:-1] + 2 * half)
    lows, highs = starts[np.append(0, gaps + 1)], starts[np.append(gaps, len(starts) - 1)] + 2 * half
    edges = []
    for low, high in zip(lows, highs, strict=True):
        inside = breaks[np.searchsorted(breaks, low, "right") : np.searchsorted(breaks, high, "left")]
        edges.append(np.sort(np.append(np.linspace(low, high, math.ceil(high - low) + 1), inside)))
    return gauss_legendre(*(np.concatenate(ends) for ends in ([e[:-1] for e in edges], [e[1:] for e in edges])))


def gauss_legendre(lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights (16 m,) for m panels from ``lows`` to ``highs`` (shape (m,) each)."""
    nodes, weights = _legendre()
    middle, radius = (highs + lows)[:, None] / 2, (highs - lows)[:, None] / 2
    return (middle + radius * nodes).ravel(), (radius * weights).ravel()


@lru_cache(maxsize=1)
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def log_moments(weights: Floats, shifts: Floats, sigma: float, orders: Sequence[float]) -> Floats:
    """Logarithm of E_(N(0, sigma^2))[r^alpha] for each alpha > 1 in ``orders``: (alpha - 1) times the Renyi divergence.

    ``weights`` (shape (n,), positive, sum 1) belong to ``shifts`` (shape (n,), equally spaced, ascending, from 0 on).
    The integrand is a sum of bell curves around alpha k, times at most n^alpha between them (r <= n max); bells that
    are negligible in any case are left out. Small values have a small relative error. If an order would take too long,
    or bells are too far apart for floats, returns Minkowski's bound
    E[r^alpha]^(1/alpha) <= sum_k w_k exp((alpha - 1) k^2 / (2 sigma^2)), which is too large by at most alpha log n.

    Raises ValueError for orders not above 1.
    """
    positive("sigma", sigma)
    if not all(order > 1 for order in orders):
        raise ValueError("orders must all be above 1")
    if len(weights) == 1 and shifts[0] == 0:
        return np.zeros(len(orders))
    if sigma < _VACUOUS:
        return np.full(len(orders), math.inf)
    with np.errstate(over="ignore", under="ignore"):
        return np.array([_log_moment_of_mixture(weights, shifts / sigma, float(order)) for order in orders])


def _log_moment_of_mixture(weights: Floats, scaled: Floats, order: float) -> float:
    if math.isinf(order):
        return math.inf
    count, logs = len(weights), np.log(weights)
    closed = order * float(_log_sum(logs + (order - 1) / 2 * scaled**2))
    if order * scaled[-1] > _FARTHEST:
        return closed
    heights = order * logs + order * (order - 1) / 2 * scaled**2
    # The last term: for moments near 1 the distance from 1 matters, which is about the square of the mass away from 0.
    slack = (order + 1) * math.log(count) + 40 - 2 * math.log(min(1.0, float(weights[scaled > 0].sum())))
    bells = order * scaled[heights >= heights.max() - slack]
    half = math.sqrt(2 * slack)
    length = min((len(bells) + 1) * 2 * half, order * scaled[-1] + 2 * half)
    if length * _NODES * count > _AFFORDABLE:
        return closed
    z, dz = _panels(np.append(bells, 0.0), half, _kinks(scaled, weights))
    with np.errstate(divide="ignore"):
        log_mass = np.log(dz) - z * z / 2 - _HALF_LOG_2PI
    return log_moment(log_mass, _by_blocks(log_ratio, z, scaled, weights), order)


def log_moment(log_mass: Floats, loss: Floats, order: float) -> float:
    """Logarithm of sum_i m_i exp(order l_i), from losses l and the logarithms of masses m, shape (n,) each.

    The masses are those of the reference distribution: sum_i m_i = sum_i m_i exp(l_i) = 1. If the result is near 0, it
    is computed from sum_i m_i (r^order - 1 - order (r - 1)), which is the same sum minus 1 with no negative terms.
    """
    plain = float(_log_sum(log_mass + order * loss))
    if plain > 0.1:
        return plain
    excess, near = order - 1, np.clip(loss, -750, 30 / order)
    tiny = np.clip(near, -0.1 / order, 0.1 / order)
    growth = math.log1p(excess)
    series = _series(tiny, [order * math.expm1((n - 1) * growth) / math.factorial(n) for n in range(2, 13)])
    exact = np.exp(near) * np.expm1(excess * near) - excess * np.expm1(near)
    inner = np.exp(log_mass) * np.where(near == tiny, series, exact)
    far = np.exp(log_mass + order * loss) - order * np.exp(log_mass + loss) + excess * np.exp(log_mass)
    return math.log1p(max(0.0, float(np.where(order * loss < 30, inner, far).sum())))
