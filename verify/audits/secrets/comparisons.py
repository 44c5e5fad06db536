"""Comparisons of secrets with a control, and of their records without the model: the forms that audits give them.

A figure without its interval, or with one of another name, would escape the checks of intervals. As far as the rates
beside a test give its p-value, it is held to them. Standard library only, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from verify.audits.terms import RELABELLED, WIDENED
from verify.laws.counts import at_most

_RATES = ("secret reconstruction", "secret completion")
_TRACE, _BASELINE, _APART = "secret trace", "secret baseline", "area without the model"
_OVER = re.compile("area by .+ over that")
_TESTED = re.compile("(?P<measure>mean bits beyond|share found beyond|share told more), (?P<control>[^,]+), by .+")
_BITS, _FOUND, _MORE = "mean bits beyond", "share found beyond", "share told more"
#: The test of each comparison, by what is measured and what it is compared with.
_TESTS = {
    (_BITS, "drawn at random"): "Fisher's method",
    (_FOUND, "drawn at random"): "Poisson binomial tail, summed exactly",
    **{(quantity, "against those never drawn"): "permutation test within kinds" for quantity in (_BITS, _FOUND)},
    **{
        (quantity, "against held-out secrets"): "permutation test within kinds and numbers of records"
        for quantity in (_BITS, _FOUND)
    },
    (_MORE, "against the base model"): "McNemar's exact test, as for independent secrets",
}
#: What the area of the records without the model must state, besides what its interval follows from.
_OF_RECORDS = {"p_value", "level"}
#: Rates of the secrets that a test of all of them compares, and relative and absolute tolerances of p-values.
_TOLD, _BEFORE, _LOSS = "told first, trained", "told first, trained, before training", "loss"
_CLOSE, _NOTHING = 1e-4, 1e-12
#: With fewer records on a side, an audit learns nothing from them.
_FEWEST = 20


def faults(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yields one sentence for each comparison of secrets in a form that no audit writes."""
    rates = {item.quantity: item for item in evidence if item.method in _RATES}
    for item in evidence:
        wrong = ""
        if item.method == _TRACE:
            wrong = _trace(item) or _raised(item, rates)
        elif item.method == _BASELINE:
            wrong = _baseline(item)
        if wrong:
            yield f"{item.method}, {item.quantity}: {wrong}"


def _trace(item: Evidence) -> str:
    named = _TESTED.fullmatch(item.quantity)
    test = None if named is None else _TESTS.get((named["measure"], named["control"]))
    ends = item.bound, item.lower, item.upper
    if test is None or item.interval != test or ends != (Bound.NONE, None, None):
        return "no audit makes such a test of secrets"
    if missing := sorted({"p_value", "level", "detected"} - item.details.keys()):
        return f"its {missing[0]} is missing"
    secrets = item.samples.get("secrets", 0)
    if not 1 <= item.details.get("effective", 1.0) <= max(1, secrets) * (1 + _CLOSE):
        return f"{secrets} secrets cannot tell as much as {item.details['effective']:.6g}"
    if item.estimate is None or not 0 < item.details["p_value"] <= 1 or item.details["detected"] not in (0.0, 1.0):
        return "its estimate, its p-value or whether it found a trace is none that can be"
    return ""


def _raised(item: Evidence, rates: Mapping[str, Evidence]) -> str:
    """Whether the p-value lies above what the rates of the same secrets give, if the test is of all trained ones."""
    compared, score = item.quantity.split(", by ", 1)
    control = compared.split(", ", 1)[1]
    success_rate = rates.get(_TOLD)
    if success_rate is None or success_rate.samples.get("secrets", 0) != item.samples.get("secrets"):
        return ""  # it compares some of them
    most = 1.0
    if control == "against the base model" and (before := rates.get(_BEFORE)) is not None:
        most = _paired(int(success_rate.details["told"]), int(before.details["told"]), success_rate.samples["secrets"])
    elif control == "drawn at random" and (beam := rates.get(f"in {score}, trained")) is not None:
        most = _in_beam(int(beam.details["found"]), beam.samples["secrets"], beam.details["chance"])
    elif control == "drawn at random":
        ranked = success_rate if score == _LOSS else rates.get(f"told first by {score}, trained")
        effective = item.details.get("effective", item.samples["secrets"])
        most = 1.0 if ranked is None else _by_bits(effective, ranked.details["mean_bits"])
    if item.details["p_value"] <= most * (1 + _CLOSE) + _NOTHING:
        return ""
    return f"its p-value is {item.details['p_value']:.4g}, and the rates of the same secrets give {most:.4g} at most"


def _paired(after: int, before: int, secrets: int) -> float:
    """The largest p-value of McNemar's exact test with so many first ranks by either model."""
    tails = (
        1 - at_most(after - before + lost - 1, after - before + 2 * lost, 0.5) if after - before + lost else 1.0
        for lost in range(max(0, before - after), min(before, secrets - after) + 1)
    )
    return max(tails, default=1.0)


def _in_beam(hits: int, secrets: int, chance: float) -> float:
    """A bound on P(at least ``hits``) for trials of this mean chance, from one above the mean on (Hoeffding 1956)."""
    return 1 - at_most(hits - 1, secrets, chance) if hits >= secrets * chance + 1 else 1.0


def _by_bits(effective: float, bits: float) -> float:
    """A bound on Fisher's p-value of ranks with a mean of so many bits, of so many secrets with their own candidates.

    For a whole number it is P(a Poisson variable with the sum's mean < the number), and between two it lies between.
    """
    return max(_of_whole(math.floor(effective), bits), _of_whole(math.ceil(effective), bits))


def _of_whole(secrets: int, bits: float) -> float:
    mean = math.log(2) * secrets * bits
    if mean <= 0:
        return 1.0
    return min(1.0, math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(secrets)))


def _baseline(item: Evidence) -> str:
    apart = item.quantity == _APART
    if not apart and _OVER.fullmatch(item.quantity) is None:
        return "no audit measures anything of that name"
    if apart and item.estimate is None:
        few = min((item.samples.get(side, _FEWEST) for side in ("trained", "held_out")), default=_FEWEST) < _FEWEST
        return "" if few and item.reason else f"it is not measured, with {_FEWEST} records or more on either side"
    if (
        item.interval != (WIDENED if apart else RELABELLED)
        or item.bound is not Bound.TWO_SIDED
        or None in (item.lower, item.upper)
    ):
        return f"its interval is {item.interval!r} of a bound that is {item.bound}, which no such figure has"
    if missing := sorted((_OF_RECORDS if apart else set()) - item.details.keys()):
        return f"its {missing[0]} is missing"
    if item.details.get("chance") != (0.5 if apart else 0.0):
        return f"its chance is {item.details.get('chance')}, and that of such a figure is {0.5 if apart else 0:g}"
    return ""
