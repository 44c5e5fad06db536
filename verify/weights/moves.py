"""How far steps can move weights: what each gradient adds in the end, and the most that a batch's records add.

With decoupled weight decay, released weights are w_T = P w_0 - D, with P the product of all 1 - eta_t lambda. For
gradient descent with momentum mu, D = sum_s a_s g_s, where a_s = eta_s P_s + mu a_(s+1) and P_s is the product of the
factors after step s. An update of Adam is at most r_t in each entry, whatever the gradients: by the inequality of
Cauchy and Schwarz |m_t| <= (1 - beta1) / sqrt(1 - beta2) sqrt(sum_(k < t) (beta1^2 / beta2)^k) sqrt(v_t), to which the
corrections of bias add the factor sqrt(1 - beta2^t) / (1 - beta1^t). It is 1 at t = 1, and 7.27 in the long run for
beta1 = 0.9 and beta2 = 0.999.
"""

from __future__ import annotations

import math

import numpy as np

from verify.checkpoint_noise.values import Floats
from verify.laws.common import normal_quantile
from verify.weights.settings import MixedIn, TrainingFacts, UncheckableError

#: Powers of two of the first clip norm that a later one is expected within.
_TRIED = 45


def kept(settings: TrainingFacts) -> Floats:
    """P_s of each update, and at the end P, the share that is left of the first weights: [updates + 1]."""
    factors = 1 - settings.rates * settings.weight_decay
    if not (factors > 0).all():
        raise UncheckableError("weight decay times the learning rate is 1 or more")
    after = np.append(np.cumprod(factors[::-1])[::-1][1:], 1.0)
    return np.append(after, after[0] * factors[0])


def coefficients(settings: TrainingFacts) -> Floats:
    """a_s [updates]: by how much the weights end lower for each gradient's unit, for gradient descent."""
    found = settings.rates * kept(settings)[:-1]
    if settings.momentum:
        for step in range(len(found) - 2, -1, -1):
            found[step] += settings.momentum * found[step + 1]
    return found


def noise_coefficients(settings: TrainingFacts) -> Floats:
    """By how much the weights end lower for a unit of each step's fresh noise: C^-T a, for gradient descent.

    Correlated noise w has C w = z, with z fresh and C lower triangular, banded and Toeplitz.
    """
    found, column = coefficients(settings), settings.correlation[: settings.updates]
    if len(column) == 1:
        return np.asarray(found / column[0])
    from scipy.signal import lfilter  # here, as importing it takes longer than most verifications

    # C^T is upper triangular and Toeplitz: the same filter from the last step back.
    return np.asarray(lfilter([1.0], column, found[::-1])[::-1])


def noise_sizes(settings: TrainingFacts) -> tuple[float, float]:
    """The standard deviation of a weight's move by noise alone, without rounding onto the grid and with it."""
    found, stddevs = noise_coefficients(settings), settings.noise_stddevs
    rounded = np.hypot(stddevs, settings.grids / math.sqrt(12))
    return float(np.linalg.norm(found * stddevs)), float(np.linalg.norm(found * rounded))


