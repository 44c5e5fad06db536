"""A lower and an upper bound on one quantity."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Relative difference up to which a claimed float counts as the number meant.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class BoundPair:
    """``lower`` <= the quantity <= ``upper``; ``upper`` is infinite if no finite bound is known."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower {self.lower!r} is not at most upper {self.upper!r}")

    def at_most(self, claimed: float, rounding: float = ROUNDING) -> bool | None:
        """Whether the quantity is at most ``claimed``, up to a relative ``rounding``; None if that is undecided."""
        if self.upper <= claimed * (1 + rounding):
            return True
        return False if self.lower > claimed * (1 + rounding) else None

    def near(self, claimed: float, rounding: float = ROUNDING) -> bool:
        """Whether ``claimed`` lies within the bounds, up to a relative ``rounding``."""
        slack = rounding * max(abs(claimed), abs(self.upper) if math.isfinite(self.upper) else 0.0)
        return self.lower - slack <= claimed <= self.upper + slack

    def __str__(self) -> str:
        if self.lower == self.upper:
            return f"{self.lower:.9g}"
        return f"between {self.lower:.9g} and {self.upper:.9g}"
