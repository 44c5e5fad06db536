"""The verdict on membership: a difference, no difference despite enough power, or inconclusive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from audits.membership.baseline import BLIND, DIFFERENCE, GUARD, Baseline
from audits.membership.remarks import SWAPPED
from privctl.domain.evidence import Evidence, JointTest
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict

SUBJECT = "members cannot be told from non-members"
#: If an AUC of this size would have been missed, finding none is inconclusive.
LEAST_AUC = 0.55
#: Attacks for which the reference control is the same attack on another model.
_CONTROLLED = ("loss", "reference")
_DRAWN = "; coins that privctl tossed decided who is a member, so the two files do not differ by themselves"


def verdict(
    attacks: Sequence[Evidence],
    blind: Baseline,
    least_auc: float = LEAST_AUC,
    *,
    drawn: bool = False,
    check: str = SWAPPED,
) -> Verdict:
    """Judge by the attacks' joint test or, without one, by their intervals; ``attacks`` excludes the baselines.

    If privctl has ``drawn`` the split, records differ without the model only by chance, which the joint test accounts
    for, so the baselines are ignored. ``check`` says what to check if members score lower.
    """
    if drawn:
        blind = replace(blind, evidence=(), p_value=1.0)
    first = {item.method: item for item in reversed(attacks) if item.quantity != DIFFERENCE}
    judged = [item for item in attacks if item.quantity != DIFFERENCE and "chance" in item.details]
    above = [item for item in judged if item.lower is not None and item.lower > item.details["chance"]]
    tests = {item.method: item.test for item in judged if item.test is not None}
    detected = above
    if tests:
        detected = [i for i in judged if i.lower is not None and i.method in tests and tests[i.method].rejects]
    beyond = [item for item in attacks if item.quantity == DIFFERENCE and item.lower is not None and item.lower > 0]
    detected_any, better = bool(detected), {item.method for item in beyond}
    if blind.suspected:
        detected = [item for item in detected if item.method in better]
    if blind.confounded:
        # Beating the blind baseline is not enough: the same attack on a model that saw neither side must find nothing.
        attributed = blind.confounded == BLIND and blind.control_finds_nothing
        detected = [item for item in detected if attributed and item.method in _CONTROLLED]
    if not detected and (blind.confounded or (detected_any and blind.suspected)):
        return _confounded(blind, beyond)
    if detected:
        worst = max(detected, key=lambda item: (item.lower or 0.0) - item.details["chance"])
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.REFUTED,
            reason=f"{worst.method} {worst.quantity} {_span(worst)}, where chance gives {worst.details['chance']:.3g}"
            f"{_joint(tests.get(worst.method))}{_DRAWN if drawn else blind.low_power_note}",
        )
    if above:
        worst = max(above, key=lambda item: (item.lower or 0.0) - item.details["chance"])
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.INCONCLUSIVE,
            reason=f"{worst.method} {worst.quantity} {_span(worst)} lies above chance, but not by enough for the test "
            f"of all attacks together{_joint(tests.get(worst.method))}; give more records",
        )
    backwards = [
        item
        for item in first.values()
        if item.quantity == "AUC" and item.upper is not None and item.upper < item.details["chance"]
    ]
    if backwards:
        worst = min(backwards, key=lambda item: item.upper or 0.0)
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.INCONCLUSIVE,
            reason=f"the sides differ, but backwards: {worst.method} {worst.quantity} {_span(worst)}; {check}",
        )
    return _nothing_found(tuple(first.values()), least_auc)


def _nothing_found(first: Sequence[Evidence], least_auc: float) -> Verdict:
    """The verdict if no attack found a difference, by what the ``first`` item of each would have found."""
    reach = [item.sees for item in first if item.sees is not None]
    sharpest = min(reach, default=1.0)
    if sharpest <= least_auc:
        return Verdict(
            subject=SUBJECT,
            outcome=Outcome.CONSISTENT,
            reason=f"no attack found a difference, and an AUC of {sharpest:.3f} would have been found four times in "
            "five; a stronger attack may still find one",
        )
    if reach:
        small = f"with so few records an AUC below {sharpest:.3f} would often be missed"
    elif any(item.quantity == "AUC" for item in first) and all(_misses_all(item) for item in first):
        small = "with so few records even an AUC of 1 would be missed"
    else:
        small = "how large an AUC would have been missed is not known"
    return Verdict(
        subject=SUBJECT,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"no attack found a difference, but {small}, where {least_auc:g} must be seen; give more records",
    )


def _misses_all(item: Evidence) -> bool:
    """Whether the joint test does not reject even if all members score higher than all others."""
    members, others = item.samples.get("members", 0), item.samples.get("nonmembers", 0)
    if item.test is None or not members * others:
        return False
    largest = 0.5 * math.sqrt(12 * members * others / (members + others + 1))
    return item.test.critical is None or largest <= item.test.critical + 1e-9


def _confounded(blind: Baseline, beyond: Sequence[Evidence]) -> Verdict:
    if blind.confounded:
        addition = f"; {beyond[0].method} does so better (AUC larger by {_span(beyond[0])})" if beyond else ""
        reason = f"the records differ without the model ({blind.confounded}){addition}"
    else:
        reason = (
            f"the records may differ without the model (p {blind.p_value:.2g}, and {GUARD:g} is enough to "
            "doubt), and no attack is certain to do better"
        )
    return Verdict(
        subject=SUBJECT,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"confounded: {reason}; compare records that were assigned at random",
    )


def _joint(test: JointTest | None) -> str:
    if test is None:
        return ""
    adjusted = f", adjusted for {counted(test.compared, 'attack')}" if test.compared > 1 else ""
    return f" (p {test.p_value:.2g}{adjusted})"


def _span(item: Evidence) -> str:
    return f"{item.estimate:.3f} ({item.lower:.3f} to {item.upper:.3f})"
