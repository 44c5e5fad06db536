"""Buffered linear Toeplitz (BLT) matrices: noise correlated over all steps with few buffers.

C has c_0 = ``first`` and c_t = sum_j weights_j decays_j^(t-1). Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024,
"Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy", section 4. Passes in a fixed order are
the participation pattern of Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization", theorem 2: the records
in the first step of a pass have the largest sensitivity. ``privctl.accounting.buffered_search`` finds the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.events import BufferedGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedMatrix:
    """The matrix C of ``BufferedGaussian``, with the same fields."""

    first: float
    weights: tuple[float, ...]
    decays: tuple[float, ...]


def sensitivity(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> float:
    """An upper bound on the L2 sensitivity of C X to one record, in clip norms; tight to 1e-9.

    The worst record is in the first step of each pass. As C has no negative entries, C X changes most if all
    contributions of the record have the same direction.
    """
    buffers, squares = [0.0] * len(matrix.decays), []
    terms = list(zip(matrix.weights, matrix.decays, strict=True))
    for step in range(steps):
        taking_part = float(step % steps_per_pass == 0)
        row = matrix.first * taking_part + sum(w * buffer for (w, _), buffer in zip(terms, buffers, strict=True))
        buffers = [decay * buffer + taking_part for (_, decay), buffer in zip(terms, buffers, strict=True)]
        squares.append(row * row)
    # Every number is a sum of non-negative products, each with fewer than 2 (steps + 4) roundings.
    return math.sqrt(math.fsum(squares)) * (1 + 4 * (steps + 16) * 2.0**-53)


def prefix_error(matrix: BufferedMatrix, steps: int) -> float:
    """Root mean square of the noise's standard deviation over the ``steps`` prefix sums, for Z of variance 1.

    A C^-1 is Toeplitz; its first column is C^-1 times the vector of ones.
    """
    buffers, total = [0.0] * len(matrix.decays), 0.0
    terms = list(zip(matrix.weights, matrix.decays, strict=True))
    for step in range(steps):
        entry = (1 - sum(weight * buffer for (weight, _), buffer in zip(terms, buffers, strict=True))) / matrix.first
        buffers = [decay * buffer + entry for (_, decay), buffer in zip(terms, buffers, strict=True)]
        total += (1 - step / steps) * entry * entry
    return math.sqrt(total)


def buffered_event(matrix: BufferedMatrix, noise_multiplier: float, sample_rate: float, steps: int) -> BufferedGaussian:
    """The event of ``steps`` steps with noise correlated by ``matrix``; raises ValueError as the event does."""
    return BufferedGaussian(
        noise_multiplier=noise_multiplier,
        first=matrix.first,
        weights=matrix.weights,
        decays=matrix.decays,
        sample_rate=sample_rate,
        steps=steps,
    )
