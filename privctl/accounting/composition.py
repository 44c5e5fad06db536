"""Composition of many private steps of which only epsilon and delta are known.

The theorems hold for adaptively chosen steps. Here k is the number of steps, each (epsilon0, delta0)-DP, and ``slack``
is the delta spent on composition itself; the total delta is k * delta0 + slack, or a little less.

- basic: k epsilon0 (Dwork, Kenthapadi, McSherry, Mironov and Naor 2006).
- advanced: epsilon0 sqrt(2 k ln(1/slack)) + k epsilon0 (e^epsilon0 - 1) (Dwork, Rothblum and Vadhan 2010, theorem
  III.3).
- optimal: the best bound that follows from the steps' epsilon0 and delta0 (Kairouz, Oh and Viswanath 2015, theorem
  3.3).

For a sampled Gaussian, the steps' parameters come from the exact Gaussian and amplification by sampling, and delta is
split between the steps and the slack so that the result is smallest. An accountant that uses the whole privacy loss
distribution of a step needs only a fraction of the noise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from privctl.accounting import gaussian, three_point
from privctl.accounting.brackets import threshold_bracket
from privctl.domain.checks import at_least, fraction, positive, probability

#: The range of noise multipliers that calibration searches.
LEAST_NOISE, MOST_NOISE = 1e-9, 1e9

#: For larger shifts, epsilon overflows.
_MOST_SHIFT = 1e150
#: For larger numbers, exp overflows.
_MOST_EXPONENT = 700.0
_GOLDEN = (math.sqrt(5) - 1) / 2
#: Range of the log-odds over which the split of delta is searched.
_LOG_ODDS = (-9.0, 30.0)

_Compose = Callable[[float, int, float], float]


def advanced(epsilon0: float, steps: int, slack: float) -> float:
    """Epsilon of ``steps`` steps at delta ``steps * delta0 + slack``, with both terms; inf if it overflows.

    Example: 1000 steps of epsilon 1 at slack 1e-8 give 1910.22.
    """
    return advanced_as_printed(epsilon0, steps, slack) + steps * epsilon0 * _expm1(epsilon0)


def advanced_as_printed(epsilon0: float, steps: int, slack: float) -> float:
    """Only the first term of ``advanced``, as often quoted. NOT a bound: false unless steps * epsilon0^2 is small.

    Example: 1000 steps of epsilon 1 at slack 1e-8 give 191.94, but no bound below 613.53 holds for every mechanism.
    """
    _check_steps(epsilon0, steps)
    fraction("slack", slack)
    return epsilon0 * math.sqrt(-2 * steps * math.log(slack))


def _optimal_for_slack(epsilon0: float, steps: int, slack: float) -> float:
    return three_point.epsilon_at(slack, epsilon0, 1.0, steps)


def amplified_epsilon(epsilon0: float, sample_rate: float) -> float:
    """Epsilon of an epsilon0-DP step on a Poisson sample of rate q = ``sample_rate``: ln(1 + q (e^epsilon0 - 1)).

    For add-or-remove adjacency (Li, Qardaji and Su 2012, theorem 1). The step's delta is multiplied by q.
    """
    at_least("epsilon0", epsilon0, 0)
    probability("sample_rate", sample_rate)
    if sample_rate in (0, 1):
        return epsilon0 * sample_rate
    if epsilon0 <= _MOST_EXPONENT:
        return math.log1p(sample_rate * math.expm1(epsilon0))
    high = math.log(sample_rate) + epsilon0
    return max(high, 0.0) + math.log1p((1 - sample_rate) * math.exp(-abs(high)))


def _unamplified_epsilon(epsilon1: float, sample_rate: float) -> float:
    """The epsilon0 for which ``amplified_epsilon`` is ``epsilon1``; ``sample_rate`` must be above 0."""
    if epsilon1 <= 1:
        return math.log1p(math.expm1(epsilon1) / sample_rate)
    return epsilon1 + math.log1p(-(1 - sample_rate) * math.exp(-epsilon1)) - math.log(sample_rate)


def naive_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon of a Poisson-sampled Gaussian at ``delta`` by amplification and basic composition.

    inf if it overflows. Raises ValueError for arguments out of range.
    Example: (1, 0.01, 1000, 1e-5) gives 839.4.
    """
    _check(sample_rate, steps, delta)
    positive("noise_multiplier", noise_multiplier)
    return steps * _step_epsilon(noise_multiplier, sample_rate, delta / steps)


