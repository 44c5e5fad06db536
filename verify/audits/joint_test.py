"""Whether an audit's joint test is consistent: p-values with the relabellings, the number of attacks, and the level.

The wider the interval of a difference from the blind baseline, the less an attack is certain to beat that. The audit
takes the larger of two deviations: that over relabellings, which is at most the sum of both scores' own, and DeLong's
for paired scores, which the AUCs bound.

Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

from privctl.domain.evidence import Evidence, JointTest
from privctl.domain.shown import counted
from verify.audits.terms import BLIND, OVER_BLIND

_POWER, _ROUNDING, _TAIL = 0.8, 1e-6, 1e-4
#: Attacks whose scores depend on the labels, so that other scores are tested under relabelling.
_OTHER_SCORES = ("quantile", "midpoint")
#: A fitted score's deviation cannot exceed this many deviations of a fixed score.
_WIDEST = 3.0
#: Fitted to the labels, so that under relabelling its AUC has another mean and varies more than that of fixed scores.
_FUSED = "fused"
#: What relabellings and rounding may add to a bound.
_SLACK = 1.2


def faults(attacks: Sequence[Evidence], confidence: float | None) -> Iterator[str]:
    """Yields one sentence per fault in the joint test of ``attacks``; older reports have no test.

    ``attacks`` is all evidence of attacks with a known chance level; ``confidence`` is that of the whole audit.
    """
    tested = [(item, item.test) for item in attacks if item.test is not None]
    if not tested:
        return
    tests = [test for _, test in tested]
    if len({(t.level, t.compared, t.relabellings, t.critical) for t in tests}) > 1:
        yield "its attacks were not judged by one joint test: level, number of attacks or relabellings differ"
        return
    methods = {item.method for item in attacks}
    names = [item.method for item, _ in tested]
    if sorted(names) != sorted(methods) or tests[0].compared != len(methods):
        attack_count = counted(tests[0].compared, "attack")
        yield f"its joint test is of {attack_count}, and {len(names)} of the {len(methods)} reported state its p-value"
    yield from _level(tests[0], confidence)
    for item, test in tested:
        if wrong := _p_value(test) or _spread(item) or _detectable(item, test) or _area(item, test):
            yield f"{item.method}, joint test: {wrong}"


def _level(test: JointTest, confidence: float | None) -> Iterator[str]:
    if not 0 < test.level < 1 or confidence is None or test.level > 1 - confidence + _ROUNDING:
        yield f"the level of its joint test is {test.level:g}, which its confidence does not allow"
    elif test.relabellings + 1 < 1 / test.level - _ROUNDING:
        yield (
            f"its joint test has {test.relabellings} relabellings, too few for a p-value of at most its level, "
            f"{test.level:g}"
        )


def _p_value(test: JointTest) -> str:
    """A p-value must be a fraction of the labellings, the true one included, that reach the statistic."""
    count = test.p_value * (test.relabellings + 1)
    if not 1 - _ROUNDING <= count <= test.relabellings + 1 + _ROUNDING:
        return f"{test.relabellings} relabellings give no p-value of {test.p_value:g}"
    return "" if abs(count - round(count)) < _TAIL else f"{test.relabellings} relabellings give no {test.p_value:g}"


def _spread(item: Evidence) -> str:
    """The mean of a fitted score must be at most about 1/2, and its deviation little more than that of a fixed score.

    On simulated scores of 24 to 2000 records, its deviation was up to 1.7 times that of a fixed score.
    """
    members, others = item.samples.get("members", 0), item.samples.get("nonmembers", 0)
    if item.method != _FUSED or item.quantity != "AUC" or min(members, others) < 1:
        return ""
    least, center, deviation = _deviation(members, others), item.details["center"], item.details["deviation"]
    if center <= 0.5 + least and deviation <= _WIDEST * least:
        return ""
    return f"{members} members and {others} others do not give {center:.4g} with a deviation of {deviation:.4g}"


def _detectable(item: Evidence, test: JointTest) -> str:
    """Checks the detectable AUC (Hanley and McNeil 1982), with the critical value instead of the normal quantile."""
    if test.detectable is None:
        return ""
    members, others = item.samples.get("members", 0), item.samples.get("nonmembers", 0)
    if test.critical is None or min(members, others) < 1 or not 0.5 < test.detectable < 1:
        return "it states a detectable AUC, but not what it follows from"
    area = test.detectable
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (members - 1) * (first - area**2) + (others - 1) * (second - area**2)
    spread = math.sqrt(max(0.0, spread) / (members * others))
    needed = test.critical * _deviation_of(item, members, others)
    if abs(area - 0.5 - needed - NormalDist().inv_cdf(_POWER) * spread) <= _TAIL:
        return ""
    return f"an AUC of {area:.4g} is not the smallest detectable with {members} members and {others} others"


def _area(item: Evidence, test: JointTest) -> str:
    """An AUC beyond the critical value must have a p-value within the level; ties would only lower its deviation."""
    members, others = item.samples.get("members", 0), item.samples.get("nonmembers", 0)
    if item.quantity != "AUC" or item.estimate is None or item.method in _OTHER_SCORES or min(members, others) < 1:
        return ""
    if test.critical is None:
        return f"p is {test.p_value:g}, but no p-value of at most {test.level:g} can be reached" if test.rejects else ""
    beyond = (item.estimate - _center(item)) / _deviation_of(item, members, others)
    if beyond > test.critical + _ROUNDING and not test.rejects:
        return f"p is {test.p_value:g}, but its AUC lies {beyond:.3g} deviations above 1/2, beyond {test.critical:.3g}"
    return ""


def _center(item: Evidence) -> float:
    return item.details["center"] if item.method == _FUSED else 0.5


def _deviation_of(item: Evidence, members: int, others: int) -> float:
    """The deviation under relabelling: stated for the fitted score, but taken as at least half of a fixed score's."""
    least = _deviation(members, others)
    return max(item.details["deviation"], 0.5 * least) if item.method == _FUSED else least


