"""What audits measured, judged by the relevant end of the interval, never by the estimate.

A quantity is within a maximum if its upper bound is, and above it if its lower bound is. Otherwise the result is
inconclusive: the audit was too small, or gave no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import TRAININGS
from privctl.domain.sample_size import needed_sample, times_for_bound
from privctl.gate.checks.audited_records import (
    MEMBERS,
    TRAIN,
    share_unscored,
    texts_tested_remark,
    training_data_remark,
    unaudited_file,
    why_not_attacked,
)
from privctl.gate.checks.contradictions import why_impossible
from privctl.gate.checks.external_scores import FIX, why_unaccepted
from privctl.gate.checks.units import groups_of, unit_of, why_other_unit
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from verify.audits.terms import of_split

AUC, TPR, EXPOSURE, DISCLOSED = "max_auc", "max_tpr", "max_exposure", "max_disclosed"
EXTRACTED, LOWER_BOUND = "max_extracted", "max_epsilon_lower_bound"
#: Attacks that do not use the model; they show how the two sides differ by themselves.
BLIND, LENGTH, CONTROL = "blind baseline", "length baseline", "reference control"
BASELINES = (BLIND, LENGTH, CONTROL)
#: Parts of the names of quantities, as audits write them.
_TPR, _FPR = "TPR at ", " % FPR"
_DISCLOSED = "disclosed, included"
_EXTRACTED, _IN_TEXTS = "rate on training text", "training text found in "
_FIX_SIZE = "audit again with {}, so that the interval is narrower"
_FIX_AUDIT = "remove the cause named here, audit again, and replace the report (privctl audit --force)"
_FIX_MODEL = "the estimate itself is above the limit, so a larger audit would likely fail: make the model safer"
_FIX_COVERAGE = (
    "give non-members that do not occur in the training data, and the training's --max-length, so that every member is "
    "scored completely"
)

#: Rule -> the role of the files that an audit takes as training data for it.
_TRAINING_ROLES = {AUC: MEMBERS, TPR: MEMBERS, EXTRACTED: TRAIN}
_PLANTED, _NUMBER = "trained on the planted data", "number included"

#: One item of evidence: its report, its index there, the item.
_EvidenceItem = tuple[LoadedReport, int, Evidence]


def evidence_of(case: JudgedModel, chosen: Callable[[Evidence], bool]) -> list[_EvidenceItem]:
    """The evidence in this model's audits for which ``chosen`` returns True."""
    return [(r, i, item) for r in case.audits for i, item in enumerate(r.report.evidence) if chosen(item)]


def is_attack(item: Evidence) -> bool:
    """Whether ``item`` is the AUC of an attack on the model."""
    return item.quantity == "AUC" and item.method not in BASELINES


def is_lower_bound(item: Evidence) -> bool:
    """Whether ``item`` bounds the epsilon of one record from below."""
    return item.bound is not Bound.TWO_SIDED and (
        item.quantity.startswith("epsilon lower bound")
        or (item.quantity.partition(",")[0] == "epsilon" and item.details.get("copies") is not None)
    )


def is_group_bound(item: Evidence) -> bool:
    """Whether ``item`` bounds the epsilon of a group of records from below."""
    return item.bound is not Bound.TWO_SIDED and item.quantity.startswith("epsilon of a group, ")


def lower_bounds(case: JudgedModel) -> list[_EvidenceItem]:
    """The certified lower bounds on epsilon for what was one example in the model's trainings: a record or a group.

    If all records with one value of a field were one example, a bound from inclusion by record is not about it.
    """
    units = {unit_of(report) for report in case.history if report.report.step in TRAININGS}
    bounds = []
    for report, i, item in evidence_of(case, lambda item: is_lower_bound(item) or is_group_bound(item)):
        try:
            stated = parameters_as(AuditParameters, report.report)
        except ParametersError:
            stated = AuditParameters()
        of_records = is_lower_bound(item) and not (of_split(item, stated) and units - {None})
        if of_records or (is_group_bound(item) and units == {stated.group_by}):
            bounds.append((report, i, item))
    return bounds


