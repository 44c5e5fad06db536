"""What a comparison of two rates could have detected, and how many texts would decide it."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtr, bdtrc, betaincinv

from audits.statistics.metrics import clopper_pearson
from audits.statistics.power import POWER

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: If extracting this fraction of texts could have been missed, finding none is inconclusive.
LEAST_RATE = 0.01
#: The largest number of texts that is suggested.
_MOST = 100_000
#: Counts further from the mean than this many standard deviations, and this many more, have probability below 1e-9.
_DEVIATIONS, _MORE = 7, 15


def detectable(train: int, extracted: int, heldout: int, alpha: float) -> float | None:
    """The least true rate on ``train`` texts that is detected with power ``POWER``; None if no rate is.

    Detected means above the upper bound of the rate when ``extracted`` of ``heldout`` texts come out.
    """
    bar = clopper_pearson(extracted, heldout, alpha / 2)[1]
    fewest = 1 + bisect_left(range(1, train + 1), True, key=lambda k: clopper_pearson(k, train, alpha / 2)[0] > bar)
    return float(betaincinv(fewest, train - fewest + 1, POWER)) if fewest <= train else None


def needed(rate: float, held_out_rate: float, alpha: float) -> int | None:
    """How many texts of each file would decide if these are the true rates; None if none, or more than 100,000.

    If training text comes out more often, the number at which the difference is detected with power 0.8. Otherwise, the
    number at which a difference of ``LEAST_RATE`` from held-out text would be.
    """
    goal = rate if rate > held_out_rate else held_out_rate + LEAST_RATE
    if goal > 1:
        return None

    def enough(texts: int) -> bool:
        return chance_to_decide(texts, goal, held_out_rate, alpha) >= POWER

    texts = 1
    while not enough(texts):
        texts *= 2
        if texts > 2 * _MOST:
            return None
    smallest = 1 + bisect_left(range(1, texts + 1), True, lo=texts // 2, key=enough)
    return smallest if smallest <= _MOST else None


def chance_to_decide(texts: int, rate: float, held_out_rate: float, alpha: float) -> float:
    """The probability that the interval of the rate on training text lies above that on held-out text.

    Both counts are binomial, of ``texts`` texts each, and both intervals are Clopper and Pearson's at ``alpha`` / 2. If
    the number of held-out texts that come out were taken for its mean, the probability would be too large: 0.8 where it
    is 0.72, with 7229 texts, 2 % against 1 %, and ``alpha`` 0.005.
    """
    ours, theirs = _likely(texts, rate), _likely(texts, held_out_rate)
    lower = np.where(ours > 0, betaincinv(np.maximum(ours, 1), texts - np.maximum(ours, 1) + 1, alpha / 4), 0.0)
    upper = np.where(theirs < texts, betaincinv(theirs + 1, np.maximum(texts - theirs, 1), 1 - alpha / 4), 1.0)
    first = np.searchsorted(lower, upper, side="right")
    fewest = np.append(ours, texts + 1 if ours[-1] == texts else ours[-1] + 1)[first]
    chance = np.where(fewest > 0, bdtrc(np.maximum(fewest - 1, 0), texts, rate), 1.0)
    shares = np.diff(bdtr(theirs, texts, held_out_rate), prepend=0.0)
    return float((shares * chance).sum())


def _likely(texts: int, rate: float) -> NDArray[np.int64]:
    """The counts that a binomial variable takes but with a negligible probability."""
    middle = texts * rate
    reach = _DEVIATIONS * math.sqrt(middle * (1 - rate)) + _MORE
    return np.arange(max(0, math.floor(middle - reach)), min(texts, math.ceil(middle + reach)) + 1)