def _deviation(members: int, others: int) -> float:
    return math.sqrt((members + others + 1) / (12 * members * others))


def baseline_faults(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yields one sentence for each deviation of the blind baseline, or of a difference from it, that cannot be."""
    areas = {item.method: item for item in evidence if item.quantity == "AUC" and item.estimate is not None}
    blind = areas.get(BLIND)
    if blind is None or "deviation" not in blind.details or min(_sizes(blind)) < 2:
        return
    fixed = _deviation(*_sizes(blind))
    if blind.details["deviation"] > _WIDEST * fixed:
        yield f"{BLIND}, AUC: no relabelling of so many records gives a deviation of {blind.details['deviation']:.4g}"
    for item in evidence:
        if item.quantity != OVER_BLIND or item.method not in areas or "deviation" not in item.details:
            continue
        margin = fixed * (_WIDEST if item.method == _FUSED else 1)
        most = max(
            margin + blind.details["deviation"], _largest_deviation(areas[item.method]) + _largest_deviation(blind)
        )
        if item.details["deviation"] > _SLACK * most:
            yield (
                f"{item.method}, {OVER_BLIND}: its deviation is {item.details['deviation']:.4g}, and that of such "
                f"scores is {most:.4g} at most"
            )


def _sizes(item: Evidence) -> tuple[int, int]:
    return item.samples.get("members", 0), item.samples.get("nonmembers", 0)


def _largest_deviation(item: Evidence) -> float:
    """The largest that DeLong's deviation can be: either side's placements lie in 0 to 1 and have the AUC as mean."""
    members, others = _sizes(item)
    area = float(item.estimate or 0.0)
    return math.sqrt(area * (1 - area) * (1 / max(1, members - 1) + 1 / max(1, others - 1)))
