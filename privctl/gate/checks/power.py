"""What audits could have seen: silence of an audit that was blind says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from privctl.domain.evidence import Evidence
from privctl.domain.gate import Finding, GateOutcome
from privctl.gate.checks.leakage import is_attack, is_lower_bound, measured
from privctl.gate.judged_model import JudgedModel
from privctl.gate.policy import Policy
from privctl.gate.settings import POWERS

RULE = "min_power"
_CHOSEN: dict[str, Callable[[Evidence], bool]] = {
    "auc": is_attack,
    "extraction": lambda item: item.quantity == "rate on training text",
    "epsilon": is_lower_bound,
}
_NAMES = {"auc": "an AUC", "extraction": "an extraction rate", "epsilon": "an epsilon"}


def check(case: JudgedModel, policy: Policy) -> Iterator[Finding]:
    """The smallest size that one of the audits of this model would have noticed four times in five."""
    for name, asked in policy.min_power.items():
        low, high = POWERS[name]
        found = [
            (item.details["detectable"], report.place("evidence", i, "details", "detectable"))
            for report, i, item in measured(case, _CHOSEN[name])
            if low <= item.details.get("detectable", high + 1) <= high
        ]
        what = _NAMES[name]
        if not found:
            outcome, place = GateOutcome.INCONCLUSIVE, policy.places.get(RULE, case.anchor)
            message = f"no audit of this model given says what {what} it could have seen"
        else:
            size, place = min(found, key=lambda each: each[0])
            seen = size <= asked
            outcome = GateOutcome.PASS if seen else GateOutcome.INCONCLUSIVE
            message = f"{what} of {size:.4g} would have been seen, {asked:g} {'is' if seen else 'was'} asked" + (
                "" if seen else ": smaller leaks were missed"
            )
        yield Finding(
            rule=RULE,
            outcome=outcome,
            subject=name,
            message=message,
            fix="" if outcome is GateOutcome.PASS else "audit again with more records or canaries",
            place=place,
        )
