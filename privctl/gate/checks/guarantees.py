"""A model's guarantees: those that the policy counts, by delta, status, notion, unit and so on.

Each guarantee is a bound by itself, so one that counts and is within the limit suffices.
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
#: Assumptions about the training loss. They do not hold for neural networks, so a policy must accept them by name.
OF_THE_LOSS = frozenset({
    "convex-loss", "strongly-convex-loss", "smooth-loss", "clipping-inactive", "clipping-keeps-convexity", "step-size",
})  # fmt: skip
_ORDER = {Status.PROVED: 0, Status.CONDITIONAL: 1, Status.CLAIMED: 2}

#: A guarantee that counts: its report, its index there, the guarantee, and the number that is compared with the limit.
CountedGuarantee = tuple[LoadedReport, int, Guarantee, float]


def epsilon(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the smallest epsilon at a delta of at most ``at_delta``, and certified lower bounds above the limit."""
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
                f"{limit:g}, whatever the reports guarantee",
                fix="the guarantee is false, or it is not for this model: find out which before a release",
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
        f"train with a smaller budget (privctl retrain dp-sgd --epsilon {limit:g} --delta {policy.at_delta:g})"
        + (" or add noise (privctl noise)" if case.takes_noise else ""),
    )


def deciding_guarantees(case: JudgedModel, policy: Policy) -> tuple[list[CountedGuarantee], list[str]]:
    """The guarantees that count for ``max_epsilon`` (those within it, if any), and why others do not count."""
    counted, others = _count(case, policy, partial(_epsilon_of, policy))
    limit = math.inf if policy.max_epsilon is None else policy.max_epsilon
    return [candidate for candidate in counted if candidate[3] <= limit] or counted, others


def within_limit(case: JudgedModel, policy: Policy) -> list[tuple[LoadedReport, Guarantee]]:
    """The (epsilon, delta)-guarantees for one example that count and are within ``max_epsilon``, with their reports.

    Guarantees that are only claimed are left out, even if the policy counts them.
    """
    limit = -math.inf if policy.max_epsilon is None else policy.max_epsilon
    counted, _ = _count(case, policy, partial(_epsilon_of, policy))
    return [
        (report, guarantee)
        for report, _, guarantee, size in counted
        if size <= limit
        and (guarantee.unit, guarantee.notion) == (PrivacyUnit.EXAMPLE, Notion.APPROXIMATE_DP)
        and guarantee.status is not Status.CLAIMED
    ]


def _terms(guarantee: Guarantee) -> Iterator[str]:
    """A guarantee's name, its adjacency, and what one example is if it is more than a record."""
    yield guarantee.name
    yield str(guarantee.adjacency)
    if meaning := meaning_of_example(guarantee):
        yield f"of {meaning}"


def _epsilon_of(policy: Policy, guarantee: Guarantee) -> float | str:
    """The epsilon of ``guarantee``, or why it does not count for ``max_epsilon``."""
    if guarantee.notion not in policy.notions:
        return f"is about {guarantee.notion}"
    if guarantee.unit not in policy.units:
        return f"protects one {guarantee.unit}"
    if guarantee.delta > policy.at_delta:
        return f"is at delta {guarantee.delta:g}"
    return "bounds no epsilon" if guarantee.epsilon is None else guarantee.epsilon


