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

    ``status`` is what a report calls the guarantee that was judged; None where the subject is anything else.
    """

    subject: str
    outcome: Outcome
    reason: str
    status: Status | None = None

    @property
    def decisive(self) -> bool:
        """Whether anybody may rely on its subject: what a report itself only calls claimed promises nothing."""
        return self.status in (None, Status.PROVED, Status.CONDITIONAL)

    @property
    def on_claim(self) -> bool:
        """Whether this verdict of an audit judges a claim of privacy; else a hypothesis that every audit tests."""
        return self.subject.startswith("(")

    @property
    def audit_word(self) -> str:
        """What the outcome is called where an audit reached it: claims are refuted, hypotheses rejected."""
        verb = "refuted" if self.on_claim else "rejected"
        words = {Outcome.REFUTED: verb, Outcome.CONSISTENT: f"not {verb}"}
        return words.get(self.outcome, str(self.outcome).lower())
