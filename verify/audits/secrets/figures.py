"""Figures of an audit of secrets: rates with their counts, kinds with their totals, the test of a plan's bounds.

Standard library only, like ``verify.audits.consistency``; ``recounted`` computes the figures again where the ranks that
the audit kept are at hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from verify.audits.secrets import comparisons
from verify.laws.counts import is_limit

_RATES = _RECONSTRUCTION, _COMPLETION = ("secret reconstruction", "secret completion")
_PROTECTION, _KIND, _TRAINED = "secret protection", "told first, kind ", "told first, trained"
_CONTROLS = ("told first, never drawn (control)", "told first, held out (control)")
_INTERVAL, _MARKOV = "Clopper-Pearson, as for independent secrets", "Markov's inequality, whatever the dependence"
#: Entries that repeat the number of secrets that a rate counts.
_COUNTED = ("told", "disclosed", "found")
_NAMED = (
    re.compile(r"found in (?P<queries>[0-9]+) queries with probability (?P<probability>[0-9.e-]+), .+"),
    re.compile(r"in a beam of (?P<width>[0-9]+), .+"),
)
_RANKS = frozenset({"chance", "told", "median_rank", "median_candidates", "mean_bits"})
_TESTED = frozenset({"p_value", "level", "detected"})
_BEFORE, _BOUND, _BEFORE_TRAINING = frozenset({"before_told", "before_greedy"}), "bound", ", before training"
#: The entries that figures may have, by their method and how their names begin; the first row that fits decides.
_ENTRIES: tuple[tuple[str, str, frozenset[str]], ...] = (
    (_RECONSTRUCTION, _KIND, _RANKS | _BEFORE | {_BOUND, "skipped", "greedy", "control", "control_told"}),
    (_RECONSTRUCTION, "told first, ", _RANKS | {_BOUND}),
    (_RECONSTRUCTION, "", _RANKS),
    (_COMPLETION, "written greedily, ", frozenset({"disclosed", "undecided"})),
    (_COMPLETION, "found in ", frozenset({"queries", "probability", "expected_share"})),
    (_COMPLETION, "in ", frozenset({"found", "width", "chance"})),
    (_PROTECTION, "", _TESTED | {"told", "allowed_on_average", "needed", "chance", "detectable"}),
    ("secret trace", "", _TESTED | {"least_p_value", "effective"}),
)
_MOST, _CLOSE = 100_000_000, 1e-6


def faults(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence for each figure on secrets that its own counts contradict."""
    rates = [item for item in report.evidence if item.method in _RATES]
    yield from _entries(report)
    for item in report.evidence:
        wrong = ""
        if item.method in _RATES:
            wrong = _rate(item) or _name_fault(item)
        elif item.method == _PROTECTION:
            wrong = _bounds(item)
        if wrong:
            yield f"{item.method}, {item.quantity}: {wrong}"
    yield from _totals(rates)
    yield from comparisons.faults(report.evidence)


def _entries(report: PrivacyReport) -> Iterator[str]:
    """Figures may state no entry that others have, such as what a model before the training told if none was asked."""
    before = any(item.quantity.endswith(_BEFORE_TRAINING) for item in report.evidence)
    planned = any(artifact.role == "plan" for artifact in report.inputs)
    for item in report.evidence:
        rows = (
            row for method, begins, row in _ENTRIES if (item.method, begins) == (method, item.quantity[: len(begins)])
        )
        allowed = next(rows, None)
        if allowed is None:
            continue
        allowed -= frozenset() if before else _BEFORE
        allowed -= frozenset() if planned and not item.quantity.endswith(_BEFORE_TRAINING) else {_BOUND}
        for name in sorted(item.details.keys() - allowed):
            yield f"{item.method}, {item.quantity}: it states {name!r}, which was not measured for it"


