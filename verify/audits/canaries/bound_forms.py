"""The names of bounds from random inclusion, and whether those that are said to bound nothing may say so.

A bound by another name, or without its value, would be passed over by whoever looks for it. Standard library only, like
``verify.audits.consistency``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from verify.audits.canaries.bounds import wrong_bound
from verify.audits.canaries.gradients import OBSERVED
from verify.audits.terms import BOUND, MAHLOUJIFAR, METHODS, counts_of, of_split

_NAME = re.compile(r"(?P<what>epsilon|mu)(?P<group> of a group)?(?:, [^,]+?)?(?: of groups of (?P<copies>[0-9]+))?")
_NO_BOUND, _GROUP_SIZE = "not a bound: ", "group_records"
#: Bounds by several sets of guesses, which older audits did not have, and what they must state.
_OF_SETS, _ENTRIES = (BOUND, MAHLOUJIFAR), {"copies", "sets", "delta", "ceiling"}
#: Why the scores of a drawn split may give no bound: records were left out, or the model was trained on others.
_LEFT_OUT = re.compile(
    "not a bound: ([0-9]+ (records?|groups?) of the split(?:'s groups)? (has|have) no score, and which ones may depend "
    "on the coins|different records of the split have the same text, so coins are shared)"
)
_ELSEWHERE = re.compile("not a bound: the model's report names other training data than .+ of the split")


def misstated_bounds(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each bound in a form that no audit writes, or without the value that it must have."""
    bounds = [item for item in report.evidence if item.method in METHODS]
    for item in bounds:
        if wrong := _misnamed(item) or _misstated(item):
            yield f"{item.method}, {item.quantity}: {wrong}"
    both = [
        {item.quantity.removeprefix(what) for item in bounds if item.method == method}
        for method, what in ((BOUND, "epsilon"), (MAHLOUJIFAR, "mu"))
    ]
    if both[0] != both[1]:
        yield "its guesses bound epsilon and mu, and it does not state both of each set"
    drawn = [item for item in bounds if of_split(item, parameters)]
    yield from _of_canaries([item for item in bounds if not of_split(item, parameters)], parameters)
    if len({item.reason for item in drawn}) > 1:
        yield "its bounds from the split are of the same coins, and only some of them are said to be no bounds"
    for reason in {item.reason for item in drawn} - {""}:
        left_out = _LEFT_OUT.fullmatch(reason) is not None
        if left_out and _all_scored(report, parameters):
            yield "its bounds from the split are said to lack scores, and its attacks judge all records of the split"
        elif not left_out and _ELSEWHERE.fullmatch(reason) is None:
            yield f"its bounds from the split are said to be none for a reason that no audit has: {reason!r}"


def _of_canaries(bounds: Sequence[Evidence], parameters: AuditParameters) -> Iterator[str]:
    """Yields a sentence for each bound withheld or stated against its conditions, and each missing or unknown one."""
    conditions = parameters.canary_conditions or ()
    broken = any(condition.state is AssumptionState.VIOLATED for condition in conditions)
    for item in bounds:
        if (item.lower is None) is not broken:
            needs = "no condition of its canaries is violated" if item.lower is None else "a condition is violated"
            yield f"{item.method}, {item.quantity}: it is {'no' if item.lower is None else 'a'} bound, and {needs}"
    if not conditions or parameters.canary_commitment is not None:
        return  # not of canary gradients
    names = {item.quantity.partition(", ")[2] for item in bounds}
    for name in OBSERVED:
        if name not in names:
            yield f"it was given canary gradients, and states no bound from what was observed of {name!r}"
    for name in sorted(names - OBSERVED.keys()):
        yield f"it bounds epsilon by {name!r}, which no training observes of canary gradients"


def _misnamed(item: Evidence) -> str:
    found = _NAME.fullmatch(item.quantity)
    what = "mu" if item.method == MAHLOUJIFAR else "epsilon"
    if found is None or found["what"] != what:
        return f"such a bound is on {what}, and has another name"
    if int(found["copies"] or 1) != item.details.get("copies", 1):
        return f"its name is not that of canaries with {item.details['copies']:g} copies"
    if bool(found["group"]) is not (_GROUP_SIZE in item.details):
        return "its name and its details disagree on whether it is of groups"
    return ""


def _misstated(item: Evidence) -> str:
    none = item.lower is None
    if item.method in _OF_SETS and (missing := sorted(_ENTRIES - item.details.keys())):
        return f"its {missing[0]} is missing"
    if none is not item.reason.startswith(_NO_BOUND) or item.bound is not (Bound.NONE if none else Bound.LOWER):
        return "it has no value if and only if it is no bound, for a reason"
    if item.estimate != item.lower or item.upper is not None:
        return "its estimate is another number"
    if item.method in _OF_SETS and item.interval:
        return f"its interval is {item.interval!r}, and no such bound has one"
    return _miscounted(item) if item.method in _OF_SETS and not none else ""


def _miscounted(item: Evidence) -> str:
    """What is wrong with the numbers of guesses, or with the bound that only right ones would give."""
    made_counts = [guesses for _, guesses, _ in counts_of(item)]
    counts = [f"{name} {i}" for i in range(1, len(made_counts) + 1) for name in ("guesses", "made", "correct")]
    for name in counts:
        if not float(item.details[name]).is_integer():
            return f"its {name} is {item.details[name]:g}, and is a number of guesses"
    if item.samples["guesses"] not in made_counts:
        return f"none of its sets makes {item.samples['guesses']} guesses"
    right = {f"correct {number}": guesses for number, guesses in enumerate(made_counts, start=1)}
    ceiling = item.details["ceiling"]
    best = replace(item, estimate=ceiling, lower=ceiling, details={**item.details, **right})
    return f"it cannot exceed {ceiling:.4g}: {wrong}" if (wrong := wrong_bound(best, any_set=True)) else ""


def _all_scored(report: PrivacyReport, parameters: AuditParameters) -> bool:
    """Whether the attacks judge as many records as the split has distinct ones, each with its own coin or none."""
    areas = [item for item in report.evidence if item.quantity == "AUC" and item.method in parameters.attack]
    return parameters.split_groups is None and any(_judged_count(item) == parameters.split_records for item in areas)


def _judged_count(item: Evidence) -> int:
    return sum(item.samples.values())
