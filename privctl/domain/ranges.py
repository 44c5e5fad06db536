"""Ranges of numeric settings, with the words for a value outside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.checks import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Finite numbers of at least ``low`` and at most ``high``; strictly above or below where ``open_...`` says so.

    ``whole``: integers alone, for what counts.
    """

    low: float = 0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    whole: bool = False

    def require(self, name: str, value: float) -> None:
        """Raises ValueError, which names ``name``, for a value outside."""
        if self.whole and not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}; it must be a whole number, given as an int")
        if not self._holds(value):
            raise ValueError(f"{name} is {shown(value)}; it must be {self._expected()}")

    def _holds(self, value: float) -> bool:
        above = value > self.low or (value == self.low and not self.open_low)
        below = value < self.high or (value == self.high and not self.open_high)
        return above and below and value not in (math.inf, -math.inf)

    def _expected(self) -> str:
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"a finite number {low if self.open_low else f'of {low}'}"
        exponent = math.log2(self.high)
        high = f"2^{exponent:g}" if self.high >= 2**32 and exponent.is_integer() else f"{self.high:g}"
        return f"{low} and {'below' if self.open_high else 'at most'} {high}"


#: Any finite number above 0.
POSITIVE = Range(open_low=True)
#: A setting of a training; anything larger only overflows.
AMOUNT = Range(high=1e12, open_low=True)
AMOUNT_OR_ZERO = Range(high=1e12)
#: A clip norm. Squares of gradients far shorter, or longer, are no float32 numbers, so nothing could clip them.
CLIP_NORM = Range(low=1e-12, high=1e12)
#: A log-odds; with larger ones, chances are 0 or 1 in floating point.
LOG_ODDS = Range(high=700, open_low=True)
#: A delta, a prior.
FRACTION = Range(high=1, open_low=True, open_high=True)
#: A decay rate, a momentum, a delta that may be 0.
BELOW_ONE = Range(high=1, open_high=True)
#: The probability of something that does happen; a share that is not empty.
CHANCE = Range(high=1, open_low=True)
#: How many of something there are; beyond a million million, arithmetic on it is no longer exact.
COUNT = Range(low=1, high=1e12, whole=True)
#: Records of one group that are protected together; of more, bounds take too long.
IN_GROUP = Range(low=1, high=100_000, whole=True)
#: Directions of a group; as many of its numbers are held at a time.
DIRECTIONS = Range(low=1, high=4096, whole=True)
COUNT_OR_ZERO = Range(high=1e12, whole=True)
#: Steps over which noise is correlated; each takes as much memory as the gradients do twice.
BANDS = Range(low=1, high=1024, whole=True)
#: Buffers that correlate noise over all steps; each takes as much memory as the gradients do twice.
BUFFERS = Range(low=1, high=8, whole=True)
#: The seed of repeatable draws.
SEED = Range(high=2**63, open_high=True, whole=True)
#: The same, for a generator that takes 32 bits.
SEED32 = Range(high=2**32, open_high=True, whole=True)
