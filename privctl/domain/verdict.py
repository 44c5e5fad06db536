"""Verdicts: what a check concluded, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.guarantee import Status


class Outcome(StrEnum):
    """An attack can refute or fail to refute; it never proves."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    CONSISTENT = "CONSISTENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one check on one subject, with the reason a reader can follow.

    ``status`` is the status that a report gives the guarantee judged; None if the subject is not a guarantee.
    """

    subject: str
    outcome: Outcome
    reason: str
    status: Status | None = None

    @property
    def decisive(self) -> bool:
        """Whether anyone may rely on the subject, so the outcome matters: a claimed guarantee promises nothing."""
        return self.status in (None, Status.PROVED, Status.CONDITIONAL)

    @property
    def on_claim(self) -> bool:
        """Whether an audit's verdict judges a privacy claim rather than a hypothesis that every audit tests."""
        return self.subject.startswith("(")

    @property
    def audit_word(self) -> str:
        """The word for an audit's outcome: claims are refuted, hypotheses rejected."""
        verb = "refuted" if self.on_claim else "rejected"
        words = {Outcome.REFUTED: verb, Outcome.CONSISTENT: f"not {verb}"}
        return words.get(self.outcome, str(self.outcome).lower())
