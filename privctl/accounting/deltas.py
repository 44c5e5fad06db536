"""Suitable deltas for a number of examples: records, or users. Imports no accountant; ``privctl noise`` needs none."""

from __future__ import annotations

import math


def default_delta(examples: int) -> float:
    """1 / examples^1.1, somewhat below 1 / examples, and at most 1e-5."""
    return float(min(1e-5, examples**-1.1))


def delta_warning(delta: float, examples: int) -> str | None:
    """A warning if ``delta`` is not well below 1 / ``examples``.

    None if it is at most a tenth of that, or at most the default.
    """
    if delta <= max(0.1 / examples, default_delta(examples)):
        return None
    near = "at least" if delta >= 1 / examples else "not far below"
    better = 10.0 ** math.floor(math.log10(0.1 / examples))
    return (
        f"delta {delta:g} is {near} 1 / {examples} examples, so that publishing each with probability delta "
        f"would meet it; choose a delta such as {better:g}"
    )
