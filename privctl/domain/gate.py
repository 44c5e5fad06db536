"""What a gate says of reports held against a policy: findings with their places, and one outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.notebook import Shown


class GateOutcome(StrEnum):
    """``INCONCLUSIVE`` is neither: a report or a step is missing, or an audit could not have seen what it had to."""

    PASS = "pass"  # noqa: S105 - an outcome
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """A line of a file, counted from 1."""

    path: str
    line: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing a gate looks at; ``waivable`` unless it is about whether reports can be believed at all."""

    name: str
    about: str
    waivable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule found, and where the value stands; ``fix`` says what would make it pass.

    ``subject`` is what the rule looked at, by which a waiver may be narrowed; ``model`` is the one that was judged, if
    any was. ``waiver`` is the id of the one that covers it, and empty where none does.
    """

    rule: str
    outcome: GateOutcome
    subject: str
    message: str
    place: FileLine
    fix: str = ""
    model: str = ""
    waiver: str = ""
    waived_because: str = ""

    @property
    def counts(self) -> bool:
        """Whether it keeps the gate from passing."""
        return self.outcome is not GateOutcome.PASS and not self.waiver


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetting:
    """One line of the policy as it was applied; ``source`` says where it was set."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement(Shown):
    """All that was found; ``notes`` are what nobody judged but a reader should know."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    settings: tuple[PolicySetting, ...] = ()
    models: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def recomputed(self) -> bool:
        """Whether the policy had what reports say computed again."""
        return not any(each.key == "recompute" and each.value == "false" for each in self.settings)

    @property
    def outcome(self) -> GateOutcome:
        """Fail wins over inconclusive; a gate that looked at nothing has not passed."""
        return outcome_of(self.findings)

    def subject(self, each: Finding) -> str:
        """What ``each`` is about, the model's name before it where several were judged."""
        several = len(self.models) > 1 and each.model not in ("", each.subject)
        return f"{each.model}: {each.subject}" if several else each.subject

    def of(self, outcome: GateOutcome) -> tuple[Finding, ...]:
        """The findings with ``outcome`` that no waiver covers, in order."""
        return tuple(each for each in self.findings if each.outcome is outcome and not each.waiver)

    @property
    def waived(self) -> tuple[Finding, ...]:
        """The findings that a waiver covers."""
        return tuple(each for each in self.findings if each.waiver)


def outcome_of(findings: Iterable[Finding]) -> GateOutcome:
    """Fail before inconclusive before pass; inconclusive where there are no findings."""
    found = tuple(findings)
    counted = {each.outcome for each in found if each.counts}
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        if outcome in counted:
            return outcome
    return GateOutcome.PASS if found else GateOutcome.INCONCLUSIVE
