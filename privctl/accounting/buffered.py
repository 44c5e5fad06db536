"""Buffered linear Toeplitz (BLT) matrices: noise that is correlated over all steps, by few buffers.

C has c_0 = ``first`` and c_t = sum_j weights_j decays_j^(t-1). Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024,
"Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy", section 4. Passes in one order are the
participation of Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization", theorem 2: the first record of a
pass moves the rows the most. ``privctl.accounting.buffered_search`` finds the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.events import BufferedGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedMatrix:
    """C of ``BufferedGaussian``, which has the same fields."""

    first: float
    weights: tuple[float, ...]
    decays: tuple[float, ...]


def sensitivity(matrix: BufferedMatrix, steps_per_pass: int, steps: int) -> float:
    """A bound from above on how far one record moves the rows of C X, in clip norms; within 1e-9 of what it does.

    The record is in the first step of each pass. Its contributions may point anywhere: as C has no negative entry, the
    rows move the farthest where they all point the same way.
    """
    buffers, squares = [0.0] * len(matrix.decays), []
    terms = list(zip(matrix.weights, matrix.decays, strict=True))
    for step in range(steps):
        taking_part = float(step % steps_per_pass == 0)
        row = matrix.first * taking_part + sum(w * held for (w, _), held in zip(terms, buffers, strict=True))
        buffers = [decay * held + taking_part for (_, decay), held in zip(terms, buffers, strict=True)]
        squares.append(row * row)
    # Every number is a sum of products that are not negative, each of fewer than 2 (steps + 4) roundings.
    return math.sqrt(math.fsum(squares)) * (1 + 4 * (steps + 16) * 2.0**-53)


def prefix_error(matrix: BufferedMatrix, steps: int) -> float:
    """Root mean square, over ``steps`` prefix sums, of their noise's standard deviation, for Z of variance 1.

    The first column of A C^-1, which is Toeplitz, is what C^-1 makes of ones.
    """
    buffers, total = [0.0] * len(matrix.decays), 0.0
    terms = list(zip(matrix.weights, matrix.decays, strict=True))
    for step in range(steps):
        entry = (1 - sum(weight * held for (weight, _), held in zip(terms, buffers, strict=True))) / matrix.first
        buffers = [decay * held + entry for (_, decay), held in zip(terms, buffers, strict=True)]
        total += (1 - step / steps) * entry * entry
    return math.sqrt(total)


def buffered_event(matrix: BufferedMatrix, noise_multiplier: float, sample_rate: float, steps: int) -> BufferedGaussian:
    """The event of so many steps with noise that ``matrix`` correlates; raises ValueError as the event does."""
    return BufferedGaussian(
        noise_multiplier=noise_multiplier,
        first=matrix.first,
        weights=matrix.weights,
        decays=matrix.decays,
        sample_rate=sample_rate,
        steps=steps,
    )
