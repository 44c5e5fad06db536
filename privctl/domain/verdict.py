"""Verdicts: what a check concluded, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """An attack can refute or fail to refute; it never proves."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    CONSISTENT = "CONSISTENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one check on one subject, with the reason a reader can follow."""

    subject: str
    outcome: Outcome
    reason: str
