"""What a comparison of two rates could have detected, and how many texts would decide it."""

from __future__ import annotations

import math
from bisect import bisect_left

from scipy.special import betaincinv

from audits.statistics.metrics import clopper_pearson
from audits.statistics.power import POWER

#: If extracting this fraction of texts could have been missed, finding none is inconclusive.
LEAST_RATE = 0.01
#: The largest number of texts that is suggested.
_MOST = 100_000


def detectable(train: int, extracted: int, heldout: int, alpha: float, power: float = POWER) -> float | None:
    """The least true rate on ``train`` texts that is detected with ``power``; None if no rate is.

    Detected means above the upper bound of the rate when ``extracted`` of ``heldout`` texts come out.
    """
    bar = clopper_pearson(extracted, heldout, alpha / 2)[1]
    fewest = 1 + bisect_left(range(1, train + 1), True, key=lambda k: clopper_pearson(k, train, alpha / 2)[0] > bar)
    return float(betaincinv(fewest, train - fewest + 1, power)) if fewest <= train else None


def needed(rate: float, held_out_rate: float, alpha: float) -> int | None:
    """How many texts of each file would decide if these are the true rates; None for more than 100,000.

    If training text comes out more often, the number at which the difference is detected with power 0.8. Otherwise, the
    number at which a difference of ``LEAST_RATE`` from held-out text would be.
    """
    goal = rate if rate > held_out_rate else held_out_rate + LEAST_RATE

    def enough(texts: int) -> bool:
        least = detectable(texts, math.ceil(texts * held_out_rate - 1e-9), texts, alpha)
        return least is not None and least <= goal

    texts = 1
    while not enough(texts):
        texts *= 2
        if texts > 2 * _MOST:
            return None
    smallest = 1 + bisect_left(range(1, texts + 1), True, lo=texts // 2, key=enough)
    return smallest if smallest <= _MOST else None
