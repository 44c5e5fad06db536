"""How far training steps can move weights: the coefficient of each gradient, and the most that batches contribute.

With decoupled weight decay, released weights are w_T = P w_0 - D, with P the product of all 1 - eta_t lambda. For
gradient descent with momentum mu, D = sum_s a_s g_s, where a_s = eta_s P_s + mu a_(s+1) and P_s is the product of the
factors after step s. An update of Adam is at most r_t in each entry, whatever the gradients: by Cauchy-Schwarz,
|m_t| <= (1 - beta1) / sqrt(1 - beta2) sqrt(sum_(k < t) (beta1^2 / beta2)^k) sqrt(v_t), and bias correction adds the
factor sqrt(1 - beta2^t) / (1 - beta1^t). The bound r_t is 1 at t = 1, and 7.27 in the limit for beta1 = 0.9 and
beta2 = 0.999.
"""

from __future__ import annotations

import math

import numpy as np

from verify.checkpoint_noise.values import Floats
from verify.laws.common import normal_quantile
from verify.weights.settings import MixedIn, TrainingFacts, UncheckableError, UnstatedError

#: Later clip norms are expected within this many powers of two of the first.
_TRIED = 45


def kept(settings: TrainingFacts) -> Floats:
    """P_s of each update, and last P, the fraction that is left of the first weights; shape [updates + 1]."""
    factors = 1 - settings.rates * settings.weight_decay
    if not (factors > 0).all():
        raise UnstatedError("weight decay times the learning rate is 1 or more")
    after = np.append(np.cumprod(factors[::-1])[::-1][1:], 1.0)
    return np.append(after, after[0] * factors[0])


def coefficients(settings: TrainingFacts) -> Floats:
    """The coefficients a_s [updates] by which each gradient lowers the final weights, for gradient descent."""
    weights = settings.rates * kept(settings)[:-1]
    if settings.momentum:
        for step in range(len(weights) - 2, -1, -1):
            weights[step] += settings.momentum * weights[step + 1]
    return weights


def noise_coefficients(settings: TrainingFacts) -> Floats:
    """The coefficients C^-T a by which each step's fresh noise lowers the final weights, for gradient descent.

    Correlated noise w satisfies C w = z, with z independent and C lower triangular, banded and Toeplitz.
    """
    weights, column = coefficients(settings), settings.correlation[: settings.updates]
    if len(column) == 1:
        return np.asarray(weights / column[0])
    from scipy.signal import lfilter  # imported here because the import takes longer than most verifications

    # C^T is upper triangular and Toeplitz: the same filter, applied from the last step backwards.
    return np.asarray(lfilter([1.0], column, weights[::-1])[::-1])


def noise_sizes(settings: TrainingFacts) -> tuple[float, float]:
    """The standard deviation of a weight's move by noise alone, without and with rounding to the grid."""
    weights, stddevs = noise_coefficients(settings), settings.noise_stddevs
    rounded = np.hypot(stddevs, settings.grids / math.sqrt(12))
    return float(np.linalg.norm(weights * stddevs)), float(np.linalg.norm(weights * rounded))


def noise_reach(settings: TrainingFacts, level: float) -> float:
    """A bound on a weight's move by noise alone that holds except with probability ``level``, for gradient descent.

    If clip norms change, the variance of a step's noise depends on earlier steps. For such a sum S with total variance
    V and any r fixed beforehand, sqrt(r / (V + r)) exp(S^2 / (2 (V + r))) exceeds 1 / level with at most that
    probability (method of mixtures: de la Pena, Klass and Lai 2004; Ville's inequality). Many r are tried.
    """
    scale = noise_sizes(settings)[1]
    if settings.clip_norms is None:
        return scale * float(normal_quantile(level))
    begun = float(np.linalg.norm(noise_coefficients(settings))) * settings.noise_stddev
    tried = [(2.0**power * begun) ** 2 for power in range(-_TRIED, _TRIED + 1)]
    nats = -2 * math.log(level / len(tried))
    variance = scale * scale
    return math.sqrt(min((variance + r) * (math.log1p(variance / r) + nats) for r in tried))


def least_noise(settings: TrainingFacts) -> float:
    """The least standard deviation of a weight's move by noise alone, whichever steps were lost, for gradient descent.

    Lost noise sets entries of C to 0. The absolute values in any row or column of the remaining matrix add up to at
    most the sum of those of the coefficients. By Schur's test this bounds its operator norm, so |C^-T a| is at least
    |a| over that sum.
    """
    return float(np.linalg.norm(coefficients(settings))) * settings.noise_stddev / _column_sum(settings)


def _column_sum(settings: TrainingFacts) -> float:
    return math.fsum(map(abs, settings.correlation))


