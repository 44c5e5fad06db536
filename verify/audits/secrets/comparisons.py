"""Comparisons of secrets with a control, and of their records without the model: the forms that audits give them.

A figure without its interval, or with one of another name, would escape the checks of intervals. Standard library only,
like ``verify.audits.consistency``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from privctl.domain.evidence import Bound, Evidence

_TRACE, _BASELINE, _APART = "secret trace", "secret baseline", "area without the model"
_RELABELLED = "normal, standard deviation over relabellings"
_OVER = re.compile("area by .+ over that")
_TESTED = re.compile("(?P<measure>mean bits beyond|share found beyond|share told more), (?P<control>[^,]+), by .+")
_BITS, _FOUND, _MORE = "mean bits beyond", "share found beyond", "share told more"
#: The test of each comparison, by what is measured and what it is compared with.
_TESTS = {
    (_BITS, "drawn at random"): "Fisher's method",
    (_FOUND, "drawn at random"): "Poisson binomial tail, summed exactly",
    **{(each, "against those never drawn"): "permutation test within kinds" for each in (_BITS, _FOUND)},
    **{
        (each, "against held-out secrets"): "permutation test within kinds and numbers of records"
        for each in (_BITS, _FOUND)
    },
    (_MORE, "against the base model"): "McNemar's exact test, as for independent secrets",
}
#: What the area of the records without the model must state, besides its chance.
_OF_RECORDS = {"deviation", "p_value", "level"}
#: With fewer records on a side, an audit learns nothing from them.
_FEWEST = 20


def faults(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yields one sentence for each comparison of secrets in a form that no audit writes."""
    for item in evidence:
        wrong = _trace(item) if item.method == _TRACE else _baseline(item) if item.method == _BASELINE else ""
        if wrong:
            yield f"{item.method}, {item.quantity}: {wrong}"


def _trace(item: Evidence) -> str:
    named = _TESTED.fullmatch(item.quantity)
    test = None if named is None else _TESTS.get((named["measure"], named["control"]))
    if test is None or item.interval != test or item.bound is not Bound.NONE:
        return "no audit makes such a test of secrets"
    if missing := sorted({"p_value", "level", "detected"} - item.details.keys()):
        return f"its {missing[0]} is missing"
    if item.estimate is None or not 0 < item.details["p_value"] <= 1 or item.details["detected"] not in (0.0, 1.0):
        return "its estimate, its p-value or whether it found a trace is none that can be"
    return ""


def _baseline(item: Evidence) -> str:
    apart = item.quantity == _APART
    if not apart and _OVER.fullmatch(item.quantity) is None:
        return "no audit measures anything of that name"
    if apart and item.estimate is None:
        few = min((item.samples.get(side, _FEWEST) for side in ("trained", "held_out")), default=_FEWEST) < _FEWEST
        return "" if few and item.reason else f"it is not measured, with {_FEWEST} records or more on either side"
    if item.interval != _RELABELLED or item.bound is not Bound.TWO_SIDED or None in (item.lower, item.upper):
        return f"its interval is {item.interval!r} of a bound that is {item.bound}, which no such figure has"
    if missing := sorted((_OF_RECORDS if apart else {"deviation"}) - item.details.keys()):
        return f"its {missing[0]} is missing"
    if item.details.get("chance") != (0.5 if apart else 0.0):
        return f"its chance is {item.details.get('chance')}, and that of such a figure is {0.5 if apart else 0:g}"
    return ""