def advanced_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """As ``naive_epsilon``, by the better of basic and advanced composition with the best split of delta.

    Example: (1, 0.005, 1000, 1e-5) gives 335.35.
    """
    naive = naive_epsilon(noise_multiplier, sample_rate, steps, delta)
    return min(naive, _best_over_split(_epsilon_by(advanced, noise_multiplier, sample_rate, steps, delta)))


def optimal_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """As ``naive_epsilon``, by optimal composition with the best split of delta; never above ``advanced_epsilon``."""
    naive = naive_epsilon(noise_multiplier, sample_rate, steps, delta)
    if steps == 1 or not 0 < naive < math.inf:
        return naive
    by_advanced = _best_over_split(_epsilon_by(advanced, noise_multiplier, sample_rate, steps, delta))
    by_optimal = _best_over_split(
        _epsilon_by(_optimal_for_slack, noise_multiplier, sample_rate, steps, delta), points=9, tolerance=0.03
    )
    return min(naive, by_advanced, by_optimal)


def naive_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """The smallest noise multiplier, at least ``LEAST_NOISE``, for which ``naive_epsilon`` is at most ``epsilon``.

    Raises ValueError if more than ``MOST_NOISE`` would be needed.
    """
    _check(sample_rate, steps, delta)
    positive("epsilon", epsilon)
    sigma = _noise_for_step(epsilon / steps, sample_rate, delta / steps)
    return _raise_until_met(sigma, epsilon, lambda sigma: naive_epsilon(sigma, sample_rate, steps, delta))


def advanced_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """As ``naive_noise_multiplier``, for ``advanced_epsilon``."""
    _check(sample_rate, steps, delta)
    positive("epsilon", epsilon)

    def fits(epsilon1: float, slack: float) -> bool:
        return advanced(epsilon1, steps, slack) <= epsilon

    least = min(
        _noise_for_step(epsilon / steps, sample_rate, delta / steps),
        _best_over_split(_noise_by(fits, epsilon, sample_rate, steps, delta)),
    )
    return _raise_until_met(least, epsilon, lambda sigma: advanced_epsilon(sigma, sample_rate, steps, delta))


def optimal_noise_multiplier(epsilon: float, sample_rate: float, steps: int, delta: float) -> float:
    """As ``naive_noise_multiplier``, for ``optimal_epsilon``."""
    _check(sample_rate, steps, delta)
    positive("epsilon", epsilon)

    def fits(epsilon1: float, slack: float) -> bool:
        return three_point.log_delta(epsilon, epsilon1, 1.0, steps) <= math.log(slack)

    least = _best_over_split(_noise_by(fits, epsilon, sample_rate, steps, delta), points=9, tolerance=0.03)
    if least > LEAST_NOISE:
        least = min(least, _noise_for_step(epsilon / steps, sample_rate, delta / steps))
    return _raise_until_met(least, epsilon, lambda sigma: optimal_epsilon(sigma, sample_rate, steps, delta))


def _check_steps(epsilon0: float, steps: int) -> None:
    at_least("epsilon0", epsilon0, 0)
    at_least("steps", steps, 1)


def _check(sample_rate: float, steps: int, delta: float) -> None:
    probability("sample_rate", sample_rate)
    at_least("steps", steps, 1)
    fraction("delta", delta)
    if delta / steps < sys.float_info.min:
        raise ValueError(f"delta is {delta}; divided among {steps} steps it is too small for floating point")


