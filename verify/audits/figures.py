"""The permitted forms of an audit's figures: name, kind of bound, name of the interval, and underlying counts.

Other checks find a figure by its name and recompute it from its counts. A figure with a slightly different name or
without its counts would escape them, so each name here must have its exact form. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from verify.audits import two_rates
from verify.audits.extraction import exact_tests as extraction_tests
from verify.audits.ranks import threshold as threshold_bound
from verify.audits.ranks.bound import METHOD as RANK
from verify.audits.terms import BASELINES, BEYOND, OVER_BLIND, RELABELLED, WIDENED, sides_by_coins
from verify.laws.counts import at_most, rank_with_rate

_EXACT, _EXTRACTION = "Clopper-Pearson", "extraction"
_FISHER, _ALIKE = "Fisher's exact test, one-sided", ", among texts alike"
_BLOCKS = "Fisher's exact test within blocks of texts alike, one-sided"
_RATE, _WHOLE = r"(?P<rate>\d+(\.\d+)?(e-?\d+)?)", r"\d+"
_SIDES, _MODELS = frozenset({"members", "nonmembers"}), frozenset({"with", "without"})
_COUNTED = frozenset({"texts", "extracted"})
_TWICE = frozenset({"training_texts", "training_extracted", "held_out_texts", "held_out_extracted", "chance"})
_TESTED = frozenset({"p_value", "level", "detected", "chance"})
_EPSILON, _MU = "epsilon lower bound at delta ", "lower bound on mu of Gaussian differential privacy"
#: For each side, the name of the sample that counts its texts.
_SAMPLES = {"training": "training", "held-out": "held_out"}
#: Patterns of quantities that contain numbers, with the details that repeat those numbers.
_NAMED = {
    re.compile(rf".*, edit distance to {_RATE}"): ("distance",),
    re.compile(rf".* text found in (?P<queries>{_WHOLE}) queries with probability {_RATE}"): ("queries", "probability"),
    re.compile(rf"{re.escape(_EPSILON)}{_RATE}"): ("delta",),
}
#: Every interval, but for those of areas, which another check knows.
_INTERVALS = frozenset({
    "", _EXACT, _FISHER, _BLOCKS, RELABELLED, WIDENED, f"{_FISHER}, times the distinct cuts",
    f"{_EXACT}, inverted",
    f"{_EXACT} of both rates, each at half the error", f"{_EXACT}, as for independent secrets",
    f"{_EXACT} for each rate, at half of alpha", "exact rank test, Bonferroni over ranks",
    "Fisher's test with Brown's correction", "Markov's inequality, whatever the dependence",
    f"{_EXACT}, by rank; at most the bits of all secrets",
})  # fmt: skip
#: The method whose figure has an estimate, and says how little it is worth; and the one whose intervals others check.
_MODEL, _TRACE = "canary exposure, extrapolated", "secret trace"
_CLOSE, _TAIL = 1e-9, 1e-4
#: Larger counts are not supported; the work here grows with the square root.
_MOST = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A figure whose quantity begins with ``begins`` must match the pattern ``name`` and have one of ``intervals``.

    ``samples`` and ``details`` must be stated. The form applies to figures of ``methods``, or to all if that is empty.
    """

    begins: str
    name: str
    bound: Bound
    intervals: tuple[str, ...] = ()
    samples: frozenset[str] = frozenset()
    details: frozenset[str] = frozenset()
    methods: tuple[str, ...] = ()


def _two_sided(begins: str, rest: str = "", *, samples: str = "") -> _Form:
    return _Form(
        begins=begins,
        name=re.escape(begins) + rest,
        bound=Bound.TWO_SIDED,
        intervals=(_EXACT,),
        samples=frozenset({samples} - {""}),
        details=_COUNTED,
        methods=(_EXTRACTION, *extraction_tests.SEARCHES),
    )


def _compared(begins: str) -> tuple[_Form, _Form, _Form]:
    """Forms of a rate beyond the held-out rate: with an interval, or with a test for other prompts or drawn sides."""
    counts = {"samples": frozenset(_SAMPLES.values()), "details": _TWICE}
    within_blocks = begins + _ALIKE
    return (
        _Form(
            begins=within_blocks,
            name=re.escape(within_blocks),
            bound=Bound.NONE,
            intervals=(_BLOCKS,),
            details=_TESTED,
        ),
        _Form(
            begins=begins,
            name=re.escape(begins),
            bound=Bound.TWO_SIDED,
            intervals=("Clopper-Pearson of both rates, each at half the error",),
            methods=(_EXTRACTION,),
            **counts,
        ),
        _Form(
            begins=begins,
            name=re.escape(begins),
            bound=Bound.NONE,
            intervals=(_FISHER,),
            methods=(_EXTRACTION, *extraction_tests.SEARCHES),
            samples=counts["samples"],
            details=_TWICE | _TESTED,
        ),
    )


