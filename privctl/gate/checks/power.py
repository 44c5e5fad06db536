"""The power of audits: an audit that could not have seen a leak is no evidence that there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privctl.domain.evidence import Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.sample_size import needed_sample, times_for_area, times_for_share
from privctl.gate.checks.leakage import evidence_of, is_attack, is_lower_bound
from privctl.gate.checks.outside_scores import FIX, why_unaccepted
from privctl.gate.checks.units import groups_of, holds, whom
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.settings import POWERS

RULE = "min_power"
#: The verdict on extraction goes by the first; the second is all there is without held-out text.
_BEYOND, _ALONE = "rate beyond held-out text", "rate on training text"
#: By records' own beginnings; what other prompts open is another question.
_EXTRACTION = "extraction"
_CHOSEN: dict[str, Callable[[Evidence], bool]] = {
    "auc": is_attack,
    "extraction": lambda item: item.method == _EXTRACTION and item.quantity in (_BEYOND, _ALONE),
    "epsilon": is_lower_bound,
}
_NAMES = {"auc": "an AUC", "extraction": "an extraction rate", "epsilon": "an epsilon"}


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """The smallest effect that one of this model's audits would have detected with power 0.8."""
    for name, required in policy.min_power.items():
        low, high = POWERS[name]
        everything = evidence_of(case, _CHOSEN[name])
        of_whom = ""
        if name == "auc" and policy.field is not None:
            everything = [each for each in everything if holds(groups_of(each[0]), policy.field)]
            of_whom = f", judging {whom(policy.field)}"
        found = [each for each in everything if not why_unaccepted(each[0], policy)]
        compared = {id(report) for report, _, item in found if item.quantity == _BEYOND and item.estimate is not None}
        sizes = [
            (size, report.place("evidence", i, *where), item, report)
            for report, i, item in found
            for size, where in (_least(item),)
            if size is not None and low <= size <= high and not (item.quantity == _ALONE and id(report) in compared)
        ]
        what = _NAMES[name]
        if not sizes:
            outcome, place = GateOutcome.INCONCLUSIVE, policy.places.get(RULE, case.anchor)
            fix = f"give the report of an audit that says what {what} it could have seen{of_whom}"
            message = f"no audit of this model given says what {what} it could have seen{of_whom}"
            if len(found) < len(everything):
                message, fix = f"{message}, but by scores whose origin the policy does not accept", FIX
        else:
            size, place, item, report = min(sizes, key=lambda each: each[0])
            fix = _enough(name, item, size, required, grouped=groups_of(report) is not None)
            seen = size <= required
            outcome = GateOutcome.PASS if seen else GateOutcome.INCONCLUSIVE
            message = f"{what} of {size:.4g} would have been seen, {required:g} {'is' if seen else 'was'} asked" + (
                "" if seen else ": smaller leaks were missed"
            )
        yield Finding(
            rule=RULE,
            outcome=outcome,
            subject=name,
            message=message,
            fix="" if outcome is GateOutcome.PASS else fix,
            place=place,
        )


def _enough(name: str, item: Evidence, size: float, required: float, *, grouped: bool) -> str:
    """What would have let the audit see ``required`` where it saw ``size``, in numbers where they follow."""
    if name == "epsilon":
        return (
            f"before the next training draw a larger split (privctl audit split --to-see {required:g} says whether it "
            "is large enough) or plant more canaries, and audit that model"
        )
    if name == "auc":
        more = needed_sample(item, times_for_area(size, required), grouped=grouped)
    else:
        more = needed_sample(item, times_for_share(size, required, none=not item.details.get("held_out_extracted")))
    return f"audit again with {more or 'more records'}"


def _least(item: Evidence) -> tuple[float | None, tuple[str, ...]]:
    """What ``item`` would have shown, by the test that decides, and where that stands."""
    if item.test is not None:
        return item.test.detectable, ("test", "detectable")
    return item.details.get("detectable"), ("details", "detectable")
