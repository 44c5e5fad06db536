"""Whether a leak that an audit found is within what the policy and the guarantees allow.

Under a finite epsilon above 0, members can be distinguished from non-members to some degree, and an audit of enough
records detects it. This does not contradict the guarantee. The policy's limits decide how much is acceptable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from privctl.domain.evidence import Evidence
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import Adjacency, Guarantee
from privctl.domain.verdict import Outcome, Verdict
from privctl.gate.checks import guarantees, leakage
from privctl.gate.checks.audited_records import holds_all
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from verify.audits.terms import MEMBERSHIP

_ACCURACY = "accuracy"
_NAMED = tuple(adjacency for adjacency in Adjacency if adjacency is not Adjacency.UNSTATED)


def why_permitted(case: JudgedModel, policy: Policy, report: LoadedReport, verdict: Verdict) -> str:
    """Why the refuted ``verdict`` of an audit ``report`` does not stop the build; empty if it does.

    It does not if all of this holds: the verdict is that members can be told from non-members; the policy limits
    epsilon and the AUC of attacks and recomputes guarantees; the model meets both limits; and no attack certainly does
    better than the guarantee for these members allows.
    """
    if verdict.outcome is not Outcome.REFUTED or verdict.subject != MEMBERSHIP:
        return ""
    if not policy.recompute or all(audit is not report for audit in case.audits):
        return ""
    for check in (guarantees.epsilon, leakage.auc):
        findings = list(check(case, policy))
        if not findings or any(finding.outcome is not GateOutcome.PASS for finding in findings):
            return ""
    holding = _guarantees_of_these_records(case, policy, report)
    if not holding:
        return ""
    # Guarantees for adjacencies that the policy does not count must hold for the same training too.
    stated = _guarantees_of_these_records(case, replace(policy, adjacencies=_NAMED), report)
    if any(_exceeds(item, stated) for audit in case.audits for item in audit.report.evidence):
        return ""
    best = min(stated, key=_largest_auc)
    return (
        f"{best.name} allows an AUC of up to {_largest_auc(best):.3g}, no attack certainly does better than it "
        f"allows, and the upper bound of each is within {leakage.AUC}"
    )


def _guarantees_of_these_records(case: JudgedModel, policy: Policy, report: LoadedReport) -> list[Guarantee]:
    """The guarantees within the policy's limit that protect the records whose membership was attacked.

    A report that names no data, such as that of another program's loop, does not show which records it protects.
    """
    members = [artifact for artifact in report.report.inputs if artifact.role == "members"]
    try:
        groups = parameters_as(AuditParameters, report.report).group_by
    except ParametersError:
        return []
    return [
        guarantee
        for source, guarantee in guarantees.within_limit(case, policy)
        if members and holds_all(_data_of(case, source), members, report) and _protects(source, groups)
    ]


def _protects(source: LoadedReport, field: str | None) -> bool:
    """Whether an example of the guarantees of ``source`` is what the audit judged: a group by ``field`` or a record."""
    if field is None:
        return True
    try:
        stated = parameters_as(TrainingParameters, source.report)
        # If records are shared by several users, no group has all records of one user.
        return source.report.step == "retrain" and stated.unit == field and stated.shared_records is None
    except ParametersError:
        return False


def _data_of(case: JudgedModel, source: LoadedReport) -> set[str]:
    """Digests of the data that ``source`` protects: its own, or those of the training whose weights got noise."""
    own_data = {artifact.digest for artifact in source.report.inputs if artifact.role == "data"}
    if own_data:
        return own_data
    before = (
        report for report in case.history if report is not source and report.weights_written & source.weights_read
    )
    return {artifact.digest for report in before for artifact in report.report.inputs if artifact.role == "data"}


def _exceeds(item: Evidence, holding: Sequence[Guarantee]) -> bool:
    """Whether an attack certainly does better than one of the guarantees allows, or states no lower bound."""
    if item.method in leakage.BASELINES:
        return False
    if leakage.is_lower_bound(item) or leakage.is_group_bound(item):
        return item.lower is not None and item.lower > _least_epsilon(holding, item.details.get("delta", 0.0))
    allowed = _allowance(item)
    if allowed is None or item.lower is None:
        return allowed is not None and item.estimate is not None
    return item.lower > min(map(allowed, holding))


def _least_epsilon(holding: Sequence[Guarantee], delta: float) -> float:
    """The smallest epsilon that is guaranteed at ``delta`` or less; infinite if there is none."""
    return min(
        (guarantee.epsilon for guarantee in holding if guarantee.epsilon is not None and guarantee.delta <= delta),
        default=math.inf,
    )


def _allowance(item: Evidence) -> Callable[[Guarantee], float] | None:
    """A function that gives the largest value of ``item`` under a guarantee; None if guarantees do not limit it."""
    if leakage.is_attack(item):
        return _largest_auc
    rate = leakage.fpr_of(item.quantity)
    if rate is not None:
        # The threshold was chosen on the same non-members, so the true rate may be larger than the nominal one.
        largest = item.details.get("chance", rate)
        return lambda guarantee: _largest_tpr(guarantee, largest)
    if item.quantity == _ACCURACY:
        members, others = (item.samples.get(side, 1) for side in ("members", "nonmembers"))
        return lambda guarantee: _largest_accuracy(guarantee, members / (members + others))
    return None


def _equal_error_rate(guarantee: Guarantee) -> float:
    """The smallest equal error rate of a test under ``guarantee``: where the two lines of the trade-off cross.

    At a false positive rate a, the false negative rate is at least max(1 - delta - e^epsilon a,
    e^-epsilon (1 - delta - a)) (Kairouz, Oh and Viswanath 2015, theorem 2.1). Epsilon ln 3 and delta 0 give 0.25.
    """
    assert guarantee.epsilon is not None  # it was compared with a limit
    return (1 - guarantee.delta) / (1 + math.exp(min(guarantee.epsilon, 700.0)))


def _largest_auc(guarantee: Guarantee) -> float:
    """The largest AUC under ``guarantee``: 1 - (1 - delta) times the equal error rate."""
    return 1 - (1 - guarantee.delta) * _equal_error_rate(guarantee)


def _largest_tpr(guarantee: Guarantee, rate: float) -> float:
    """The largest true positive rate under ``guarantee`` at a false positive rate of ``rate``."""
    assert guarantee.epsilon is not None
    grow, delta = math.exp(min(guarantee.epsilon, 700.0)), guarantee.delta
    return min(1.0, grow * rate + delta, 1 - max(0.0, 1 - delta - rate) / grow)


def _largest_accuracy(guarantee: Guarantee, members: float) -> float:
    """The largest accuracy under ``guarantee`` if ``members`` is the share of members: the best trade-off corner."""
    never, always = (1 - members) + members * guarantee.delta, members + (1 - members) * guarantee.delta
    return max(1 - _equal_error_rate(guarantee), never, always)
