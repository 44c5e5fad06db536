"""Exposure beyond the limit of the number of references, extrapolated by a skew normal fit to their losses.

Carlini et al. 2019, section 4.3: the references' losses are close to skew normal (Azzalini 1985), with density 2 /
scale * phi(z) * Phi(shape * z), z = (x - location) / scale. Extrapolated exposure is -log2 F(canary's loss). It is a
model of the tail, not a measurement: no reference lies there, so neither a test of the fit nor resampled references
show how far off it is. Its limits therefore do not use the fit; see ``exposure.least_bits``.
``scipy.stats.skewnorm`` fails in the tail: at shape 50, two standard deviations out, its log-CDF is minus infinity
instead of -5016.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import kolmogorov, log_ndtr, ndtr, owens_t

from audits.canaries.exposure import least_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The minimum number of losses to which the three parameters are fitted.
FEWEST = 200
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
#: Below this, Phi(z) - 2 T(z, shape) suffers from cancellation, and the tail is integrated instead.
_SMALL = 1e-2
#: The integration range extends until the integrand has fallen by exp(-_DROP).
_DROP = 45.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)
#: Bounds of shape, location and log scale, for standardized losses.
_BOUNDS = ((-50.0, 50.0), (-8.0, 8.0), (-8.0, 8.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewNormal:
    """A skew normal distribution; ``location`` and ``scale`` are in nats."""

    shape: float
    location: float
    scale: float

    def log_cdf(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Ln F(x), accurate in the far left tail: -144.1479 (207.96152 bits) at 2 for shape 4, location 10, scale 2."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        direct = ndtr(z) - 2 * owens_t(z, self.shape)
        log_probability = np.log(np.clip(direct, _SMALL, 1.0))
        tail = direct < _SMALL
        if tail.any():
            log_probability[tail] = self._log_tail(z[tail])
        return np.asarray(np.minimum(log_probability, 0.0), dtype=np.float64)

    def bits(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Extrapolated exposure, -log2 F(x)."""
        return -self.log_cdf(x) / math.log(2)

    def _log_density(self, z: NDArray[Any]) -> NDArray[np.float64]:
        """The logarithm of the standardized density."""
        return np.asarray(math.log(2) - z * z / 2 - _HALF_LOG_TAU + log_ndtr(self.shape * z), dtype=np.float64)

    def _log_tail(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The log of the density's integral up to each z, by Gauss-Legendre quadrature where it is not negligible."""
        top = self._log_density(z)
        reach = np.full_like(z, 1e-3)
        while (near := self._log_density(z - reach) > top - _DROP).any():
            reach[near] *= 1.5
        steps = z[:, None] - reach[:, None] * (1 + _NODES) / 2
        values = self._log_density(steps)
        peak = values.max(axis=1)
        area = (np.exp(values - peak[:, None]) * _WEIGHTS).sum(axis=1) * reach / 2
        return np.asarray(peak + np.log(area), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolated:
    """Extrapolated exposures in bits, a lower limit that holds for each, and the goodness of fit.

    ``p_value`` is that of a Kolmogorov-Smirnov test for a distribution known in advance. As this one was fitted, the
    test is too lenient.
    """

    bits: NDArray[np.float64]
    lower: float
    p_value: float


def fit(losses: NDArray[Any]) -> SkewNormal:
    """The maximum-likelihood fit. Raises ValueError if the losses are all equal."""
    from scipy.optimize import minimize  # slow to import

    values = np.asarray(losses, dtype=np.float64)
    mean, spread = float(values.mean()), float(values.std())
    if not spread > 0:
        raise ValueError("the losses are all equal; there is no law to fit")
    x = (values - mean) / spread
    best = minimize(_cost, _moments(x), args=(x,), jac=True, method="L-BFGS-B", bounds=_BOUNDS)
    shape, location, log_scale = best.x
    return SkewNormal(
        shape=float(shape), location=mean + spread * float(location), scale=spread * math.exp(float(log_scale))
    )


def extrapolate(losses: NDArray[Any], references: NDArray[Any], *, cap: float, alpha: float) -> Extrapolated:
    """Exposures of ``losses``, none above any of the ``references``, by a fit to these, of at most ``cap`` bits.

    The lower limit of the exposures errs with probability at most ``alpha``; an upper one below ``cap``, the bits of
    all secrets, does not follow. The fit's bits are at least the limit.
    """
    law, least = fit(references), least_bits(len(references), alpha)
    return Extrapolated(
        bits=np.clip(law.bits(losses), least, cap), lower=least, p_value=_kolmogorov_smirnov(law, references)
    )


def _moments(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Starting values: the parameters that match the third moment of standardized values, kept within bounds."""
    skew = float(np.clip((x**3).mean(), -0.9, 0.9))
    power = abs(skew) ** (2 / 3)
    delta = math.copysign(math.sqrt(math.pi / 2 * power / (power + ((4 - math.pi) / 2) ** (2 / 3))), skew)
    scale = 1 / math.sqrt(1 - 2 * delta * delta / math.pi)
    return np.array([delta / math.sqrt(1 - delta * delta), -scale * delta * math.sqrt(2 / math.pi), math.log(scale)])


def _cost(parameters: NDArray[np.float64], x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The mean negative log-likelihood of (shape, location, log scale), and its gradient."""
    shape, location, log_scale = parameters
    scale = math.exp(log_scale)
    z = (x - location) / scale
    log_phi = log_ndtr(shape * z)
    hazard = np.exp(-0.5 * (shape * z) ** 2 - _HALF_LOG_TAU - log_phi)
    value = float((z * z / 2 - log_phi).mean()) + log_scale
    slope = z - shape * hazard
    gradient = np.array([-(z * hazard).mean(), -slope.mean() / scale, 1 - (slope * z).mean()])
    return value, gradient


def _kolmogorov_smirnov(law: SkewNormal, values: NDArray[Any]) -> float:
    """The asymptotic p-value of the largest distance between the fitted and the empirical distribution."""
    shares, count = np.sort(np.exp(law.log_cdf(values))), len(values)
    places = np.arange(count)
    distance = max(float(((places + 1) / count - shares).max()), float((shares - places / count).max()))
    return float(kolmogorov(math.sqrt(count) * distance))
