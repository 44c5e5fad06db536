"""Ranges of numeric settings, with the error messages for values outside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privctl.domain.checks import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Finite numbers from ``low`` to ``high``, excluding an end that is ``open_...``; integers only if ``whole``."""

    low: float = 0
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    whole: bool = False

    def require(self, name: str, value: float) -> None:
        """Raise ValueError, mentioning ``name``, for a value outside the range."""
        if self.whole and not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}; it must be a whole number, given as an int")
        if not self._holds(value):
            raise ValueError(f"{name} is {shown(value)}; it must be {self._expected()}")

    def _holds(self, value: float) -> bool:
        above = value > self.low or (value == self.low and not self.open_low)
        below = value < self.high or (value == self.high and not self.open_high)
        return above and below and value not in (math.inf, -math.inf)

    def _expected(self) -> str:
        if math.isinf(self.low):
            return "a finite number"
        low = f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"a finite number {low if self.open_low else f'of {low}'}"
        exponent = math.log2(self.high)
        high = f"2^{exponent:g}" if self.high >= 2**32 and exponent.is_integer() else f"{self.high:g}"
        return f"{low} and {'below' if self.open_high else 'at most'} {high}"


#: Any finite number above 0.
POSITIVE = Range(open_low=True)
#: A training setting; anything larger only overflows.
AMOUNT = Range(high=1e12, open_low=True)
AMOUNT_OR_ZERO = Range(high=1e12)
#: A clip norm. Squared norms of gradients far outside this range underflow or overflow in float32.
CLIP_NORM = Range(low=1e-12, high=1e12)
#: A log-odds; larger ones give probabilities of 0 or 1 in floating point.
LOG_ODDS = Range(high=700, open_low=True)
#: A delta, a prior.
FRACTION = Range(high=1, open_low=True, open_high=True)
#: A decay rate, a momentum, a delta that may be 0.
BELOW_ONE = Range(high=1, open_high=True)
#: A probability or proportion above 0.
CHANCE = Range(high=1, open_low=True)
#: A count; beyond 1e12, arithmetic on it is no longer exact.
COUNT = Range(low=1, high=1e12, whole=True)
#: Records of one group that are protected together; bounds for more take too long.
IN_GROUP = Range(low=1, high=100_000, whole=True)
#: Directions per group; as many numbers are held in memory at a time.
DIRECTIONS = Range(low=1, high=4096, whole=True)
COUNT_OR_ZERO = Range(high=1e12, whole=True)
#: Steps over which noise is correlated; each takes twice the memory of the gradients.
BANDS = Range(low=1, high=1024, whole=True)
#: Buffers that correlate noise over all steps; each takes twice the memory of the gradients.
BUFFERS = Range(low=1, high=8, whole=True)
#: The seed of a reproducible run.
SEED = Range(high=2**63, open_high=True, whole=True)
#: A seed for a generator that takes 32 bits.
SEED32 = Range(high=2**32, open_high=True, whole=True)
