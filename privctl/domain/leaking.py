"""A training record as attacks see it, for its owner alone: never part of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakingRecord:
    """A record by its ``line``, from 1, in ``file``; its text is not here.

    ``extracted``: the model writes it word for word; None where that was not tried, as for the second of two equal
    texts. ``scores`` by attack, higher for more member-like; ``nonmembers_as_high`` is the share of non-members that
    score at least as high. Both lack an attack that left the record out, and name the attack that tells most first.
    """

    file: str
    line: int
    extracted: bool | None
    scores: Mapping[str, float]
    nonmembers_as_high: Mapping[str, float]