def posterior(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the largest posterior probability of a secret in the data."""
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
        "retrain with a protection plan for smaller posteriors (privctl retrain dp-sgd --secrets)",
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
    place = policy.places.get(rule, case.default_place)
    if undecided := missing_report(case, policy, rule):
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
            fix=_fix_for_violated(case) or _fix_for_unchecked(case, policy, value, limit) or fix,
            place=_guarantees_place(case, place),
        )
        return
    within = [candidate for candidate in counted if candidate[3] <= limit]
    best = min(within or counted, key=lambda candidate: (_ORDER[candidate[2].status] if within else 0, candidate[3]))
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


def missing_report(case: JudgedModel, policy: Policy, rule: str) -> Finding | None:
    """A finding that the report that would state the guarantees was not given; None if it was."""
    message, fix = "no report given says how this model was made", "give the report that was written with the model"
    place = policy.places.get(rule, case.default_place)
    if case.writers:
        replayed = next((writer for writer in case.writers if writer.report.step == "replay"), None)
        if replayed is None or any(True for _ in case.guarantees):
            return None
        message = "these weights were rebuilt from published updates, and no report of the training was given"
        fix, place = "also give the report of the training that published the updates", replayed.place("inputs")
    return Finding(
        rule=rule, outcome=GateOutcome.INCONCLUSIVE, subject=case.name, message=message, fix=fix, place=place
    )  # fmt: skip


def _count(
    case: JudgedModel, policy: Policy, value: Callable[[Guarantee], float | str]
) -> tuple[list[CountedGuarantee], list[str]]:
    """The guarantees that the policy counts, with their values, and why the others do not count."""
    counted: list[CountedGuarantee] = []
    others: list[str] = []
    for report, i, guarantee in case.guarantees:
        size = value(guarantee)
        reason = size if isinstance(size, str) else _why_not_counted(report, guarantee, policy)
        if isinstance(size, str) or reason:
            others.append(f"{guarantee.name} {reason}")
        else:
            counted.append((report, i, guarantee, size))
    return counted, others


#: Name of an assumption that the training violated -> how to fulfil it; a smaller budget does not help.
_FIX_BY_ASSUMPTION = {
    "starting weights": "train again from weights that were made without these examples",
    "vocabulary": "train with a public vocabulary: --vocabulary FILE, words chosen without the private examples",
    "labels": "train with public class names: --labels a,b,c, or a file with one name a line",
    "scaling": "train with public numbers in preprocessor_config.json, such as 0.5 for every mean and deviation",
}


def _fix_for_violated(case: JudgedModel) -> str:
    """How to fulfil the assumptions whose violation voids the guarantees; empty if none is violated."""
    assumptions = [a for report in case.writers for g in report.report.guarantees for a in g.assumptions]
    violated = {a.name for a in assumptions if a.state is AssumptionState.VIOLATED}
    return "; ".join(fix for name, fix in _FIX_BY_ASSUMPTION.items() if name in violated)


def _fix_for_unchecked(
    case: JudgedModel, policy: Policy, value: Callable[[Guarantee], float | str], limit: float
) -> str:
    """Advice if a guarantee would count once the policy accepts its unchecked assumptions; empty if none would.

    A guarantee above ``limit`` does not qualify, unless another program's loop trained the model.
    """
    for report, _, guarantee in case.guarantees:
        names, size = _unchecked_assumptions(guarantee), value(guarantee)
        accepting = replace(policy, accepted_assumptions=tuple(names))
        if isinstance(size, str) or _why_not_counted(report, guarantee, accepting):
            continue
        if OF_OTHER_LOOPS & set(names):
            return f"if somebody vouches for the training loop, list in accepted_assumptions: {_quoted(names)}"
        if size <= limit:
            accepted = policy.accepted_assumptions
            verb, missing = ("list in", names) if accepted is None else ("add to", _not_accepted(names, accepted))
            holds = "this holds for the model's loss, which it does not for a neural network"
            question = holds if OF_THE_LOSS & set(missing) else "somebody vouches for the unchecked assumptions"
            return f"if {question}, {verb} accepted_assumptions: {_quoted(missing)}"
    return ""


def _quoted(names: Sequence[str]) -> str:
    """The names in quotes, as in a policy's list."""
    return ", ".join(f'"{name}"' for name in names)


def _not_accepted(names: list[str], accepted: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in accepted]


def _why_not_counted(report: LoadedReport, guarantee: Guarantee, policy: Policy) -> str:
    """Why the policy does not count ``guarantee``; empty if it does."""
    if why_inconsistent(guarantee):
        return "contradicts itself"
    if guarantee.status not in policy.require:
        return f"is {guarantee.status}"
    if guarantee.adjacency not in policy.adjacencies:
        return f"has adjacency {guarantee.adjacency}"
    if policy.scope is Scope.ALL_CANDIDATES and guarantee.scope is Scope.THIS_MODEL and _candidates(report) > 1:
        return "covers only one of several candidates"
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
        return f"is for an unknown number of examples: {fault}"
    if records and guarantee.delta * records >= 1:
        return f"is at delta {guarantee.delta:g}, which permits revealing one of the {records} examples completely"
    return ""


def _records(report: LoadedReport) -> int:
    """The number of training examples; 0 if the report states none. Raises ParametersError."""
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


def _guarantees_place(case: JudgedModel, place: FileLine) -> FileLine:
    return next((report.place("guarantees") for report in case.writers), place)
