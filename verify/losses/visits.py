"""How often one record is used in passes over the data: by counting the steps at which passes begin.

A rate is a float, so it may stand for any batch size / data set size that rounds to it. The two ends of that interval
give the number of batches in a pass: without the last, smaller one (the shortest pass) or with it.
"""

from __future__ import annotations

import math
from fractions import Fraction


def visits(rate: float, steps: int) -> tuple[int, int]:
    """The fewest and the most visits of the record that is visited most, in ``steps`` steps that begin with a pass.

    Example: batches of 30 out of 100 and 30 steps: 8 where the last ten make a batch, 10 where they are dropped.
    """
    if rate == 0:
        return 0, 0
    below, above = (
        (Fraction(rate) + Fraction(math.nextafter(rate, towards))) / 2 if towards != rate else Fraction(rate)
        for towards in (0.0, 1.0)
    )
    # Of one unit of data, batches of the least share fit most often.
    without_last = (Fraction(1) / below).__floor__()
    with_last = (Fraction(1) / above).__ceil__()
    lengths = sorted((without_last, with_last))
    fewest, most = (len(range(0, steps, length)) for length in reversed(lengths))
    return fewest, most
