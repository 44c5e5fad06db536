"""Cells of a pair that dominates every mechanism with a known privacy profile, from deltas at many epsilons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verify.losses.cells import Floats, LossCells

#: Deltas are computed up to the epsilon at which they are about exp(-_LEAST_LOG), or up to _MOST.
_LEAST_LOG, _MOST = 650.0, 590.0


def cells_of_profile(log_delta: Callable[[Floats], Floats], knots: int) -> LossCells:
    """Cells whose masses under Q are the changes of the slope of delta as a function of e^epsilon, made monotone.

    That slope is minus the mass under Q of larger losses. ``log_delta`` gives logs of deltas that hold at epsilons >= 0
    in either order of the neighbours; ``knots`` is the number of epsilons.
    """
    low, high = 0.0, _MOST
    for _ in range(40):
        middle = (low + high) / 2
        tiny = log_delta(np.array([middle]))[0] < -_LEAST_LOG
        low, high = (low, middle) if tiny else (middle, high)
    epsilons = np.linspace(0.0, high, knots)
    deltas = np.exp(log_delta(epsilons)) * (1 + 1e-12)
    # Delta at 0 is at most on the line from any point of the curve to its mirror image.
    deltas[0] = min(deltas[0], float((deltas + (1 - deltas) * np.tanh(epsilons / 2)).min()))
    deltas = np.minimum.accumulate(deltas)
    widths = np.diff(np.expm1(epsilons))
    from scipy.optimize import isotonic_regression  # imported here because the import is slower than most verifications

    slopes = isotonic_regression(np.diff(deltas) / widths, weights=widths).x
    q = np.maximum(np.diff(np.append(slopes, 0.0)), 0.0)
    losses, seen = epsilons[1:][q > 0], q[q > 0]
    p = seen * np.exp(losses)
    infinite = float(deltas[-1])
    rest = np.array([max(0.0, 1 - infinite - p.sum() - seen.sum())])
    ends = np.concatenate([-losses[::-1], [0.0], losses])
    return LossCells(
        low=ends, high=ends, p=np.concatenate([seen[::-1], rest, p]), q=np.concatenate([p[::-1], rest, seen]),
        up=np.zeros(len(ends)), p_infinite=infinite, q_infinite=infinite,
    )  # fmt: skip
