"""Randomized response on bits of Poisson batches, composed exactly over steps.

One step publishes m bits computed from one batch, each kept with probability a = e^epsilon0 / (1 + e^epsilon0). An
example is in the batch with probability s, and may then flip every bit. Without it the number of kept bits is
Bin(m, 1 - a), with it s Bin(m, a) + (1 - s) Bin(m, 1 - a). In both orders the step's delta is convex in e^epsilon, at
most s times the total variation distance at epsilon 0, and 0 from e1 = ln(1 + s (e^(m epsilon0) - 1)) on. So it lies
below the chord between these two points, which is the delta of a loss of +e1, 0 or -e1: the smallest pair that
dominates both orders. Composing that pair is sound, even for adaptively chosen bits; it exceeds the true value only
because both orders are treated alike.
"""

from __future__ import annotations

import math

import numpy as np

from privctl.accounting.composition import amplified_epsilon
from privctl.domain.checks import at_least, positive, probability

#: The most bits published together in one step.
MOST_BITS = 10**6
#: Below this, reciprocals overflow; the pair's weight is then set to 1, which is always sound.
_TINY = 1e-300


def require_few_enough(bits: int) -> None:
    """Raise ValueError for more than ``MOST_BITS`` bits per step, which would take too much memory."""
    if bits > MOST_BITS:
        raise ValueError(f"bits is {bits}; at most {MOST_BITS:,} bits a step are offered")


def three_point(epsilon0: float, bits: int, sample_rate: float) -> tuple[float, float]:
    """(e1, w) of the pair that dominates one step, with w rounded up.

    The loss is +e1, 0, -e1 with probabilities (w A, 1 - w, w (1 - A)), A = 1 / (1 + exp(-e1)). ``epsilon0`` is the
    log-odds of keeping a bit. Raises ValueError for arguments out of range.
    Example: epsilon0 1, one bit, rate 0.005 give (0.008554713, 0.540193429).
    """
    positive("epsilon0", epsilon0)
    at_least("bits", bits, 1)
    probability("sample_rate", sample_rate)
    require_few_enough(bits)
    whole = bits * epsilon0
    positive("bits * epsilon0", whole)
    if whole < _TINY:
        return amplified_epsilon(whole, sample_rate), 1.0
    distance, slack = _total_variation(epsilon0, bits)
    # s / tanh(e1 / 2) written without e1, which is tiny for small s.
    inverse = 2 * math.exp(-whole) / -math.expm1(-whole)
    weight = distance * (sample_rate + inverse) * (1 + slack)
    return amplified_epsilon(whole, sample_rate), min(1.0, weight)


def _total_variation(epsilon0: float, bits: int) -> tuple[float, float]:
    """Total variation distance between Bin(m, a) and Bin(m, 1 - a), and a bound on its relative error.

    The sum over j > m / 2 of C(m, j) (a (1 - a))^(m/2) 2 sinh((j - m/2) epsilon0), whose terms are all positive.
    """
    from scipy.special import gammaln

    if bits == 1:
        return math.tanh(epsilon0 / 2), 2.0**-50
    kept = np.arange(bits // 2 + 1, bits + 1, dtype=np.float64)
    # For j kept bits: a^j (1 - a)^(m - j) - (1 - a)^j a^(m - j).
    log_share = -math.log1p(math.exp(-epsilon0))
    logs = gammaln(bits + 1) - gammaln(kept + 1) - gammaln(bits - kept + 1)
    logs += bits * log_share - (bits - kept) * epsilon0
    sums = np.exp(logs) * -np.expm1(-(2 * kept - bits) * epsilon0)
    slack = 2.0**-50 * (4 + float(gammaln(bits + 1)) + bits * min(1.0, -log_share) + 8 * math.sqrt(bits))
    return min(1.0, float(np.sum(sums))), slack