def _model_forms(begins: str, rest: str, more: frozenset[str]) -> tuple[_Form, _Form]:
    """Forms of a lower bound from the scores of many models, by a threshold or by ranks."""
    counts = frozenset({"true_positives", "false_positives", "ceiling", "threshold"})
    ranks = frozenset({"rank", "ranked", "beyond", "counted", "share", "tests"})
    same = {"begins": begins, "name": re.escape(begins) + rest, "bound": Bound.LOWER, "samples": _MODELS}
    at, by_ranks = "Clopper-Pearson for each rate, at half of alpha", "exact rank test, Bonferroni over ranks"
    return (
        _Form(**same, intervals=(at,), details=counts | more, methods=(threshold_bound.METHOD,)),  # type: ignore[arg-type]
        _Form(**same, intervals=(by_ranks,), details=ranks | more, methods=(RANK,)),  # type: ignore[arg-type]
    )


#: Every form. If several match the beginning of a quantity, the longest beginning applies.
_FORMS = (
    _Form(
        begins="TPR at ",
        name=f"TPR at {_RATE} % FPR",
        bound=Bound.TWO_SIDED,
        intervals=(_EXACT,),
        samples=_SIDES,
        details=frozenset({"true_positives", "false_positives", "fpr_upper", "threshold"}),
    ),
    _two_sided("rate on training text", samples="training"),
    _two_sided("rate on held-out text", samples="held_out"),
    _two_sided("rate on text in ", rf"({_WHOLE} document|{_WHOLE} to {_WHOLE} documents|{_WHOLE} or more documents)"),
    *(
        _two_sided(f"near-verbatim rate on {side} text", f", edit distance to {_RATE}", samples=samples)
        for side, samples in _SAMPLES.items()
    ),
    *(
        _two_sided(f"{side} text found in ", f"{_WHOLE} queries with probability {_RATE}", samples=samples)
        for side, samples in _SAMPLES.items()
    ),
    *_compared("near-verbatim rate beyond held-out text"),
    *_compared("rate beyond held-out text"),
    *(
        _Form(
            begins=name,
            name=re.escape(name),
            bound=Bound.NONE,
            intervals=(interval,),
            samples=frozenset(_SAMPLES.values()),
            details=_TESTED | more,
            methods=(_EXTRACTION,),
        )
        for name, interval, more in (
            (extraction_tests.GRID + _ALIKE, _BLOCKS, frozenset[str]()),
            (extraction_tests.GRID, f"{_FISHER}, times the distinct cuts", frozenset({"cuts"})),
        )
    ),
    _Form(
        begins=extraction_tests.COST,
        name=re.escape(extraction_tests.COST),
        bound=Bound.TWO_SIDED,
        intervals=(f"{_EXACT}, inverted",),
        samples=frozenset({"queries"}),
        details=frozenset({"queries", "giving", "prompts"}),
        methods=extraction_tests.OUTSIDE,
    ),
    _Form(
        begins=extraction_tests.OVER_CONTROL,
        name=re.escape(extraction_tests.OVER_CONTROL),
        bound=Bound.NONE,
        intervals=(_FISHER,),
        samples=frozenset({"repeating", "control"}),
        details=_TESTED,
        methods=(extraction_tests.DIVERGENCE,),
    ),
    *_model_forms(_EPSILON, _RATE, frozenset({"delta"})),
    *_model_forms(_MU, "", frozenset()),
)


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each figure in a form that no audit writes."""
    for item in report.evidence:
        wrong = [*_free_words(item), *_wrong(item, parameters)]
        if not wrong and item.method == _EXTRACTION and item.quantity in BEYOND:
            wrong = [two_rates.fault(item, report.evidence)]
        yield from (f"{item.method}, {item.quantity}: {fault}" for fault in wrong if fault)
    yield from _totals(report, parameters)


def _free_words(item: Evidence) -> Iterator[str]:
    if item.quantity != "AUC" and item.method != _TRACE and item.interval not in _INTERVALS:
        yield f"the interval {item.interval!r} is not one that privctl computes"
    if not 0 < item.confidence < 1:
        yield f"it holds with {item.confidence:g}, which is no confidence"
    if not 0 <= item.details.get("p_value", 0.0) <= 1:
        yield f"its p-value is {item.details['p_value']:g}"
    if item.estimate is not None and item.reason and item.method != _MODEL:
        yield f"it has an estimate, and a reason why there is none: {item.reason!r}"


def _wrong(item: Evidence, parameters: AuditParameters) -> Iterator[str]:
    if item.quantity.startswith(("AUC", "TPR at ")) and item.method not in (*parameters.attack, *BASELINES):
        yield "it is of no attack that the report's parameters name"
    if item.quantity.startswith("AUC") and item.quantity not in ("AUC", OVER_BLIND):
        yield "no audit measures anything of that name"
    if item.quantity.startswith("AUC over") and (
        item.interval != RELABELLED or item.bound is not Bound.TWO_SIDED or None in (item.lower, item.upper)
    ):
        yield f"its interval is {item.interval!r} of a bound that is {item.bound}, which no such figure has"
    if item.quantity == "AUC" and item.bound is not Bound.TWO_SIDED:
        yield f"its bound is {item.bound}, and it has two sides"
    if item.quantity in (*BEYOND, extraction_tests.GRID) and _nothing_to_compare(item):
        return  # nothing to compare with
    forms = [form for form in _FORMS if item.quantity.startswith(form.begins)]
    if not forms:
        return
    longest = max(len(form.begins) for form in forms)
    forms = [form for form in forms if len(form.begins) == longest]
    fitting = [form for form in forms if not form.methods or item.method in form.methods]
    form = next((form for form in fitting if form.bound is item.bound), fitting[0] if fitting else None)
    if form is None:
        yield "no audit measures this by a method of that name"
    elif re.fullmatch(form.name, item.quantity) is None:
        yield "no audit measures anything of that name"
    else:
        yield from _form_faults(form, item)


def _nothing_to_compare(item: Evidence) -> bool:
    """Whether a comparison gives a reason instead of a number because one side has no texts left to compare."""
    numbers = (item.estimate, item.lower, item.upper, item.details.get("p_value"))
    sizes = [item.samples.get(name, 0) for name in _SAMPLES.values()]
    compared = [item.details.get(f"{name}_texts", 0) for name in _SAMPLES.values()]
    reasons = ("in_both", "cued", "known_training", "known_held_out")
    left_out = any(item.details.get(name, 0) > 0 for name in reasons) and not all(compared)
    return bool(item.reason) and set(numbers) == {None} and (left_out or not all(sizes))


def _form_faults(form: _Form, item: Evidence) -> Iterator[str]:
    if item.bound is not form.bound or item.interval not in form.intervals:
        yield f"its interval is {item.interval!r} of a bound that is {item.bound}, which no such figure has"
    if missing := sorted((form.samples - item.samples.keys()) | (form.details - item.details.keys())):
        yield f"its {missing[0]} is missing, without which it cannot be computed again"
        return
    ends = {Bound.TWO_SIDED: (item.lower, item.upper), Bound.LOWER: (item.lower,)}.get(form.bound, ())
    if item.estimate is None and not item.reason:
        yield "it is not measured, and does not say why"
    if item.estimate is not None and (None in ends or item.reason):
        yield "it is measured, and " + ("gives a reason why not" if item.reason else "lacks a bound")
    if form.bound is Bound.LOWER and item.estimate != item.lower:
        yield "it is a bound, and its estimate is another number"
    yield from _counts(item)


def _counts(item: Evidence) -> Iterator[str]:
    """Compares the counts of a figure with the details and the name that repeat them."""
    details, samples = item.details, item.samples
    for side, name in _SAMPLES.items():
        of_side = f"{side} text" in item.quantity and "beyond" not in item.quantity and "texts" in details
        if of_side and details["texts"] != samples[name]:
            yield f"it counts {details['texts']:g} texts, and looked at {samples[name]}"
        if "beyond" in item.quantity and (texts := details.get(f"{name}_texts")) is not None and texts > samples[name]:
            yield f"it compares {texts:g} texts, and looked at {samples[name]}"
    for named, keys in _NAMED.items():
        if (numbers := named.fullmatch(item.quantity)) is not None:
            for key in keys:
                named_value = float(numbers["queries" if key == "queries" else "rate"])
                if f"{details.get(key, math.nan):g}" != f"{named_value:g}":
                    yield f"its {key} is not {named_value:g}, as its name says"
    if item.quantity.startswith("TPR at "):
        yield from _rate(item)


def _rate(item: Evidence) -> Iterator[str]:
    """Checks a true positive rate: its false positives must not exceed the named rate, and their bound must follow."""
    others, errors = item.samples["nonmembers"], item.details["false_positives"]
    named = re.fullmatch(f"TPR at {_RATE} % FPR", item.quantity)
    allowed = math.floor(float(named["rate"]) / 100 * others + _CLOSE) if named else 0
    if not 0 <= errors <= allowed or (item.estimate is None) is not (allowed < 1):
        yield f"of {others} non-members {allowed} may lie above its threshold, and it counts {errors:g}"
    bound, tail = item.details["fpr_upper"], 1 - item.confidence
    fits = bound == 1 if allowed >= others else abs(at_most(allowed, others, bound) - tail) <= _TAIL * tail + 1e-12
    if 0 < others <= _MOST and not fits:
        yield f"{allowed} of {others} do not give {bound:.6g} as the bound on its false positive rate"
    if named and 0 < others <= _MOST and item.estimate is not None:
        rank = rank_with_rate(others, float(named["rate"]) / 100, tail / 4)
        if (stated := item.details.get("upper_rank", math.nan)) != rank:
            yield f"its upper end goes by rank {stated:g} of {others} non-members, and has to go by {rank}"


def _totals(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Checks figures that must add up to others, and figures that must be stated together."""
    by_quantity = {(item.method, item.quantity): item for item in report.evidence}
    extracted = by_quantity.get((_EXTRACTION, "rate on training text"))
    copies = [item for (method, name), item in by_quantity.items() if method == _EXTRACTION and " on text in " in name]
    if extracted is not None and copies and all(item.details.keys() >= _COUNTED for item in (extracted, *copies)):
        for name in sorted(_COUNTED):
            if (total := sum(item.details[name] for item in copies)) != extracted.details[name]:
                yield f"extraction: by copies it counts {total:g} as {name}, and {extracted.details[name]:g} in all"
    looked = [
        item
        for item in report.evidence
        if item.method == _EXTRACTION and not item.quantity.startswith(extraction_tests.GRID)
        if not item.quantity.endswith(_ALIKE)
        # if groups were assigned by coins, comparisons count groups while rates count texts
        if not (item.quantity in BEYOND and sides_by_coins(parameters.extraction))
    ]
    if len({tuple(sorted(item.samples.items())) for item in looked}) > 1:
        yield "extraction: its figures do not all look at the same numbers of texts"
    for distance in (parameters.extraction or {}).get("near_verbatim") or () if extracted is not None else ():
        name = f"near-verbatim rate on training text, edit distance to {distance:g}"
        if (_EXTRACTION, name) not in by_quantity:
            yield f"extraction: it states no {name!r}, which its parameters name"
    for method in sorted({method for method, name in by_quantity if name.startswith("TPR at ")}):
        if (method, "AUC") not in by_quantity:
            yield f"{method}: it states true positive rates without the AUC"
    sizes = {
        (side, item.samples.get(side))
        for item in report.evidence
        if item.quantity.startswith(("AUC", "TPR at ")) and item.method not in BASELINES
        for side in _SIDES
    }
    if len(sizes) > len(_SIDES):
        yield "its attacks do not all judge the same numbers of members and non-members"
    yield from _score_faults(report, parameters)


