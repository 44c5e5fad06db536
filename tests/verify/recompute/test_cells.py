"""The losses of a sampled step against 50 digits, near 0 and where they are large."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from verify.losses import cells


@pytest.mark.parametrize("stddev", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("weights", [(0.99, 0.01), (1e-10, 1 - 1e-10), (0.5, 0.3, 0.2)])
def test_losses_are_exact_near_zero_and_where_they_are_large(weights: tuple[float, ...], stddev: float) -> None:
    steps = np.arange(len(weights)) / stddev
    near = steps[1] / 2 + np.array([-1e-9, 1e-9])
    outputs = np.concatenate([np.linspace(-12, 12 + steps[-1], 41), near, [-400, 400]])
    losses = cells._loss(outputs, steps, np.log(weights))
    with mpmath.workdps(50):
        # The weights as their logarithms hold them, or those of a mixture that adds up to 1 where the loss is near 0.
        total = mpmath.fsum(map(mpmath.mpf, weights))
        for x, found in zip(outputs, losses, strict=True):
            parts = [(mpmath.mpf(w) / total, mpmath.mpf(float(a))) for w, a in zip(weights, steps, strict=True)]
            exact = mpmath.log(mpmath.fsum(w * mpmath.exp(a * float(x) - a**2 / 2) for w, a in parts))
            scale = max(1.0, abs(float(steps[-1] * x)) + float(steps[-1]) ** 2) if abs(exact) > 0.7 else abs(exact)
            assert abs(found - exact) <= 4e-15 * scale + 1e-16 * abs(float(steps[-1]))
