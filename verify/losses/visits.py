"""How often a record is used in passes over the data, by counting the steps at which passes begin.

A rate is a float, so it may stand for any batch size / data set size that rounds to it. The ends of that interval give
the number of batches in a pass, without the last, smaller batch (the shortest pass) or with it.
"""

from __future__ import annotations

import math
from fractions import Fraction


def visits(rate: float, steps: int) -> tuple[int, int]:
    """The least and the largest possible number of visits of the most visited record in ``steps`` steps.

    The first step begins a pass. Example: with batches of 30 out of 100 and 30 steps, 8 if the last ten records make a
    batch, and 10 if they are dropped.
    """
    if rate == 0:
        return 0, 0
    below, above = (
        (Fraction(rate) + Fraction(math.nextafter(rate, towards))) / 2 if towards != rate else Fraction(rate)
        for towards in (0.0, 1.0)
    )
    # The smallest rate gives the largest number of whole batches in a pass.
    without_last = (Fraction(1) / below).__floor__()
    with_last = (Fraction(1) / above).__ceil__()
    lengths = sorted((without_last, with_last))
    fewest, most = (len(range(0, steps, length)) for length in reversed(lengths))
    return fewest, most
