"""The formulas for the noise published in the DP-Weights paper. None of them is a valid bound."""

from __future__ import annotations

import math

from privctl.domain.mechanism import ClippedTraining, Formula


def shift(training: ClippedTraining) -> float:
    """The "sensitivity" of the paper, E lr C / (N B)."""
    visits = training.epochs / training.dataset_size
    return visits * (training.learning_rate / training.batch_size) * training.clip_norm


def stddev(training: ClippedTraining, epsilon: float, delta: float, formula: Formula) -> float:
    """The paper's noise standard deviation, by Algorithm 2 (section 8.1) or by Equation 1.

    Example: E=10, lr=5e-5, C=1, N=1000, B=5, epsilon 1, delta 1e-6 give 0.00976052988025269 by Algorithm 2.
    """
    tail = 0.009760 / math.pow(epsilon, 0.078008)
    log_term = 2 * (math.log(1.25) - math.log(delta))
    if formula is Formula.ALGORITHM_2:
        return math.sqrt(log_term) * shift(training) / epsilon + tail
    return math.sqrt(log_term * shift(training) / epsilon + tail)
