"""Evidence: what an attack or a measurement found, with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Bound(StrEnum):
    """Which kind of bound an evidence's interval is."""

    TWO_SIDED = "two-sided"
    LOWER = "lower"
    UPPER = "upper"
    NONE = "none"


#: Key in the details of an accuracy: the accuracy of always answering the most frequent label.
MOST_FREQUENT = "most frequent label"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTest:
    """Whether an attack does better than chance, in one permutation test over all attacks of an audit (max-T).

    ``p_value`` is adjusted for all the attacks ``compared``. ``level`` is the family-wise error rate: the probability
    of rejecting for any attack if none does better than chance. ``critical`` is the rejection threshold in standard
    deviations above chance, None if it cannot be reached; ``detectable`` is the smallest AUC likely to reach it.
    """

    p_value: float
    level: float
    compared: int
    relabellings: int
    critical: float | None = None
    detectable: float | None = None

    @property
    def rejects(self) -> bool:
        """Whether the attack does better than chance."""
        return self.p_value <= self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured quantity.

    ``estimate`` None means that the sample cannot resolve the quantity; ``reason`` then says why.
    ``lower`` and ``upper`` hold with probability ``confidence`` over the sample. ``samples`` counts what was measured
    by role; ``details`` holds further plain numbers (thresholds, counts). ``test`` is the test of the whole attack and
    is attached to the attack's first evidence only.
    """

    method: str
    quantity: str
    estimate: float | None
    lower: float | None = None
    upper: float | None = None
    confidence: float = 0.95
    bound: Bound = Bound.TWO_SIDED
    interval: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    test: JointTest | None = None

    @property
    def sees(self) -> float | None:
        """The smallest AUC that would probably have been detected; None if that is not known.

        Taken from the test, which decides; older reports have no test, so there it is that of the interval.
        """
        return self.details.get("detectable") if self.test is None else self.test.detectable
