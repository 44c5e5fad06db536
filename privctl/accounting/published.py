"""Published formulas that are not bounds, or not where they are used.

They are shown next to a bound and never replace one. Sigma is the noise multiplier: noise standard deviation /
sensitivity. Epsilon is inf if it overflows. ``participations`` is k = sample_rate * steps, the number of times an
example is used if batches are fixed parts of the data set; it need not be an integer.
"""

from __future__ import annotations

import math

from privctl.accounting import gaussian
from privctl.accounting.passes import participations
from privctl.domain.checks import at_least, fraction, positive, probability

#: For larger shifts, epsilon overflows.
_MOST_SHIFT = 1e150
_LOG_MOST_SHIFT = math.log(_MOST_SHIFT)


def poster_naive_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's k sqrt(2 ln(1.25 k / delta)) / epsilon: k classical Gaussians under basic composition.

    The poster omits two conditions. Batches must be fixed parts of the data visited in turn, with k a whole number:
    with Poisson batches an example may be used more often. And epsilon / k must be below 1, where the classical
    Gaussian bound is proved: see ``poster_naive_holds``. Raises ValueError if k is too small for the logarithm.
    """
    positive("epsilon", epsilon)
    return _poster_naive_product(sample_rate, steps, delta) / epsilon


def poster_naive_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The epsilon that ``poster_naive_noise_multiplier`` claims for a noise multiplier."""
    positive("noise_multiplier", noise_multiplier)
    return _poster_naive_product(sample_rate, steps, delta) / noise_multiplier


def poster_naive_holds(epsilon: float, sample_rate: float, steps: int) -> bool:
    """Whether epsilon / k is below 1 and no example takes part more than k times, as the poster's formula requires.

    Assumes shuffled passes, where k = sample_rate * steps is whole only if the batch size divides the data set. False
    for an infinite epsilon.
    """
    if math.isinf(epsilon):
        return False
    positive("epsilon", epsilon)
    expected = _participations(sample_rate, steps)
    return participations(sample_rate, steps) <= expected * (1 + 1e-9) and epsilon < expected


def poster_advanced_noise_multiplier_as_printed(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's 'advanced' noise as printed: a participation gets eps' = epsilon 2 sqrt(2 k ln(1/delta'')).

    It multiplies where it should divide: one participation may then spend far more than all of them together, and the
    noise decreases as the number of participations grows. delta is split in halves: delta'' = delta / 2, and
    delta / (2 k) for the classical Gaussian of each participation. Not a bound.
    """
    positive("epsilon", epsilon)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base / (epsilon * factor)


def poster_advanced_epsilon_as_printed(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The epsilon that the formula as printed claims for a noise multiplier. Not a bound."""
    positive("noise_multiplier", noise_multiplier)
    base, factor = _poster_advanced_terms(sample_rate, steps, delta)
    return base / noise_multiplier / factor


def poster_advanced_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The poster's 'advanced' noise with the division corrected: eps' = epsilon / (2 sqrt(2 k ln(1/delta''))).

    A theorem for total epsilon below 1 (Dwork and Roth 2014, corollary 3.21), on fixed batches; above 1 the dropped
    term k eps' (e^eps' - 1) matters, and it is not a bound. delta is split as for the formula as printed.
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
    """The shift mu = q sqrt(T (e^(1/sigma^2) - 1)) of the limiting Gaussian of T sampled steps; inf if it overflows.

    Bu, Dong, Long and Su 2020, "Deep Learning with Gaussian Differential Privacy": the limit T -> infinity
    at constant q sqrt(T). At finite T the truth may be on either side, so this is an estimate, NOT a bound; it is
    least accurate for little noise and few, rare participations.
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
    # For small x, expm1(x) rounds to x, and 1 / sigma does not underflow as its square does.
    root = math.sqrt(math.expm1(precision)) if precision > 1e-200 else 1 / noise_multiplier
    return sample_rate * math.sqrt(steps) * root


def clt_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon at ``delta`` of the Gaussian with ``clt_shift``: an estimate, NOT a bound.

    Example: (1, 0.01, 1000, 1e-5) gives 1.6177118, but the true epsilon is above 1.778.
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
    """sqrt(2 ln(1.25 * 2 k / delta)) of the classical Gaussian, and 2 sqrt(2 k ln(2 / delta))."""
    participations = _participations(sample_rate, steps)
    fraction("delta", delta)
    if 2.5 * participations <= delta:
        raise ValueError(
            f"sample_rate * steps is {participations:g}; "
            f"the formula has no value at so few participations and delta {delta}"
        )
    base = math.sqrt(2 * (math.log(2.5 * participations) - math.log(delta)))
    return base, 2 * math.sqrt(2 * participations * (math.log(2) - math.log(delta)))