def noise_reach(settings: TrainingFacts, level: float) -> float:
    """What noise alone moves a weight by no farther than, but with probability ``level``, by gradient descent.

    Where clip norms change, a step's noise has a variance that follows from earlier steps, and noise decides about
    later ones. Of such a sum S with variances that add up to V, sqrt(r / (V + r)) exp(S^2 / (2 (V + r))) exceeds
    1 / level with that probability at most, whatever r was fixed beforehand (method of mixtures: de la Pena, Klass and
    Lai 2004; Ville's inequality), and many are tried.
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
    """The least standard deviation of a weight's move by noise alone, wherever noise was lost, for gradient descent.

    Lost noise sets entries of C to 0. No row or column of what is left has absolute values of a larger sum than the
    coefficients', so neither has its operator norm (Schur's test), and |C^-T a| is at least |a| over that sum.
    """
    return float(np.linalg.norm(coefficients(settings))) * settings.noise_stddev / _column_sum(settings)


def _column_sum(settings: TrainingFacts) -> float:
    return math.fsum(map(abs, settings.correlation))


def adam_reach(settings: TrainingFacts) -> float:
    """The farthest that Adam moves one weight, decay of the first weight left aside."""
    steps = np.arange(1, settings.updates + 1, dtype=np.float64)
    beta1, beta2 = settings.beta1, settings.beta2
    if beta2 == 0:  # then v_t = g_t^2, which bounds no earlier gradient
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


def most_drawn(trials: float, rate: float, level: float) -> float:
    """What the number of examples drawn exceeds with probability at most ``level``.

    ``trials`` draws have the chance ``rate`` on average, alike or not. Chernoff's bound exp(-n KL(k / n || q)) holds
    for both (Hoeffding 1963, theorem 1): ``most_drawn(60, 0.2, 1e-6)`` is 30.31.
    """
    if rate >= 1:
        return trials
    goal = -math.log(level) / trials

    def divergence(share: float) -> float:
        rest = (1 - share) * math.log((1 - share) / (1 - rate)) if share < 1 else 0.0
        return share * math.log(share / rate) + rest - goal

    if divergence(1.0) <= 0:
        return trials
    from scipy.optimize import brentq  # here, as importing it takes longer than most verifications

    return trials * float(brentq(divergence, rate, 1.0))


def signal(settings: TrainingFacts, level: float) -> float:
    """R: the root of the summed squares of what the batches add, in standard deviations of a step's noise.

    A batch of K examples adds at most K C / B where the noise has sigma C / B, so R^2 = sum K_t^2 / sigma^2. Canary
    gradients add to R what they are together in all steps, each of which is orthogonal to the others. A run
    clips by 2^-10 below C and leaves that for rounding; C bounds both. It holds but with probability ``level``.
    Where noise is correlated, a release moves by the batches of several steps, each times a coefficient, which adds
    the factor of the coefficients' sum (Young's inequality). Where clip norms change, a step releases a count too, and
    sigma is the noise multiplier of both: without gradients and counts, clip norms say nothing of the weights' noise.
    """
    once, total, mixed_in = _drawn(settings, level)
    added = math.sqrt(min(once * total, settings.updates * once * once))
    if settings.canaries is not None:
        added += math.sqrt(_turns(settings, settings.canaries)) * mixed_in
    return added / (settings.joint_multiplier or settings.noise_multiplier) * _column_sum(settings)


def reach(settings: TrainingFacts, level: float) -> float:
    """The longest way, as an L2 norm, that clipped gradients themselves move the weights by gradient descent.

    Without noise batches are passes, of ``batch_size`` examples at most; Poisson batches are larger than what is taken
    here with probability ``level``.
    """
    found = coefficients(settings) * settings.norms
    if not settings.noise_multiplier:
        return float(found.sum())
    once, total, mixed_in = _drawn(settings, level)
    longest = min(float(found.sum()) * once, float(found.max()) * total)
    if (mixed := settings.canaries) is not None:
        longest += float(np.sort(found)[-_turns(settings, mixed) :].sum()) * mixed_in
    return longest / settings.batch_size


def _drawn(settings: TrainingFacts, level: float) -> tuple[float, float, float]:
    """Of batches and canaries what ``_batches`` and ``_mixed_in`` say, all together but with probability ``level``."""
    if settings.canaries is None:
        return (*_batches(settings, level), 0.0)
    return (*_batches(settings, level / 2), _mixed_in(settings, settings.canaries, level / 2))


def _mixed_in(settings: TrainingFacts, mixed: MixedIn, level: float) -> float:
    """The longest that canary gradients are together in any step, in clip norms, but with probability ``level``."""
    there = most_drawn(mixed.count, mixed.share / 2, level / _turns(settings, mixed))
    return mixed.most * math.sqrt(there)


def _turns(settings: TrainingFacts, mixed: MixedIn) -> int:
    """The most updates in which canary gradients take part."""
    return min(settings.updates, -(-settings.planned // mixed.apart))


def _batches(settings: TrainingFacts, level: float) -> tuple[float, float]:
    """The most examples in any batch, and in all together, but with probability ``level``."""
    steps, rate = settings.updates, settings.sample_rate
    once = most_drawn(settings.examples, rate, level / 2 / steps)
    if len(settings.correlation) > 1:  # which steps an example may take part in is not independent from step to step
        return once, once * steps
    return once, most_drawn(settings.examples * steps, rate, level / 2)
