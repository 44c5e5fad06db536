"""A model's guarantees: the best one that counts, by the policy's delta, status, notion, unit and so on.

Every guarantee is a bound by itself, so one that counts and is small enough suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.guarantee import AssumptionState, Guarantee, Notion, PrivacyUnit, RiskMeasure, Scope, Status
from privctl.domain.mechanism import WeightNoise
from privctl.domain.protected import meaning_of_example
from privctl.domain.strength import OF_OTHER_LOOPS
from privctl.gate.checks.contradictions import why_inconsistent
from privctl.gate.checks.leakage import lower_bounds
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

EPSILON, POSTERIOR = "max_epsilon", "max_posterior"
#: Assumptions about the loss that was trained. They are false of neural networks, so a policy must name them.
OF_THE_LOSS = frozenset({
    "convex-loss", "strongly-convex-loss", "smooth-loss", "clipping-inactive", "clipping-keeps-convexity", "step-size",
})  # fmt: skip
_ORDER = {Status.PROVED: 0, Status.CONDITIONAL: 1, Status.CLAIMED: 2}

#: A guarantee that counts: its report, its position there, itself and the number that is judged.
Counted = tuple[LoadedReport, int, Guarantee, float]


def epsilon(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """The smallest epsilon at a delta of at most ``at_delta``, and certified lower bounds that contradict it."""
    limit = policy.max_epsilon
    if limit is None:
        return
    for report, i, item in lower_bounds(case):
        delta = item.details.get("delta", 1.0)
        if item.lower is not None and item.lower > limit and delta >= policy.at_delta:
            yield Finding(
                rule=EPSILON,
                outcome=GateOutcome.FAIL,
                subject=f"{item.method} {item.quantity}",
                message=f"an audit certifies that epsilon is at least {item.lower:.4g} at delta {delta:g}, above "
                f"{limit:g}, whatever is guaranteed",
                fix="the guarantee cannot be true, or it is not this model's: find out which before a release",
                place=report.place("evidence", i, "lower"),
            )

    unit = "nats" if Notion.APPROXIMATE_DP not in policy.notions else "epsilon"
    yield from _judge(
        case,
        policy,
        EPSILON,
        partial(_epsilon_of, policy),
        limit,
        lambda g, size: f"{unit} {size:.4g} at delta {g.delta:g} ({', '.join(_terms(g))})",
        f"train with a smaller budget (privctl retrain dp-sgd --epsilon {limit:g} --delta {policy.at_delta:g}) or add "
        "noise (privctl noise)",
    )


def that_decide(case: JudgedModel, policy: Policy) -> tuple[list[Counted], list[str]]:
    """The guarantees that count for ``max_epsilon``, those that meet it if any does; and why others do not count."""
    counted, others = _count(case, policy, partial(_epsilon_of, policy))
    limit = math.inf if policy.max_epsilon is None else policy.max_epsilon
    return [each for each in counted if each[3] <= limit] or counted, others


def within_limit(case: JudgedModel, policy: Policy) -> list[tuple[LoadedReport, Guarantee]]:
    """The (epsilon, delta)-guarantees of one example that count for the policy's ``max_epsilon`` and meet it.

    Each comes with its report. Mere claims are left out, even where the policy counts them.
    """
    limit = -math.inf if policy.max_epsilon is None else policy.max_epsilon
    counted, _ = _count(case, policy, partial(_epsilon_of, policy))
    return [
        (report, each)
        for report, _, each, size in counted
        if size <= limit
        and (each.unit, each.notion) == (PrivacyUnit.EXAMPLE, Notion.APPROXIMATE_DP)
        and each.status is not Status.CLAIMED
    ]


def _terms(guarantee: Guarantee) -> Iterator[str]:
    """What a guarantee is called, its neighbours, and what one example is where that is more than a record."""
    yield guarantee.name
    yield str(guarantee.adjacency)
    if meaning := meaning_of_example(guarantee):
        yield f"of {meaning}"


def _epsilon_of(policy: Policy, guarantee: Guarantee) -> float | str:
    """Its epsilon, or why ``max_epsilon`` is not about it."""
    if guarantee.notion not in policy.notions:
        return f"is about {guarantee.notion}"
    if guarantee.unit not in policy.units:
        return f"protects one {guarantee.unit}"
    if guarantee.delta > policy.at_delta:
        return f"is at delta {guarantee.delta:g}"
    return "bounds no epsilon" if guarantee.epsilon is None else guarantee.epsilon


def posterior(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """The largest posterior of a secret in the data."""
    if policy.max_posterior is None:
        return

    def value(guarantee: Guarantee) -> float | str:
        if guarantee.unit is not PrivacyUnit.SECRET:
            return f"protects one {guarantee.unit}"
        bounds = [risk.bound for risk in guarantee.risks if risk.measure is RiskMeasure.POSTERIOR]
        return max(bounds) if bounds else "bounds no posterior"

    yield from _judge(
        case,
        policy,
        POSTERIOR,
        value,
        policy.max_posterior,
        lambda g, size: f"a posterior of {size:.4g} ({g.name})",
        "retrain with a plan of protection for smaller posteriors (privctl retrain dp-sgd --secrets)",
    )


def _judge(
    case: JudgedModel,
    policy: Policy,
    rule: str,
    value: Callable[[Guarantee], float | str],
    limit: float,
    describe: Callable[[Guarantee, float], str],
    fix: str,
) -> Iterator[Finding]:
    place = policy.places.get(rule, case.anchor)
    if undecided := of_no_report(case, policy, rule):
        yield undecided
        return
    counted, others = _count(case, policy, value)
    if not counted:
        reasons = "; ".join(dict.fromkeys(others)) or "the reports state none"
        yield Finding(
            rule=rule,
            outcome=GateOutcome.FAIL,
            subject=case.name,
            message=f"no guarantee counts: {reasons}",
            fix=_fix_of_what_is_released(case) or _fix_of_what_is_unchecked(case, policy, value, limit) or fix,
            place=_first(case, place),
        )
        return
    within = [each for each in counted if each[3] <= limit]
    best = min(within or counted, key=lambda each: (_ORDER[each[2].status] if within else 0, each[3]))
    report, i, guarantee, size = best
    where = report.place("guarantees", i, "epsilon" if rule == EPSILON else "risks")
    yield Finding(
        rule=rule,
        outcome=GateOutcome.PASS if within else GateOutcome.FAIL,
        subject=guarantee.name,
        message=f"{describe(guarantee, size)} is {'within' if within else 'above'} {limit:g}; {_basis(guarantee)}",
        fix="" if within else fix,
        place=where,
    )


def of_no_report(case: JudgedModel, policy: Policy, rule: str) -> Finding | None:
    """A finding that no report given says what is guaranteed; None where one does, or says that nothing is."""
    message, fix = "no report given says how this model was made", "give the report that was written with the model"
    place = policy.places.get(rule, case.anchor)
    if case.makers:
        replayed = next((each for each in case.makers if each.report.step == "replay"), None)
        if replayed is None or any(True for _ in case.guarantees):
            return None
        message = "these weights were made again from published updates, and no report given says what was published"
        fix, place = "give the report of the training that published them too", replayed.place("inputs")
    return Finding(
        rule=rule, outcome=GateOutcome.INCONCLUSIVE, subject=case.name, message=message, fix=fix, place=place
    )  # fmt: skip


def _count(
    case: JudgedModel, policy: Policy, value: Callable[[Guarantee], float | str]
) -> tuple[list[Counted], list[str]]:
    """The guarantees that the policy counts, with their values, and why the others do not count."""
    counted: list[Counted] = []
    others: list[str] = []
    for report, i, guarantee in case.guarantees:
        size = value(guarantee)
        reason = size if isinstance(size, str) else _why_not_counted(report, guarantee, policy)
        if isinstance(size, str) or reason:
            others.append(f"{guarantee.name} {reason}")
        else:
            counted.append((report, i, guarantee, size))
    return counted, others


#: Name of an assumption that training violated -> what makes it hold. No smaller budget does.
_OF_WHAT_IS_RELEASED = {
    "starting weights": "train again from weights that were made without these examples",
    "vocabulary": "train with a public vocabulary: --vocabulary FILE, words chosen without the private examples",
    "labels": "train with public class names: --labels a,b,c, or a file with one name a line",
}


def _fix_of_what_is_released(case: JudgedModel) -> str:
    """What would help where names or weights made from the examples void the guarantees; "" where that is not why."""
    assumptions = [a for report in case.makers for g in report.report.guarantees for a in g.assumptions]
    violated = {a.name for a in assumptions if a.state is AssumptionState.VIOLATED}
    return "; ".join(fix for name, fix in _OF_WHAT_IS_RELEASED.items() if name in violated)


def _fix_of_what_is_unchecked(
    case: JudgedModel, policy: Policy, value: Callable[[Guarantee], float | str], limit: float
) -> str:
    """What would help where all that a guarantee lacks is that the policy accepts its unchecked assumptions.

    Empty where it is above ``limit`` too, unless another program's loop trained it.
    """
    for report, _, guarantee in case.guarantees:
        names, size = _unchecked_assumptions(guarantee), value(guarantee)
        accepting = replace(policy, accepted_assumptions=tuple(names))
        if isinstance(size, str) or _why_not_counted(report, guarantee, accepting):
            continue
        if OF_OTHER_LOOPS & set(names):
            return f"if somebody answers for the loop that trained it, list in accepted_assumptions: {_quoted(names)}"
        if size <= limit:
            accepted = policy.accepted_assumptions
            verb, missing = ("list in", names) if accepted is None else ("add to", _without(names, accepted))
            holds = "it holds of this model's loss, which of a neural network's it does not"
            question = holds if OF_THE_LOSS & set(missing) else "somebody answers for what is not checked"
            return f"if {question}, {verb} accepted_assumptions: {_quoted(missing)}"
    return ""


def _quoted(names: Sequence[str]) -> str:
    """The names as a list of a policy has them."""
    return ", ".join(f'"{name}"' for name in names)


def _without(names: list[str], accepted: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in accepted]


def _why_not_counted(report: LoadedReport, guarantee: Guarantee, policy: Policy) -> str:
    """Why the policy does not count ``guarantee``; empty where it does."""
    if why_inconsistent(guarantee):
        return "contradicts itself"
    if guarantee.status not in policy.require:
        return f"is {guarantee.status}"
    if guarantee.adjacency not in policy.adjacencies:
        return f"has adjacency {guarantee.adjacency}"
    if policy.scope is Scope.ALL_CANDIDATES and guarantee.scope is Scope.THIS_MODEL and _candidates(report) > 1:
        return "speaks of one of several candidates alone"
    accepted = policy.accepted_assumptions
    unaccepted = [
        name
        for name in _unchecked_assumptions(guarantee)
        if (name in OF_THE_LOSS | OF_OTHER_LOOPS if accepted is None else name not in accepted)
    ]
    if unaccepted:
        return f"rests on {', '.join(unaccepted)}, which the policy does not accept unchecked"
    try:
        records = _records(report)
    except ParametersError as fault:
        return f"is for a number of examples that cannot be read: {fault}"
    if records and guarantee.delta * records >= 1:
        return f"is at delta {guarantee.delta:g}, at which one of {records} examples may come out whole"
    return ""


def _records(report: LoadedReport) -> int:
    """The number of examples behind a report; 0 where it names none. Raises ParametersError."""
    mechanism = report.report.mechanism
    if isinstance(mechanism, WeightNoise):
        return 0 if mechanism.training is None else mechanism.training.dataset_size
    return parameters_as(TrainingParameters, report.report).examples or 0


def _candidates(report: LoadedReport) -> int:
    mechanism = report.report.mechanism
    return len(mechanism.candidate_stddevs) if isinstance(mechanism, WeightNoise) else 1


def _unchecked_assumptions(guarantee: Guarantee) -> list[str]:
    return [a.name for a in guarantee.assumptions if a.state is AssumptionState.ASSERTED]


def _basis(guarantee: Guarantee) -> str:
    unchecked = _unchecked_assumptions(guarantee)
    arithmetic = "in real arithmetic" if guarantee.arithmetic is None else "for the floats that were written"
    return f"{guarantee.status}, " + (f"if this holds: {', '.join(unchecked)}" if unchecked else arithmetic)


def _first(case: JudgedModel, place: FileLine) -> FileLine:
    return next((report.place("guarantees") for report in case.makers), place)
