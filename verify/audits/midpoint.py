"""Whether the figures of the attack ``midpoint`` follow from its counts, and are all there.

It sets a threshold on one half of either side, and calls records of the other half members. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters

METHOD = "midpoint"
_ACCURACY, _PRECISION, _RECALL, _F1 = "accuracy", "precision", "recall", "F1"
_RATES = (_ACCURACY, _PRECISION, _RECALL)
_EXACT, _CLOSE = "Clopper-Pearson", 1e-9
_SIDES = {"members": "true_positives", "nonmembers": "false_positives"}
_SHARED = ("threshold", "seed", *(f"calibration_{side}" for side in _SIDES), *_SIDES.values())
#: The fewest records of a side of which a half can be judged by the other.
_LEAST = 2


def counts(item: Evidence) -> tuple[int, int] | None:
    """(right, total) of a rate of the attack; None for another figure, or without its counts."""
    found, right = item.samples, item.details.get("true_positives")
    wrong = item.details.get("false_positives")
    if item.method != METHOD or item.quantity not in _RATES or right is None or wrong is None:
        return None
    members, others = (found.get(side, 0) for side in _SIDES)
    whole = {
        _ACCURACY: (right + others - wrong, members + others),
        _PRECISION: (right, right + wrong),
        _RECALL: (right, members),
    }[item.quantity]
    return int(whole[0]), int(whole[1])


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence per fault of the figures of ``midpoint``; nothing if the audit did not run it."""
    items = [item for item in report.evidence if item.method == METHOD]
    if not items:
        return
    measured = any(item.estimate is not None for item in items)
    expected = (*_RATES, _F1) if measured else _RATES
    if sorted(item.quantity for item in items) != sorted(expected):
        yield f"{METHOD}: it does not state {', '.join(expected)}, once each, as every such audit does"
        return
    named = {item.quantity: item for item in items}
    areas = [item.samples for item in report.evidence if item.quantity == "AUC" and item.method in parameters.attack]
    for quantity, item in named.items():
        for wrong in _measured(item, named[_ACCURACY], areas) if measured else _unmeasured(item):
            yield f"{METHOD}, {quantity}: {wrong}"
            break


def _unmeasured(item: Evidence) -> Iterator[str]:
    if item.bound is not Bound.NONE or not item.reason or item.details.keys() & {*_SHARED}:
        yield "it is not measured, and has figures"
    if min((item.samples.get(side, 0) for side in _SIDES), default=0) >= _LEAST:
        yield "it is not measured, and there were records enough"


def _measured(item: Evidence, first: Evidence, areas: Sequence[Mapping[str, int]]) -> Iterator[str]:
    """Yields what is wrong with a figure; ``areas`` are the numbers of records that each attack with an AUC judged."""
    details = item.details
    if missing := {*_SHARED} - details.keys() or _SIDES.keys() - item.samples.keys():
        yield f"its {min(missing)} is missing, without which it cannot be computed again"
        return
    if item.samples != first.samples or any(details[name] != first.details.get(name) for name in _SHARED):
        yield "it is not of the decisions that its accuracy is of"
    for side, positives in _SIDES.items():
        judged, set_by = item.samples[side], details[f"calibration_{side}"]
        if not 1 <= set_by <= judged <= set_by + 1 or not 0 <= details[positives] <= judged:
            yield f"of its {side}, {set_by:g} set the threshold, {judged} were judged and {details[positives]:g} called"
        if any(area.get(side, 0) != judged + set_by for area in areas):
            yield f"{judged + set_by:g} {side} are not as many as the other attacks have"
    if item.quantity == _F1:
        yield from _f1(item, details, item.samples["members"])
        return
    if item.bound is not Bound.TWO_SIDED or item.interval != _EXACT:
        yield f"its interval is {item.interval!r} of a bound that is {item.bound}, which no such figure has"
    counted = counts(item)
    limits = (item.lower, item.estimate, item.upper)
    if counted is not None and {limit is None for limit in limits} != {counted[1] == 0}:
        yield "it has an estimate and limits if and only if it counts records"


def _f1(item: Evidence, details: Mapping[str, float], members: int) -> Iterator[str]:
    right, wrong = details["true_positives"], details["false_positives"]
    wanted = 2 * right / (right + wrong + members)
    if item.estimate is None or not math.isclose(item.estimate, wanted, abs_tol=_CLOSE):
        yield f"its counts give {wanted:.6g}, and it states another number"
    if item.bound is not Bound.NONE or item.interval:
        yield "it has an interval, and no such figure has one"
