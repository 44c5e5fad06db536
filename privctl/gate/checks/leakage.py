"""What audits measured, judged by the relevant end of the interval, never by the estimate.

A quantity is within a maximum if its upper bound is, and above it if its lower bound is. Otherwise the audit was too
small to decide, or gave no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.guarantee import AssumptionState
from privctl.domain.sample_size import needed_sample, times_for_bound
from privctl.gate.checks.audited_records import (
    MEMBERS,
    TRAIN,
    on_whose_word,
    share_unscored,
    texts_looked_at,
    unaudited,
    why_not_attacked,
)
from privctl.gate.checks.contradictions import why_impossible
from privctl.gate.checks.outside_scores import FIX, why_unaccepted
from privctl.gate.checks.units import TRAININGS, groups_of, unit_of, why_of_others
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from verify.audits.terms import of_split

AUC, TPR, EXPOSURE, DISCLOSED = "max_auc", "max_tpr", "max_exposure", "max_disclosed"
EXTRACTED, LOWER_BOUND = "max_extracted", "max_epsilon_lower_bound"
#: Attacks without the model, which show how the records differ by themselves.
BLIND, LENGTH, CONTROL = "blind baseline", "length baseline", "reference control"
BASELINES = (BLIND, LENGTH, CONTROL)
#: Beginnings and parts of quantities' names, as audits write them.
_TPR, _FPR = "TPR at ", " % FPR"
_MEDIAN, _DISCLOSED = "median bits, included", "disclosed, included"
_EXTRACTED, _IN_TEXTS = "rate on training text", "training text found in "
_BIGGER = "audit again with {}, so that the interval is narrower"
_MEND = "remove the cause that the audit names, and replace its report by another audit (privctl audit --force)"
_NOT_BIGGER = "the estimate itself is above the limit, so a larger audit would likely fail: make the model safer"
_ALL = (
    "give records to compare with of which the training data hold none, and --max-length as the training, so that all "
    "members are scored to their end"
)
_PRIVATE = "retrain with a smaller epsilon (privctl retrain dp-sgd), or add noise (privctl noise), and audit again"

#: Rule -> the role of what an audit took as training data for it.
_TRAINED = {AUC: MEMBERS, TPR: MEMBERS, EXTRACTED: TRAIN}
_PLANTED, _NUMBER = "trained on the planted data", "number included"

#: One measured thing: the report, its position there, itself.
_EvidenceItem = tuple[LoadedReport, int, Evidence]


def evidence_of(case: JudgedModel, chosen: Callable[[Evidence], bool]) -> list[_EvidenceItem]:
    """The evidence in this model's audits for which ``chosen`` holds."""
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
    """The certified lower bounds on epsilon for one example of the model's trainings: a record, or a group.

    Where all records with one value of a field were one example, coins of single records bound something else.
    """
    units = {unit_of(each) for each in case.history if each.report.step in TRAININGS}
    found = []
    for report, i, item in evidence_of(case, lambda each: is_lower_bound(each) or is_group_bound(each)):
        try:
            stated = parameters_as(AuditParameters, report.report)
        except ParametersError:
            stated = AuditParameters()
        of_records = is_lower_bound(item) and not (of_split(item, stated) and units - {None})
        if of_records or (is_group_bound(item) and units == {stated.group_by}):
            found.append((report, i, item))
    return found


def auc(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Every attack's AUC; one far below 0.5 suggests that the two files were swapped."""
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
                message=f"the sides differ backwards: {_interval_text(item)} lies below {1 - limit:.3g}",
                fix="check that members and non-members were not swapped and come from one source; audit again",
                place=report.place("evidence", i, "upper"),
            )


