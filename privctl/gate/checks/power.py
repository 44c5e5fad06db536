"""The power of audits: an audit that could not have detected a leak is no evidence that there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privctl.domain.evidence import Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.sample_size import needed_sample, times_for_area, times_for_share
from privctl.gate.checks.external_scores import FIX, why_unaccepted
from privctl.gate.checks.leakage import evidence_of, is_attack, is_lower_bound
from privctl.gate.checks.units import covers, groups_of, protected_records
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.settings import POWERS

RULE = "min_power"
#: The first decides the verdict on extraction; without held-out text there is only the second.
_BEYOND, _ALONE = "rate beyond held-out text", "rate on training text"
#: Extraction with the records' own prefixes as prompts; other prompts are not considered.
_EXTRACTION = "extraction"
_SELECTED: dict[str, Callable[[Evidence], bool]] = {
    "auc": is_attack,
    "extraction": lambda item: item.method == _EXTRACTION and item.quantity in (_BEYOND, _ALONE),
    "epsilon": is_lower_bound,
}
_NAMES = {"auc": "an AUC", "extraction": "an extraction rate", "epsilon": "an epsilon"}


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """Check the smallest effect that one of this model's audits would have detected with power 0.8."""
    for name, required in policy.min_power.items():
        low, high = POWERS[name]
        everything = evidence_of(case, _SELECTED[name])
        of_unit = ""
        if name == "auc" and policy.field is not None:
            everything = [entry for entry in everything if covers(groups_of(entry[0]), policy.field)]
            of_unit = f", judging {protected_records(policy.field)}"
        accepted = [entry for entry in everything if not why_unaccepted(entry[0], policy)]
        compared = {
            id(report) for report, _, item in accepted if item.quantity == _BEYOND and item.estimate is not None
        }
        sizes = [
            (size, report.place("evidence", i, *where), item, report)
            for report, i, item in accepted
            for size, where in (_detectable(item),)
            if size is not None and low <= size <= high and not (item.quantity == _ALONE and id(report) in compared)
        ]
        what = _NAMES[name]
        if not sizes:
            outcome, place = GateOutcome.INCONCLUSIVE, policy.places.get(RULE, case.default_place)
            fix = f"give the report of an audit that states how small {what} it could have detected{of_unit}"
            message = f"no audit given for this model states how small {what} it could have detected{of_unit}"
            if len(accepted) < len(everything):
                message, fix = f"{message}, except audits of external scores, which the policy does not accept", FIX
        else:
            size, place, item, report = min(sizes, key=lambda entry: entry[0])
            fix = _sample_needed(name, item, size, required, grouped=groups_of(report) is not None)
            seen = size <= required
            outcome = GateOutcome.PASS if seen else GateOutcome.INCONCLUSIVE
            message = f"{what} of {size:.4g} would have been detected, and the policy asks for {required:g}" + (
                "" if seen else ": a smaller leak may have been missed"
            )
        yield Finding(
            rule=RULE,
            outcome=outcome,
            subject=name,
            message=message,
            fix="" if outcome is GateOutcome.PASS else fix,
            place=place,
        )


def _sample_needed(name: str, item: Evidence, size: float, required: float, *, grouped: bool) -> str:
    """Advice on how an audit that can detect ``size`` could detect ``required``, with sample sizes if known."""
    if name == "epsilon":
        return (
            f"before the next training draw a larger split (privctl audit split --to-see {required:g} says whether it "
            "is large enough) or plant more canaries, and audit that model"
        )
    if name == "auc":
        members, others = (item.samples.get(side, 0) for side in ("members", "nonmembers"))
        known = min(members, others) > 0
        more = needed_sample(item, times_for_area(size, required, members, others), grouped=grouped) if known else ""
    else:
        more = needed_sample(item, times_for_share(size, required, none=not item.details.get("held_out_extracted")))
    return f"audit again with {more or 'more records'}"


def _detectable(item: Evidence) -> tuple[float | None, tuple[str, ...]]:
    """The smallest effect that the deciding test of ``item`` would have detected, and its place in the item."""
    if item.test is not None:
        return item.test.detectable, ("test", "detectable")
    return item.details.get("detectable"), ("details", "detectable")
