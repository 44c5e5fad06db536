"""Theorems that docs/theory.md tabulates and tests compare with, and that no command needs."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left

from privctl.accounting import three_point as pair
from privctl.accounting.composition import advanced_as_printed
from privctl.accounting.mutual_information import LN2
from privctl.accounting.randomized_response import three_point
from privctl.domain.checks import at_least, fraction


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, theorem 3.22): a bound for epsilon below 1 only."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def advanced_tanh(epsilon0: float, steps: int, slack: float) -> float:
    """As ``advanced``, with a step's mean loss bounded by epsilon0 tanh(epsilon0 / 2) (Kairouz et al., theorem 3.4).

    Example: 1000 steps of epsilon 1 at slack 1e-8 give 654.06.
    """
    return advanced_as_printed(epsilon0, steps, slack) + steps * epsilon0 * math.tanh(epsilon0 / 2)


def optimal(epsilon0: float, delta0: float, steps: int, delta: float) -> float:
    """The smallest epsilon at total ``delta`` that holds for every composition of (epsilon0, delta0)-DP steps.

    Raises ValueError where the steps' ``delta0`` alone exceed ``delta``, and for more than a billion steps.
    Example: 1000 steps of (1, 1e-8) at 1.001e-5 give 613.53.
    """
    fraction("delta0", delta0, zero=True)
    fraction("delta", delta)
    # 1 - (1 - delta) / (1 - delta0)^k, without cancellation; rounded down.
    spent, allowed = -steps * math.log1p(-delta0), -math.log1p(-delta)
    slack = -math.expm1(spent - allowed) - 4 * sys.float_info.epsilon * spent
    if spent > allowed:
        total = -math.expm1(-spent)
        raise ValueError(
            f"delta is {delta}; {steps} steps of delta {delta0} alone make {total:.6g}, so no epsilon holds"
        )
    return pair.epsilon_at(max(0.0, slack), epsilon0, 1.0, steps)


def catastrophic_delta(epsilon: float) -> float:
    """The probability d with which a mechanism of ``epsilon`` nats may give an example away; 1 from ln 2 nats on.

    It says "yes" with probability d for one of two neighbours and never for the other, a Z-channel of capacity
    ln(1 + d (1 - d)^((1 - d) / d)) nats. So no (epsilon', delta)-DP with delta below d follows, whatever epsilon'.
    """
    at_least("epsilon", epsilon, 0)
    if epsilon == 0 or epsilon >= LN2:
        return float(epsilon > 0)
    low, high = math.expm1(epsilon), min(1.0, math.e * math.expm1(epsilon))
    while (middle := low + (high - low) / 2) not in (low, high):
        low, high = (low, middle) if _z_capacity(middle) > epsilon else (middle, high)
    return low


def _z_capacity(d: float) -> float:
    return math.log1p(d * math.exp((1 - d) / d * math.log1p(-d))) if d < 1 else LN2


def exact_epsilon(epsilon0: float, bits: int, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon of ``steps`` steps at ``delta``, rounded up; at most ``steps`` * e1.

    Exact for the composed pair. Raises ValueError for arguments out of range and for more than a billion steps.
    Example: 1000 bits of epsilon0 1, one a step, rate 0.005, delta 1e-5 give 0.72041535.
    """
    fraction("delta", delta)
    loss, weight = three_point(epsilon0, bits, sample_rate)
    return pair.epsilon_at(delta, loss, weight, steps)


def one_bit_epsilon(epsilon0: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon of ``steps`` steps of one bit each at ``delta``, rounded up: no smaller number is true.

    Each order, with the example against without it and the reverse, is composed on its own, with two possible losses a
    step. Raises ValueError as ``exact_epsilon``, above which it never lies.
    Example: 1000 bits of epsilon0 1, rate 0.005, delta 1e-5 give 0.59794354.
    """
    fraction("delta", delta)
    gain, _ = three_point(epsilon0, 1, sample_rate)
    bound = exact_epsilon(epsilon0, 1, sample_rate, steps, delta)
    if bound == 0 or sample_rate == 1:
        return bound
    loss = -math.log1p(sample_rate * math.expm1(-epsilon0))
    kept = 1 / (1 + math.exp(-epsilon0))
    flipped = kept * math.exp(-epsilon0)
    present = sample_rate * kept + (1 - sample_rate) * flipped
    absent = sample_rate * flipped + (1 - sample_rate) * kept
    orders = ((gain, loss, present, absent), (loss, gain, kept, flipped))
    worst = max(_epsilon_of_order(up, down, (p, q, 0.0), steps, delta) for up, down, p, q in orders)
    return min(bound, worst + 2.0**-48 * steps * (gain + loss))


def _epsilon_of_order(up: float, down: float, shares: tuple[float, float, float], steps: int, delta: float) -> float:
    """Epsilon when a step's loss is ``up`` with the first of ``shares`` and -``down`` otherwise."""
    spacing, most = up + down, steps * up

    def log_delta_of(epsilon: float) -> float:
        threshold = epsilon + steps * down
        return pair.log_tail(threshold, spacing, shares, steps) if threshold < steps * spacing else -math.inf

    return pair.smallest_epsilon(log_delta_of, delta, most) if shares[0] > 0 else 0.0


def most_steps(epsilon: float, delta: float, epsilon0: float, bits: int, sample_rate: float) -> int:
    """The largest number of steps that stay (``epsilon``, ``delta``)-DP: 0 where one is too many.

    Counts no further than ``MOST_STEPS``. Raises ValueError for arguments out of range.
    Example: epsilon 1, delta 1e-5, epsilon0 1, one bit, rate 0.005 give 1818.
    """
    at_least("epsilon", epsilon, 0)
    fraction("delta", delta)
    loss, weight = three_point(epsilon0, bits, sample_rate)

    def meets(steps: int) -> bool:
        return pair.log_delta(epsilon, loss, weight, steps) <= math.log(delta)

    low, high = 0, 1
    while meets(high):
        if high == pair.MOST_STEPS:
            return high
        low, high = high, min(4 * high, pair.MOST_STEPS)
    return low + bisect_left(range(low + 1, high), True, key=lambda steps: not meets(steps))
