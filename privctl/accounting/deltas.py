"""Suitable deltas for a number of records. Imports no accountant, as ``privctl noise`` needs none."""

from __future__ import annotations

import math


def default_delta(examples: int) -> float:
    """1 / examples^1.1, somewhat below 1 / examples, and at most 1e-5."""
    return float(min(1e-5, examples**-1.1))


def delta_warning(delta: float, records: int) -> str | None:
    """A warning if ``delta`` is not well below 1 / ``records``.

    None if it is at most a tenth of that, or at most the default.
    """
    if delta <= max(0.1 / records, default_delta(records)):
        return None
    near = "at least" if delta >= 1 / records else "not far below"
    better = 10.0 ** math.floor(math.log10(0.1 / records))
    return (
        f"delta {delta:g} is {near} 1 / {records} records, so that publishing each record with probability delta "
        f"would meet it; choose a delta such as {better:g}"
    )