def adam_reach(settings: TrainingFacts) -> float:
    """The farthest that Adam can move one weight, not counting the decay of the first weight."""
    steps = np.arange(1, settings.updates + 1, dtype=np.float64)
    beta1, beta2 = settings.beta1, settings.beta2
    if beta2 == 0:  # v_t = g_t^2 does not bound earlier gradients
        if beta1 > 0:
            raise UncheckableError("with beta2 0 and beta1 above 0 nothing bounds an update of Adam")
        return float(settings.rates @ kept(settings)[:-1])
    ratio = beta1 * beta1 / beta2
    with np.errstate(over="ignore"):
        summed = steps if ratio == 1 else (np.power(ratio, steps) - 1) / (ratio - 1)
    first = (1 - beta1) / -np.expm1(steps * math.log(beta1)) if beta1 else np.ones_like(steps)
    second = np.sqrt(-np.expm1(steps * math.log(beta2)) / (1 - beta2))
    reach = float((settings.rates * kept(settings)[:-1]) @ (first * second * np.sqrt(summed)))
    if not math.isfinite(reach):
        raise UncheckableError("the bound on an update of Adam with these betas is beyond any float")
    return reach


def draws_bound(trials: float, rate: float, level: float) -> float:
    """A bound that the number of successes in ``trials`` exceeds with probability at most ``level``.

    ``rate`` is the mean success probability, which may differ between trials. The Chernoff bound
    exp(-n KL(k / n || q)) holds in both cases (Hoeffding 1963, theorem 1). Example: (60, 0.2, 1e-6) gives 30.31.
    """
    if rate >= 1:
        return trials
    exponent = -math.log(level) / trials

    def divergence(share: float) -> float:
        rest = (1 - share) * math.log((1 - share) / (1 - rate)) if share < 1 else 0.0
        return share * math.log(share / rate) + rest - exponent

    if divergence(1.0) <= 0:
        return trials
    from scipy.optimize import brentq  # imported here because the import takes longer than most verifications

    return trials * float(brentq(divergence, rate, 1.0))


def signal(settings: TrainingFacts, level: float) -> float:
    """R: the L2 norm over steps of the batches' contributions, in standard deviations of a step's noise.

    A batch of K examples contributes at most K C / B and the noise has standard deviation sigma C / B, so
    R^2 = sum K_t^2 / sigma^2. Canary gradients, which are orthogonal to each other, add their norm over all steps. A
    run clips slightly below C to leave a margin for rounding; C bounds both. The bound holds except with probability
    ``level``. If noise is correlated, a release depends on the batches of several steps, each times a coefficient,
    which adds the sum of the coefficients as a factor (Young's inequality). If clip norms change, a step also releases
    a count, and sigma is the joint noise multiplier: without gradients and counts, clip norms are independent of the
    weights' noise.
    """
    once, total, mixed_in = _joint_bounds(settings, level)
    added = math.sqrt(min(once * total, settings.updates * once * once))
    if settings.canaries is not None:
        added += math.sqrt(_turns(settings, settings.canaries)) * mixed_in
    return added / (settings.joint_multiplier or settings.noise_multiplier) * _column_sum(settings)


def reach(settings: TrainingFacts, level: float) -> float:
    """A bound on the L2 norm of the move by clipped gradients alone, for gradient descent.

    Without noise, batches come from passes and have at most ``batch_size`` examples. Poisson batches exceed the size
    assumed here with probability ``level``.
    """
    weights = coefficients(settings) * settings.norms
    if not settings.noise_multiplier:
        return float(weights.sum())
    once, total, mixed_in = _joint_bounds(settings, level)
    longest = min(float(weights.sum()) * once, float(weights.max()) * total)
    if (mixed := settings.canaries) is not None:
        longest += float(np.sort(weights)[-_turns(settings, mixed) :].sum()) * mixed_in
    return longest / settings.batch_size


def _joint_bounds(settings: TrainingFacts, level: float) -> tuple[float, float, float]:
    """The bounds of ``_batches`` and ``_mixed_in``, which hold jointly except with probability ``level``."""
    if settings.canaries is None:
        return (*_batches(settings, level), 0.0)
    return (*_batches(settings, level / 2), _mixed_in(settings, settings.canaries, level / 2))


def _mixed_in(settings: TrainingFacts, mixed: MixedIn, level: float) -> float:
    """A bound on the norm of the canary gradients in any step, in clip norms, except with probability ``level``."""
    draws = draws_bound(mixed.count, mixed.share / 2, level / _turns(settings, mixed))
    return mixed.most * math.sqrt(draws)


def _turns(settings: TrainingFacts, mixed: MixedIn) -> int:
    """The largest number of updates in which a canary gradient takes part."""
    return min(settings.updates, -(-settings.planned // mixed.apart))


def _batches(settings: TrainingFacts, level: float) -> tuple[float, float]:
    """The largest batch and the total number of examples, bounded except with probability ``level``."""
    steps, rate = settings.updates, settings.sample_rate
    once = draws_bound(settings.examples, rate, level / 2 / steps)
    if len(settings.correlation) > 1:  # an example's participation is not independent between steps
        return once, once * steps
    return once, draws_bound(settings.examples * steps, rate, level / 2)
