"""Evidence: what an attack or a measurement found, with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Bound(StrEnum):
    """What the interval of an evidence says about the quantity."""

    TWO_SIDED = "two-sided"
    LOWER = "lower"
    NONE = "none"


#: The detail of an accuracy that says what always answering the most frequent label would reach.
MOST_FREQUENT = "most frequent label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured quantity.

    ``estimate`` None means that the sample cannot resolve the quantity; ``reason`` then says why.
    ``lower`` and ``upper`` hold with probability ``confidence`` over the sample. ``samples`` counts what was measured
    by role; ``details`` holds further plain numbers (thresholds, counts).
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
