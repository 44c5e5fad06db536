"""Whether a leak that an audit found is one that the policy, and what is guaranteed, allow.

A finite epsilon above 0 lets members be told from non-members a little, and an audit of enough records notices. So that
they can be told apart contradicts no such guarantee. How well they may be is for the policy's limits to say.
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
from verify.audits.consistency import MEMBERSHIP

_ACCURACY = "accuracy"
_NAMED = tuple(each for each in Adjacency if each is not Adjacency.UNSTATED)


def why_permitted(case: JudgedModel, policy: Policy, report: LoadedReport, verdict: Verdict) -> str:
    """Why the refuted ``verdict`` of an audit ``report`` stops nothing; empty where it does.

    It stops nothing if it is that members can be told from non-members, the policy limits epsilon and the AUC of
    attacks and recomputes guarantees, the model meets both limits, and no attack is certain to do better than its
    guarantee for these members allows.
    """
    if verdict.outcome is not Outcome.REFUTED or verdict.subject != MEMBERSHIP:
        return ""
    if not policy.recompute or all(each is not report for each in case.audits):
        return ""
    for check in (guarantees.epsilon, leakage.auc):
        findings = list(check(case, policy))
        if not findings or any(each.outcome is not GateOutcome.PASS for each in findings):
            return ""
    holding = _of_these_records(case, policy, report)
    if not holding:
        return ""
    # What is guaranteed for other neighbours than the policy counts is true of the same training, or it is not.
    stated = _of_these_records(case, replace(policy, adjacencies=_NAMED), report)
    if any(_beyond(item, stated) for each in case.audits for item in each.report.evidence):
        return ""
    best = min(stated, key=_largest_auc)
    return (
        f"{best.name} allows an AUC of up to {_largest_auc(best):.3g}, no attack is certain to do better than it "
        f"allows, and the upper bound of each is within {leakage.AUC}"
    )


def _of_these_records(case: JudgedModel, policy: Policy, report: LoadedReport) -> list[Guarantee]:
    """The guarantees within the policy's limit that protect the records whose membership was attacked.

    A report that names no data, as of a training in another program's loop, shows of no record that it protects it.
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
    """Whether one example of the guarantees of ``source`` is what the audit judges: groups by ``field``, or records."""
    if field is None:
        return True
    try:
        stated = parameters_as(TrainingParameters, source.report)
        # Where records have several users, no group of them is all that one user has.
        return source.report.step == "retrain" and stated.unit == field and stated.shared_records is None
    except ParametersError:
        return False


def _data_of(case: JudgedModel, source: LoadedReport) -> set[str]:
    """Digests of the data that the guarantees of ``source`` protect: its own, or those of what it added noise to."""
    own = {artifact.digest for artifact in source.report.inputs if artifact.role == "data"}
    if own:
        return own
    before = (each for each in case.history if each is not source and each.makes & source.looks_at)
    return {artifact.digest for each in before for artifact in each.report.inputs if artifact.role == "data"}


def _beyond(item: Evidence, holding: Sequence[Guarantee]) -> bool:
    """Whether an attack is certain to do better than one of the guarantees allows, or does not show that it is not."""
    if item.method in leakage.BASELINES:
        return False
    if leakage.is_lower_bound(item) or leakage.is_group_bound(item):
        return item.lower is not None and item.lower > _least_epsilon(holding, item.details.get("delta", 0.0))
    allowed = _allowance(item)
    if allowed is None or item.lower is None:
        return allowed is not None and item.estimate is not None
    return item.lower > min(map(allowed, holding))


def _least_epsilon(holding: Sequence[Guarantee], delta: float) -> float:
    """The smallest epsilon that is guaranteed at ``delta``."""
    return min((each.epsilon for each in holding if each.epsilon is not None and each.delta <= delta), default=math.inf)


def _allowance(item: Evidence) -> Callable[[Guarantee], float] | None:
    """The largest value that a guarantee allows for what ``item`` measures; None where it sets no limit."""
    if leakage.is_attack(item):
        return _largest_auc
    rate = leakage.fpr_of(item.quantity)
    if rate is not None:
        # The threshold comes from the same non-members, so the rate may be larger than the one it is named after.
        largest = item.details.get("chance", rate)
        return lambda guarantee: _largest_tpr(guarantee, largest)
    if item.quantity == _ACCURACY:
        members, others = (item.samples.get(side, 1) for side in ("members", "nonmembers"))
        return lambda guarantee: _largest_accuracy(guarantee, members / (members + others))
    return None


def _balanced(guarantee: Guarantee) -> float:
    """The smallest rate at which both errors of a test can be equal: where the two lines of the trade-off cross.

    Missed records are at least max(1 - delta - e^epsilon a, e^-epsilon (1 - delta - a)) at a false positive rate of a
    (Kairouz, Oh and Viswanath 2015, theorem 2.1). Epsilon ln 3 and delta 0 give 0.25.
    """
    assert guarantee.epsilon is not None  # it was compared with a limit
    return (1 - guarantee.delta) / (1 + math.exp(min(guarantee.epsilon, 700.0)))


def _largest_auc(guarantee: Guarantee) -> float:
    """The area above that trade-off: 1 - (1 - delta) times the balanced rate."""
    return 1 - (1 - guarantee.delta) * _balanced(guarantee)


def _largest_tpr(guarantee: Guarantee, rate: float) -> float:
    """The true positive rate allowed at a false positive rate of ``rate``."""
    assert guarantee.epsilon is not None
    grow, delta = math.exp(min(guarantee.epsilon, 700.0)), guarantee.delta
    return min(1.0, grow * rate + delta, 1 - max(0.0, 1 - delta - rate) / grow)


def _largest_accuracy(guarantee: Guarantee, members: float) -> float:
    """The accuracy allowed where ``members`` is the share of members: the best corner of the trade-off."""
    never, always = (1 - members) + members * guarantee.delta, members + (1 - members) * guarantee.delta
    return max(1 - _balanced(guarantee), never, always)