def _expm1(x: float) -> float:
    return math.expm1(x) if x <= _MOST_EXPONENT else math.inf


def _step_epsilon(noise_multiplier: float, sample_rate: float, delta: float) -> float:
    """Epsilon of one sampled Gaussian step at ``delta``."""
    if delta >= sample_rate:
        return 0.0
    if noise_multiplier < 1 / _MOST_SHIFT:
        return math.inf
    return amplified_epsilon(gaussian.epsilon_at(delta / sample_rate, 1 / noise_multiplier), sample_rate)


def _noise_for_step(epsilon1: float, sample_rate: float, delta: float) -> float:
    """The noise multiplier that makes one sampled Gaussian step (epsilon1, delta)-DP; 0 if no noise is needed."""
    if delta >= sample_rate:
        return 0.0
    shift = gaussian.shift_at(_unamplified_epsilon(epsilon1, sample_rate), delta / sample_rate)
    return 1 / shift if shift > 0 else math.inf


def _epsilon_by(
    compose: _Compose, noise_multiplier: float, sample_rate: float, steps: int, delta: float
) -> Callable[[float, float], float]:
    """Epsilon as a function of the fraction of delta spent on the steps, and of the rest, which is the slack."""

    def epsilon_at(share: float, rest: float) -> float:
        step = _step_epsilon(noise_multiplier, sample_rate, delta * share / steps)
        return compose(step, steps, delta * rest) if step < math.inf else math.inf

    return epsilon_at


def _noise_by(
    fits: Callable[[float, float], bool], epsilon: float, sample_rate: float, steps: int, delta: float
) -> Callable[[float, float], float]:
    """The noise multiplier as a function of the fraction of delta spent on the steps, and of the rest, the slack.

    ``fits`` says whether steps of a given epsilon compose to at most ``epsilon`` at a given slack.
    """

    def noise_at(share: float, rest: float) -> float:
        if delta * share / steps >= sample_rate:
            return 0.0
        # Steps of epsilon / steps / 1e9 fit with any slack that is a float.
        low, high = math.log(epsilon / steps) - math.log(1e9), math.log(epsilon)
        low, _ = threshold_bracket(lambda x: not fits(math.exp(x), delta * rest), low, high, within=1e-11)
        return _noise_for_step(math.exp(low), sample_rate, delta * share / steps)

    return noise_at


def _best_over_split(value: Callable[[float, float], float], points: int = 40, tolerance: float = 1e-3) -> float:
    """The smallest ``value`` over splits of 1 into two parts: a grid of log-odds, then golden-section search."""

    def at(log_odds: float) -> float:
        return value(1 / (1 + math.exp(-log_odds)), 1 / (1 + math.exp(log_odds)))

    width = (_LOG_ODDS[1] - _LOG_ODDS[0]) / (points - 1)
    grid = [_LOG_ODDS[0] + width * k for k in range(points)]
    values = [at(x) for x in grid]
    best = min(range(points), key=values.__getitem__)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, points - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = at(left), at(right)
    smallest = min(values[best], at_left, at_right)
    while high - low > tolerance:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = at(right)
        smallest = min(smallest, at_left, at_right)
    return smallest


def _raise_until_met(noise_multiplier: float, epsilon: float, epsilon_of: Callable[[float], float]) -> float:
    """``noise_multiplier`` raised by a few rounding errors until ``epsilon_of`` is at most ``epsilon``."""
    sigma, step = max(noise_multiplier, LEAST_NOISE), 1e-13
    while sigma <= MOST_NOISE and epsilon_of(sigma) > epsilon:
        sigma *= 1 + step
        step *= 4
    if sigma > MOST_NOISE:
        raise ValueError(
            f"epsilon is {epsilon}; it needs a noise multiplier above {MOST_NOISE:g}, too much to be useful"
        )
    return sigma