def auc(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check every attack's AUC; one far below 0.5 suggests that the two files were swapped."""
    limit = policy.max_auc
    if limit is None:
        return
    items = evidence_of(case, is_attack)
    yield from _check_maximum(case, policy, AUC, limit, items, "membership (privctl audit --members --nonmembers)")
    for report, i, item in items:
        if item.upper is not None and item.upper < 1 - limit and not _why_doubtful(item, policy):
            yield Finding(
                rule=AUC,
                outcome=GateOutcome.INCONCLUSIVE,
                subject=_name_of(item),
                message=f"non-members score higher than members: {_interval_text(item)} is below {1 - limit:.3g}",
                fix="check that members and non-members were not swapped and come from one source; audit again",
                place=report.place("evidence", i, "upper"),
            )


def tpr(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check every attack's true positive rate at the policy's false positive rate."""
    if policy.max_tpr is None:
        return

    def chosen(item: Evidence) -> bool:
        rate = fpr_of(item.quantity)
        return rate is not None and math.isclose(rate, policy.at_fpr, rel_tol=1e-6) and item.method not in BASELINES

    items = evidence_of(case, chosen)
    what = f"a true positive rate at {100 * policy.at_fpr:g} % false positives (privctl audit --members --nonmembers)"
    yield from _check_maximum(case, policy, TPR, policy.max_tpr, items, what)


def extraction(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the share of training text that the model reproduces, queried once or by repeated sampling."""
    if policy.max_extracted is None:
        return
    items = evidence_of(case, lambda item: item.quantity == _EXTRACTED or item.quantity.startswith(_IN_TEXTS))
    yield from _check_maximum(
        case, policy, EXTRACTED, policy.max_extracted, items, "extraction (privctl audit --train)"
    )


def disclosure(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the share of planted canaries that the model completes."""
    if policy.max_disclosed is None:
        return
    items = evidence_of(case, lambda item: item.quantity.startswith(_DISCLOSED))
    yield from _check_maximum(
        case, policy, DISCLOSED, policy.max_disclosed, items, "canaries (privctl audit --canaries)"
    )


def lower_bound(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the certified lower bound on epsilon for one example."""
    limit = policy.max_epsilon_lower_bound
    if limit is None:
        return
    items = lower_bounds(case)
    if not items:
        yield _missing(case, policy, LOWER_BOUND, "a lower bound on epsilon (privctl audit --canaries, or --split)")
    passed: list[_EvidenceItem] = []
    for report, i, item in items:
        doubt = _why_doubtful(item, policy) or ("" if item.lower is not None else "it has no lower bound")
        doubt = doubt or why_not_planted(report)
        delta = item.details.get("delta", 0.0)
        if doubt:
            yield _inconclusive(LOWER_BOUND, report, i, item, doubt, _FIX_AUDIT)
        elif delta > policy.at_delta and not (item.lower is not None and item.lower > limit):
            # At a larger delta, epsilon is smaller.
            message = f"it is at delta {delta:g}, and the policy asks for {policy.at_delta:g}"
            yield _inconclusive(LOWER_BOUND, report, i, item, message, f"audit with --delta {policy.at_delta:g}")
        elif item.lower is not None and item.lower > limit:
            yield Finding(
                rule=LOWER_BOUND,
                outcome=GateOutcome.FAIL,
                subject=_name_of(item),
                message=f"epsilon is certainly at least {item.lower:.4g}, above {limit:g}",
                fix=_fix_privacy(case),
                place=report.place("evidence", i, "lower"),
            )
        else:
            unaccepted = why_unaccepted(report, policy)
            if unaccepted:
                yield _inconclusive(LOWER_BOUND, report, i, item, unaccepted, FIX)
                continue
            passed.append((report, i, item))
    yield from _pass_finding(LOWER_BOUND, items, passed, lambda item: item.lower or 0.0, limit, "lower")


def _check_maximum(
    case: JudgedModel, policy: Policy, rule: str, limit: float, items: list[_EvidenceItem], what: str
) -> Iterator[Finding]:
    """Check that the upper bound of each of ``items`` is within ``limit``; ``what`` names the audit that is missing."""
    if not items:
        yield _missing(case, policy, rule, what)
    passed: list[_EvidenceItem] = []
    enough = _sample_needed(items, limit)
    for report, i, item in items:
        doubt = _why_doubtful(item, policy) or ("" if item.upper is not None else "it has no upper bound")
        of_members = _TRAINING_ROLES.get(rule) == MEMBERS
        doubt = doubt or (_why_confounded(report) if of_members else "")
        doubt = doubt or (why_not_attacked(case, report, _TRAINING_ROLES[rule]) if rule in _TRAINING_ROLES else "")
        doubt = doubt or (why_not_planted(report) if rule == DISCLOSED else "") or why_unaccepted(report, policy)
        unscored, why = share_unscored(case, report) if of_members else (0.0, "")
        if item.lower is not None and item.lower > limit:
            yield Finding(
                rule=rule,
                outcome=GateOutcome.FAIL,
                subject=_name_of(item),
                message=f"{_interval_text(item)}: even the lower bound is above {limit:g}",
                fix=_fix_privacy(case),
                place=report.place("evidence", i, "lower"),
            )
        elif doubt:
            yield _inconclusive(rule, report, i, item, doubt, FIX if why_unaccepted(report, policy) else _FIX_AUDIT)
        elif item.upper is not None and item.upper > limit:
            above = item.estimate is not None and item.estimate > limit
            fix = _FIX_MODEL if above else _FIX_SIZE.format(enough)
            yield _inconclusive(
                rule, report, i, item, f"{_interval_text(item)}: the upper bound is above {limit:g}", fix
            )
        elif item.upper is not None and (worst := _upper_for_all(item.upper, unscored)) > limit:
            of_all = f"up to {worst:.4g} over all members: {100 * unscored:.3g} % of them were not scored completely"
            yield _inconclusive(rule, report, i, item, f"{_interval_text(item)}, but {of_all} ({why})", _FIX_COVERAGE)
        else:
            passed.append((report, i, item))
    if (
        passed
        and rule in _TRAINING_ROLES
        and (left := unaudited_file(case, [report for report, _, _ in passed], _TRAINING_ROLES[rule]))
    ):
        report, i, item = passed[0]
        message = f"the model was also trained on {left.path}, which no audit took as training data"
        yield _inconclusive(rule, report, i, item, message, "audit all files of the training, in one audit or several")
    if (
        passed
        and _TRAINING_ROLES.get(rule) == MEMBERS
        and (other := why_other_unit([report for report, _, _ in passed], policy))
    ):
        report, i, item = passed[0]
        fix = f"also audit groups of records (privctl audit membership --group-by {policy.protects})"
        yield _inconclusive(rule, report, i, item, other, fix)
    word = training_data_remark(case) if rule in _TRAINING_ROLES else ""
    word += texts_tested_remark([report for report, _, _ in passed]) if rule == EXTRACTED else ""
    yield from _pass_finding(rule, items, passed, lambda item: item.upper or 0.0, limit, "upper", word)


def _upper_for_all(upper: float, unscored: float) -> float:
    """An upper bound over all members: ``upper`` for those scored, 1 for the share ``unscored``."""
    return (1 - unscored) * upper + unscored


def _sample_needed(items: Sequence[_EvidenceItem], limit: float) -> str:
    """How many records would bring all upper bounds within ``limit`` if the estimates stay the same, in words."""
    times = [
        (more, item, report)
        for report, _, item in items
        if item.estimate is not None
        and item.upper is not None
        and item.upper > limit
        and (more := times_for_bound(item.estimate, item.upper, limit)) is not None
    ]
    if not times:
        return "more records"
    more, item, report = max(times, key=lambda entry: entry[0])
    return needed_sample(item, more, grouped=groups_of(report) is not None) or "more records"


def _pass_finding(
    rule: str,
    items: list[_EvidenceItem],
    passed: list[_EvidenceItem],
    size: Callable[[Evidence], float],
    limit: float,
    end: str,
    word: str = "",
) -> Iterator[Finding]:
    if not passed:
        return
    report, i, item = max(passed, key=lambda entry: size(entry[2]))
    kind = (
        ""
        if len(items) == 1
        else f"the largest of {len(passed)} "
        if len(passed) == len(items)
        else "among the rest, the largest "
    )
    yield Finding(
        rule=rule,
        outcome=GateOutcome.PASS,
        subject=_name_of(item),
        message=f"{kind}{end} bound{'s' if kind.startswith('the') else ''} {size(item):.4g} is within {limit:g}{word}",
        place=report.place("evidence", i, end),
    )


def _why_doubtful(item: Evidence, policy: Policy) -> str:
    """Why ``item`` cannot make the gate pass; empty if it can."""
    if why_impossible(item):
        return "it contradicts itself"
    if item.estimate is None:
        return item.reason or "it was not measured"
    if item.confidence < policy.min_confidence:
        return (
            f"its confidence is {100 * item.confidence:g} %, and the policy asks for {100 * policy.min_confidence:g} %"
        )
    return ""


def _fix_privacy(case: JudgedModel) -> str:
    noise = ", or add noise (privctl noise)," if case.takes_noise else ""
    return f"retrain with a smaller epsilon (privctl retrain dp-sgd){noise} and audit again"


def _why_confounded(report: LoadedReport) -> str:
    """Why an audit is confounded; empty if no baseline tells members from non-members without the model."""
    apart = [
        item.method
        for item in report.report.evidence
        if item.method in (BLIND, LENGTH)
        and item.quantity == "AUC"
        and item.lower is not None
        and item.upper is not None
        and not item.lower <= 0.5 <= item.upper
    ]
    return f"confounded: the records differ without the model ({' and '.join(apart)})" if apart else ""


def why_not_planted(report: LoadedReport) -> str:
    """Why canaries show nothing about this model; empty if the audit checked that they were planted in its data."""
    try:
        conditions = parameters_as(AuditParameters, report.report).canary_conditions or ()
    except ParametersError as fault:
        return f"the conditions on its canaries cannot be read: {fault}"
    for condition in conditions:
        if condition.state is AssumptionState.VIOLATED or (
            condition.name == _PLANTED and condition.state is not AssumptionState.CHECKED
        ):
            return f"its canaries may not be in this model's training data: {condition.statement}"
        if condition.name == _NUMBER and condition.state is not AssumptionState.CHECKED:
            return f"its bounds are not proved unless this holds: {condition.statement}"
    return ""


def fpr_of(quantity: str) -> float | None:
    """The false positive rate in a quantity's name: 0.01 for "TPR at 1 % FPR"; None for any other quantity."""
    if not (quantity.startswith(_TPR) and quantity.endswith(_FPR)):
        return None
    try:
        return float(quantity.removeprefix(_TPR).removesuffix(_FPR)) / 100
    except ValueError:
        return None


def _name_of(item: Evidence) -> str:
    return f"{item.method} {item.quantity}"


def _interval_text(item: Evidence) -> str:
    numbers = ["-" if value is None else f"{value:.4g}" for value in (item.estimate, item.lower, item.upper)]
    return f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def _missing(case: JudgedModel, policy: Policy, rule: str, what: str) -> Finding:
    return Finding(
        rule=rule,
        outcome=GateOutcome.INCONCLUSIVE,
        subject=case.name,
        message="no audit given for this model measured it",
        fix=f"give the report of an audit of {what}",
        place=policy.places.get(rule, case.default_place),
    )


def _inconclusive(rule: str, report: LoadedReport, index: int, item: Evidence, message: str, fix: str) -> Finding:
    return Finding(
        rule=rule,
        outcome=GateOutcome.INCONCLUSIVE,
        subject=_name_of(item),
        message=message,
        fix=fix,
        place=report.place("evidence", index, "upper"),
    )
