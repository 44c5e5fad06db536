"""Published formulas that are no bounds, or not where they are used.

They are printed next to a bound and never replace one. Sigma is the noise multiplier: noise standard deviation /
sensitivity. Epsilon is inf where floats cannot hold it. ``participations`` is k = sample_rate * steps, the number of
times an example is seen when batches are fixed parts of the data set; it need not be whole.
"""

from __future__ import annotations

import math

from privctl.accounting import gaussian
from privctl.accounting.passes import participations
from privctl.domain.checks import at_least, fraction, positive, probability

#: Shifts beyond this have an epsilon that floats cannot hold.
_MOST_SHIFT = 1e150
_LOG_MOST_SHIFT = math.log(_MOST_SHIFT)


def poster_naive_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's k sqrt(2 ln(1.25 k / delta)) / epsilon: k classical Gaussians under basic composition.

    The poster omits two conditions. Batches must be fixed parts of the data visited in turn, with k a whole number:
    with Poisson batches an example may be seen more often. And epsilon / k must be below 1, where the classical
    Gaussian is a theorem: see ``poster_naive_holds``. Raises ValueError where k is too small for the logarithm.
    """
    positive("epsilon", epsilon)
    return _poster_naive_product(sample_rate, steps, delta) / epsilon


def poster_naive_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The epsilon that ``poster_naive_noise_multiplier`` claims for a noise multiplier."""
    positive("noise_multiplier", noise_multiplier)
    return _poster_naive_product(sample_rate, steps, delta) / noise_multiplier


def poster_naive_holds(epsilon: float, sample_rate: float, steps: int) -> bool:
    """Whether epsilon / k is below 1 and no example takes part more than k times, as the poster's formula needs.

    Assumes shuffled passes, where k = sample_rate * steps is whole only if the batches divide the data set. No formula
    holds where it claims an infinite epsilon.
    """
    if math.isinf(epsilon):
        return False
    positive("epsilon", epsilon)
    expected = _participations(sample_rate, steps)
    return participations(sample_rate, steps) <= expected * (1 + 1e-9) and epsilon < expected


def poster_advanced_noise_multiplier_as_printed(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's 'advanced' noise read literally: a participation gets eps' = epsilon 2 sqrt(2 k ln(1/delta'')).

    It multiplies where it should divide: one participation may then spend far more than all of them together, and the
    noise falls as the number of participations grows. delta is split in halves: delta'' = delta / 2, and
    delta / (2 k) for a participation's classical Gaussian. Not a bound.
    """
    positive("epsilon", epsilon)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base / (epsilon * factor)


def poster_advanced_epsilon_as_printed(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The epsilon that the literal reading claims for a noise multiplier. Not a bound."""
    positive("noise_multiplier", noise_multiplier)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base / noise_multiplier / factor


def poster_advanced_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's 'advanced' noise with the division put right: eps' = epsilon / (2 sqrt(2 k ln(1/delta''))).

    A theorem for total epsilon below 1 (Dwork and Roth 2014, corollary 3.21), on fixed batches; used above 1 it drops
    the term k eps' (e^eps' - 1), and it is then no bound. delta is split as for the literal reading.
    """
    positive("epsilon", epsilon)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base * factor / epsilon


def poster_advanced_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The epsilon that ``poster_advanced_noise_multiplier`` claims for a noise multiplier."""
    positive("noise_multiplier", noise_multiplier)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base * factor / noise_multiplier


def clt_shift(noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """The shift mu = q sqrt(T (e^(1/sigma^2) - 1)), the Gaussian that T sampled steps tend to; inf where it overflows.

    Bu, Dong, Long and Su 2020, "Deep Learning with Gaussian Differential Privacy": the limit T -> infinity
    at constant q sqrt(T). At any finite T the truth may lie on either side, so this is an estimate, NOT a bound; it is
    most wrong for little noise and few, rare participations.
    """
    positive("noise_multiplier", noise_multiplier)
    probability("sample_rate", sample_rate)
    at_least("steps", steps, 1)
    if sample_rate == 0:
        return 0.0
    precision = (1 / noise_multiplier) ** 2 if noise_multiplier > 1 / _MOST_SHIFT else math.inf
    if precision > 1:
        log_shift = math.log(sample_rate) + math.log(steps) / 2 + precision / 2 + math.log(-math.expm1(-precision)) / 2
        return math.exp(log_shift) if log_shift <= _LOG_MOST_SHIFT else math.inf
    # expm1(x) is x to rounding for small x, and 1 / sigma does not underflow as its square does.
    root = math.sqrt(math.expm1(precision)) if precision > 1e-200 else 1 / noise_multiplier
    return sample_rate * math.sqrt(steps) * root


def clt_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon at ``delta`` of the Gaussian with ``clt_shift``: an estimate, NOT a bound.

    Example: (1, 0.01, 1000, 1e-5) gives 1.6177118, where 1.778 is certainly exceeded.
    """
    fraction("delta", delta)
    shift = clt_shift(noise_multiplier, sample_rate, steps)
    return gaussian.epsilon_at(delta, shift) if shift < math.inf else math.inf


def clt_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The noise multiplier at which ``clt_epsilon`` is ``epsilon``. NOT enough noise in general.

    Raises ValueError at ``sample_rate`` 0, where any noise would do.
    """
    positive("epsilon", epsilon)
    fraction("delta", delta)
    probability("sample_rate", sample_rate)
    at_least("steps", steps, 1)
    if sample_rate == 0:
        raise ValueError("sample_rate is 0; nothing is published about the data and no noise multiplier follows")
    ratio = gaussian.shift_at(epsilon, delta) / math.sqrt(steps) / sample_rate
    if ratio > _MOST_SHIFT:
        return 1 / math.sqrt(2 * math.log(ratio))
    if ratio < 1 / _MOST_SHIFT:
        return 1 / ratio if ratio > 0 else math.inf
    return 1 / math.sqrt(math.log1p(ratio * ratio))


def _participations(sample_rate: float, steps: int) -> float:
    probability("sample_rate", sample_rate)
    at_least("steps", steps, 1)
    return sample_rate * steps


def _poster_naive_product(sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon * sigma in the poster's naive formula."""
    participations = _participations(sample_rate, steps)
    fraction("delta", delta)
    if 1.25 * participations <= delta:
        raise ValueError(
            f"sample_rate * steps is {participations:g}; "
            f"the formula has no value at so few participations and delta {delta}"
        )
    return participations * math.sqrt(2 * (math.log(1.25 * participations) - math.log(delta)))


def _poster_advanced_terms(sample_rate: float, steps: int, delta: float) -> tuple[float, float]:
    """The classical Gaussian's sqrt(2 ln(1.25 * 2 k / delta)), and 2 sqrt(2 k ln(2 / delta))."""
    participations = _participations(sample_rate, steps)
    fraction("delta", delta)
    if 2.5 * participations <= delta:
        raise ValueError(
            f"sample_rate * steps is {participations:g}; "
            f"the formula has no value at so few participations and delta {delta}"
        )
    base = math.sqrt(2 * (math.log(2.5 * participations) - math.log(delta)))
    return base, 2 * math.sqrt(2 * participations * (math.log(2) - math.log(delta)))