def _rate(item: Evidence) -> str:
    """What is wrong with a rate and its interval (Clopper and Pearson 1934)."""
    total, limits = item.samples.get("secrets", 0), (item.lower, item.estimate, item.upper)
    if item.interval != _INTERVAL or item.bound is not Bound.TWO_SIDED or not 0 <= total <= _MOST:
        return "it is no rate of secrets as audits state them"
    skipped = item.details.get("skipped", 0.0)
    if not (skipped >= 0 and skipped == int(skipped)):
        return f"it says that it skipped {skipped:g} secrets"
    if not total:
        return "" if limits == (None, None, None) else "it counts no secret, and has a rate"
    if None in limits:
        return f"it counts {total} secrets, and lacks its rate or a limit of it"
    low, value, high = (float(limit) for limit in limits if limit is not None)
    successes, unsure = value * total, item.details.get("undecided", 0.0)
    named = [item.details[name] for name in _COUNTED if name in item.details]
    if not all(math.isclose(successes, count, abs_tol=_CLOSE * total) for count in named or [successes]):
        return f"its estimate is {value:.6g}, and it counts {named[0]:g} of {total}"
    if not math.isclose(successes, round(successes) if math.isfinite(successes) else math.nan, abs_tol=_CLOSE * total):
        return f"its estimate is {value:.6g}, which is no number of {total}"
    sure, most, tail = round(successes), round(successes) + int(unsure), (1 - item.confidence) / 2
    fits = 0 <= sure <= most <= total and is_limit(low, sure - 1, total, 1 - tail, at_end=sure == 0, end=0.0)
    fits = fits and is_limit(high, most, total, tail, at_end=most == total, end=1.0)
    return "" if fits else f"its interval is not that of {sure} of {total} at {100 * item.confidence:.4g} %"


def _name_fault(item: Evidence) -> str:
    """What is wrong with the numbers that a rate repeats of its name."""
    matches = (pattern.fullmatch(item.quantity) for pattern in _NAMED)
    for name, value in (entry for match in matches if match is not None for entry in match.groupdict().items()):
        if f"{item.details.get(name, math.nan):g}" != f"{float(value):g}":
            return f"its {name} is {item.details.get(name)}, and its name says {value}"
    return ""


def _bounds(item: Evidence) -> str:
    """What is wrong with the test of a plan's bounds by Markov's inequality."""
    details, secrets = item.details, item.samples.get("secrets", 0)
    told, allowed, level = details["told"], details["allowed_on_average"], details["level"]
    if (
        item.interval != _MARKOV
        or (item.bound, item.lower, item.upper) != (Bound.NONE, None, None)
        or not 0 <= told <= secrets
        or not 0 <= allowed <= secrets * (1 + _CLOSE)
        or not secrets
    ):
        return "its counts are none that can be"
    needed = max(1, math.ceil(allowed / level)) if level > 0 else math.inf
    wanted = {
        "p_value": min(1.0, allowed / told) if told else 1.0,
        "needed": needed,
        "chance": allowed / secrets,
        "detected": float(details["p_value"] <= level),
        **({"detectable": needed / secrets} if needed <= secrets else {}),
    }
    for name, value in wanted.items():
        if not math.isclose(details.get(name, math.nan), value, rel_tol=_CLOSE, abs_tol=1e-12):
            return f"its {name} is {details.get(name, math.nan):.6g}, and its counts give {value:.6g}"
    if item.estimate is None or not math.isclose(item.estimate, told / secrets, abs_tol=_CLOSE):
        return f"its estimate is not {told:g} of {secrets}"
    return ""


def _totals(rates: Sequence[Evidence]) -> Iterator[str]:
    """The kinds of secrets must add up to all of them, on either side of a comparison."""
    by_quantity = {item.quantity: item for item in rates if item.method == _RECONSTRUCTION}
    kinds = [item for name, item in by_quantity.items() if name.startswith(_KIND)]
    trained = by_quantity.get(_TRAINED)
    if not kinds:
        return
    told, secrets = (0.0, 0) if trained is None else (trained.details["told"], trained.samples["secrets"])
    controls = [by_quantity[name] for name in _CONTROLS if name in by_quantity]
    for word, whole, parts in (
        ("secrets", secrets, [item.samples["secrets"] for item in kinds]),
        ("secrets told first", told, [item.details.get("told", 0.0) for item in kinds]),
        ("controls", sum(item.samples["secrets"] for item in controls), [i.details.get("control", 0) for i in kinds]),
        (
            "controls told first",
            sum(item.details["told"] for item in controls),
            [item.details.get("control_told", 0.0) for item in kinds],
        ),
    ):
        if sum(parts) != whole:
            yield f"{_RECONSTRUCTION}: by kinds it counts {sum(parts):g} {word}, and {whole:g} in all"