def tpr(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Every attack's true positive rate at the policy's false positive rate."""
    if policy.max_tpr is None:
        return

    def chosen(item: Evidence) -> bool:
        rate = fpr_of(item.quantity)
        return rate is not None and math.isclose(rate, policy.at_fpr, rel_tol=1e-6) and item.method not in BASELINES

    items = evidence_of(case, chosen)
    what = f"a true positive rate at {100 * policy.at_fpr:g} % false positives (privctl audit --members --nonmembers)"
    yield from _check_maximum(case, policy, TPR, policy.max_tpr, items, what)


def extraction(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Training text that the model writes by itself, queried once or often."""
    if policy.max_extracted is None:
        return
    items = evidence_of(case, lambda item: item.quantity == _EXTRACTED or item.quantity.startswith(_IN_TEXTS))
    yield from _check_maximum(
        case, policy, EXTRACTED, policy.max_extracted, items, "extraction (privctl audit --train)"
    )


def disclosure(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Planted canaries that the model completes."""
    if policy.max_disclosed is None:
        return
    items = evidence_of(case, lambda item: item.quantity.startswith(_DISCLOSED))
    yield from _check_maximum(
        case, policy, DISCLOSED, policy.max_disclosed, items, "canaries (privctl audit --canaries)"
    )


def lower_bound(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """The certified lower bound on epsilon of one example: its lower end is what counts."""
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
            yield _inconclusive(LOWER_BOUND, report, i, item, doubt, _MEND)
        elif delta > policy.at_delta and not (item.lower is not None and item.lower > limit):
            # A larger delta makes any epsilon small.
            message = f"it is at delta {delta:g}, and the policy asks at {policy.at_delta:g}"
            yield _inconclusive(LOWER_BOUND, report, i, item, message, f"audit with --delta {policy.at_delta:g}")
        elif item.lower is not None and item.lower > limit:
            yield Finding(
                rule=LOWER_BOUND,
                outcome=GateOutcome.FAIL,
                subject=_name_of(item),
                message=f"epsilon is certainly at least {item.lower:.4g}, above {limit:g}",
                fix=_PRIVATE,
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
    """Whether every quantity ``items`` has its upper bound within ``limit``."""
    if not items:
        yield _missing(case, policy, rule, what)
    passed: list[_EvidenceItem] = []
    enough = _enough(items, limit)
    for report, i, item in items:
        doubt = _why_doubtful(item, policy) or ("" if item.upper is not None else "it has no upper bound")
        of_members = _TRAINED.get(rule) == MEMBERS
        doubt = doubt or (_why_confounded(report) if of_members else "")
        doubt = doubt or (why_not_attacked(case, report, _TRAINED[rule]) if rule in _TRAINED else "")
        doubt = doubt or (why_not_planted(report) if rule == DISCLOSED else "") or why_unaccepted(report, policy)
        unscored, why = share_unscored(case, report) if of_members else (0.0, "")
        if item.lower is not None and item.lower > limit:
            yield Finding(
                rule=rule,
                outcome=GateOutcome.FAIL,
                subject=_name_of(item),
                message=f"{_interval_text(item)}: even the lower bound is above {limit:g}",
                fix=_PRIVATE,
                place=report.place("evidence", i, "lower"),
            )
        elif doubt:
            yield _inconclusive(rule, report, i, item, doubt, FIX if why_unaccepted(report, policy) else _MEND)
        elif item.upper is not None and item.upper > limit:
            above = item.estimate is not None and item.estimate > limit
            fix = _NOT_BIGGER if above else _BIGGER.format(enough)
            yield _inconclusive(
                rule, report, i, item, f"{_interval_text(item)}: the upper bound is above {limit:g}", fix
            )
        elif item.upper is not None and (worst := _of_all(item.upper, unscored)) > limit:
            of_all = f"it may be {worst:.4g} of all: {100 * unscored:.3g} % of the members were not scored to their end"
            yield _inconclusive(rule, report, i, item, f"{_interval_text(item)}, but {of_all} ({why})", _ALL)
        else:
            passed.append((report, i, item))
    if passed and rule in _TRAINED and (left := unaudited(case, [report for report, _, _ in passed], _TRAINED[rule])):
        report, i, item = passed[0]
        message = f"the model was trained on {left.path} too, which no audit took as training data"
        yield _inconclusive(rule, report, i, item, message, "audit all files of the training, in one audit or several")
    if passed and _TRAINED.get(rule) == MEMBERS and (other := why_of_others([each for each, _, _ in passed], policy)):
        report, i, item = passed[0]
        fix = f"audit the owners of records too (privctl audit membership --group-by {policy.protects})"
        yield _inconclusive(rule, report, i, item, other, fix)
    word = on_whose_word(case) if rule in _TRAINED else ""
    word += texts_looked_at([report for report, _, _ in passed]) if rule == EXTRACTED else ""
    yield from _pass_finding(rule, items, passed, lambda item: item.upper or 0.0, limit, "upper", word)


def _of_all(upper: float, unscored: float) -> float:
    """The upper bound of a share of all members, of which a share ``unscored`` may all be told from others."""
    return (1 - unscored) * upper + unscored


def _enough(items: Sequence[_EvidenceItem], limit: float) -> str:
    """Records that would bring the upper bounds of all ``items`` within ``limit`` if their estimates stay, in words."""
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
    more, item, report = max(times, key=lambda each: each[0])
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
    report, i, item = max(passed, key=lambda each: size(each[2]))
    some = (
        "" if len(items) == 1 else f"the largest of {len(passed)} " if len(passed) == len(items) else "among the rest "
    )
    yield Finding(
        rule=rule,
        outcome=GateOutcome.PASS,
        subject=_name_of(item),
        message=f"{some}{end} bound{'s' if some.startswith('the') else ''} {size(item):.4g} is within {limit:g}{word}",
        place=report.place("evidence", i, end),
    )


def _why_doubtful(item: Evidence, policy: Policy) -> str:
    """Why ``item`` cannot make a gate pass; empty where it can."""
    if why_impossible(item):
        return "it contradicts itself"
    if item.estimate is None:
        return item.reason or "it was not measured"
    if item.confidence < policy.min_confidence:
        return f"it holds with {100 * item.confidence:g} % confidence, and {100 * policy.min_confidence:g} % are asked"
    return ""


def _why_confounded(report: LoadedReport) -> str:
    """Why an audit is confounded; empty where the records cannot be told apart without the model."""
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
    """Why canaries show nothing about this model; empty where the audit checked that they were planted in its data."""
    try:
        conditions = parameters_as(AuditParameters, report.report).canary_conditions or ()
    except ParametersError as fault:
        return f"whether its canaries are this model's is not known: {fault}"
    for each in conditions:
        if each.state is AssumptionState.VIOLATED or (
            each.name == _PLANTED and each.state is not AssumptionState.CHECKED
        ):
            return f"its canaries may not be this model's: {each.statement}"
        if each.name == _NUMBER and each.state is not AssumptionState.CHECKED:
            return f"its bounds have no proof unless this holds: {each.statement}"
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
        message="no audit of this model given measured it",
        fix=f"give the report of an audit of {what}",
        place=policy.places.get(rule, case.anchor),
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