def _judged_columns(report: PrivacyReport, parameters: AuditParameters, asked: AskedAudit) -> Iterator[str]:
    """The columns that an audit of scores judges, and for groups of several records the highest score of each group."""
    counted = next((sum(item.samples.values()) for item in report.evidence if item.quantity == "AUC"), 0)
    several = sum((parameters.grouped_records or {}).values()) > counted
    for name in asked.columns:
        yield f"column {name}"
        if several:
            yield f"column {name}-top"


def _score_faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Audits of the scores of many models must state both bounds and agree with the request."""
    asked = parameters.asked
    if asked is None:
        return  # reported by another check
    methods = {item.method for item in report.evidence} & {RANK, threshold_bound.METHOD}
    if asked.columns and sorted(_judged_columns(report, parameters, asked)) != sorted(parameters.attack):
        yield "it was asked about other columns of scores than its parameters name"
    if asked.files.keys() == {"scores"} and not asked.columns and not methods:
        yield "it judges scores of models, and states no bound"
    for method in sorted(methods):
        stated = [item for item in report.evidence if item.method == method]
        if not all(any(item.quantity.startswith(begin) for item in stated) for begin in (_EPSILON, _MU)):
            yield f"{method}: it bounds epsilon and mu, and states one of them"
        if {item.details.get("threshold") for item in stated} - {asked.threshold} and method != RANK:
            yield f"{method}: its threshold is not the one that was asked for"
        claimed = [tuple(claim) for claim in asked.claims]
        stated_claim = (parameters.claimed_epsilon, parameters.claimed_delta)
        if claimed != ([] if stated_claim == (None, None) else [stated_claim]):
            yield "the claim in its parameters is not the one that it was asked about"
