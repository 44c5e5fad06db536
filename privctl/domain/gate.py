"""The result of checking reports against a policy: findings with their locations, and one outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.notebook import Shown


class GateOutcome(StrEnum):
    """``INCONCLUSIVE``: a report or a step is missing, or an audit lacked the power that the policy asks for."""

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
    """One rule of the gate; ``waivable`` unless it decides whether the reports can be trusted at all."""

    name: str
    about: str
    waivable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule found, and the ``place`` of the value; ``fix`` says what would make it pass.

    ``subject`` is what the rule looked at, to which a waiver may be restricted; ``model`` is the model judged, if any.
    ``waiver`` is the id of the waiver that covers the finding, empty if none does.
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
    """One setting of the policy as applied; ``source`` says where it was set."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement(Shown):
    """All findings; ``notes`` hold what no rule judged but a reader should know.

    ``audited`` says that an audit was among the reports that were read, whose figures are private.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    settings: tuple[PolicySetting, ...] = ()
    models: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    audited: bool = False

    @property
    def recomputed(self) -> bool:
        """Whether the policy had the reports' guarantees recomputed."""
        return not any(setting.key == "recompute" and setting.value == "false" for setting in self.settings)

    @property
    def outcome(self) -> GateOutcome:
        """The overall outcome; see ``outcome_of``."""
        return outcome_of(self.findings)

    def subject(self, finding: Finding) -> str:
        """The subject of ``finding``, preceded by the model's name if several were judged."""
        several = len(self.models) > 1 and finding.model not in ("", finding.subject)
        return f"{finding.model}: {finding.subject}" if several else finding.subject

    def of(self, outcome: GateOutcome) -> tuple[Finding, ...]:
        """The findings with ``outcome`` that no waiver covers, in order."""
        return tuple(finding for finding in self.findings if finding.outcome is outcome and not finding.waiver)

    @property
    def waived(self) -> tuple[Finding, ...]:
        """The findings that a waiver covers."""
        return tuple(finding for finding in self.findings if finding.waiver)


def outcome_of(findings: Iterable[Finding]) -> GateOutcome:
    """Fail takes precedence over inconclusive, and inconclusive over pass; without findings it is inconclusive."""
    given = tuple(findings)
    counted = {finding.outcome for finding in given if finding.counts}
    for outcome in (GateOutcome.FAIL, GateOutcome.INCONCLUSIVE):
        if outcome in counted:
            return outcome
    return GateOutcome.PASS if given else GateOutcome.INCONCLUSIVE
