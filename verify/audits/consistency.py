"""Whether an audit report is consistent: intervals with estimates and counts, verdicts with intervals.

Measurements are not repeated here. The checks detect a number that was changed on its own, or a required one that is
missing. Standard library only, because a gate over audits needs no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from verify.audits import asked, claim_sources, entries, error_shares, figures, joint_test, midpoint
from verify.audits.canaries.bound_forms import misstated_bounds
from verify.audits.canaries.bounds import wrong_bound, wrong_curve
from verify.audits.canaries.claims import wrong_claims
from verify.audits.canaries.conditions import misstated_conditions
from verify.audits.canaries.figures import planted_faults
from verify.audits.canaries.half_noise import unlikely_to_refute
from verify.audits.canaries.noise import wrong_noise
from verify.audits.extraction import alike_texts, known_elsewhere
from verify.audits.extraction import counts as extraction_counts
from verify.audits.extraction import exact_tests as extraction_tests
from verify.audits.given import outside as outside_scores
from verify.audits.ranks import bound as rank_bound
from verify.audits.ranks import many_models as rank_tests
from verify.audits.ranks import threshold as threshold_bound
from verify.audits.ranks.limits import OVER_RELABELLINGS, wrong_limits
from verify.audits.reach import detectable_fault
from verify.audits.secrets import figures as secret_figures
from verify.audits.secrets import settings as secret_settings
from verify.audits.split import groups as split_groups
from verify.audits.terms import (
    BASELINES,
    BEYOND,
    BLIND,
    CONTROL,
    LENGTH,
    MEMBERSHIP,
    sides_by_coins,
)
from verify.audits.verdicts import missing_inputs, other_verdicts, outcome_of
from verify.laws.counts import is_limit

_DELONG, _PAIRS, _EXACT = "DeLong, logit scale", "Clopper-Pearson over disjoint pairs", "Clopper-Pearson"
#: The interval of audits now, and that of older ones for a few records on one side and many on the other.
_ADDED = "gamma, one record added"
_DELONG_T = "DeLong, logit scale, t"
#: Used by older audits if there is little or no variance, and disjoint pairs by still older ones.
_CHERNOFF = ("Chernoff over all pairs", "Chernoff over all pairs, won and lost")
#: Attacks of which the control is the same on another model, and the AUC that this must be able to detect.
_CONTROLLED, _POWERFUL = ("loss", "reference"), 0.55
#: The prefix of the name of another tool's scores, which are named after their column.
_COLUMN = "column "
_DIFFERENCE = "AUC over "
_EXTRACTION, _COMPLETION = "extraction", "canary completion"
_ROUNDING = 1e-6
#: Differences between training and held-out text, of which chance makes none on average.
_DIFFERENCES = (*BEYOND, extraction_tests.GRID, extraction_tests.OVER_CONTROL)
#: For numbers computed twice by one formula.
_SAME = 1e-9
#: Limits nearer than this to 0 or 1 are those of floats.
_END = 1e-15
_FPR = re.compile(r"TPR at ([0-9.e-]+) % FPR")
#: The joint confidence of all intervals and tests of an audit, which no option changes.
CONFIDENCE = 0.95
#: Larger counts are not supported; the work here grows with the square root.
_MOST = 100_000_000


def faults(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence per disagreement in an audit report; nothing for reports of other steps."""
    if report.step != "audit":
        return
    try:
        yield from _faults(report)
    except ParametersError as error:
        yield f"its parameters are none that an audit has: {error}"
    except (ArithmeticError, ValueError) as error:
        yield f"it holds a number that no audit has: {error}"
    except LookupError as missing:
        yield f"it lacks the entry {missing}, without which its other figures cannot be checked"


def _faults(report: PrivacyReport) -> Iterator[str]:
    parameters = parameters_as(AuditParameters, report)
    by_coins = sides_by_coins(parameters.extraction)
    if parameters.confidence is not None and not math.isclose(parameters.confidence, CONFIDENCE):
        yield f"it states a confidence of {parameters.confidence:g} in all figures, and audits have {CONFIDENCE:g}"
    for verdict in report.verdicts:
        if verdict.outcome is Outcome.PROVED or verdict.status is not None:
            yield f"its verdict on {verdict.subject!r} has an outcome or a status that no measurement gives"
    for item in report.evidence:
        for wrong in (
            _interval(item), _chance(item), _confidence(item, parameters.confidence), wrong_bound(item),
            rank_bound.fault(item), threshold_bound.fault(item), detectable_fault(item, report),
            alike_texts.fault(item), extraction_tests.fault(item, by_coins=by_coins),
            extraction_tests.miscounted(item, parameters.extraction or {}),
        ):  # fmt: skip
            if wrong:
                yield f"{item.method}, {item.quantity}: {wrong}"
    attacks = {item.method for item in report.evidence}
    omitted = " ".join(omission.what for omission in report.omissions)
    for name in parameters.attack:
        if name not in attacks and name not in omitted:
            yield f"the attack {name!r} was asked for, but neither its result nor why it was omitted is stated"
    yield from asked.faults(report, parameters)
    yield from entries.faults(report, parameters)
    yield from outside_scores.faults(report, parameters)
    yield from figures.faults(report, parameters)
    yield from midpoint.faults(report, parameters)
    yield from joint_test.baseline_faults(report.evidence)
    yield from misstated_bounds(report, parameters)
    yield from misstated_conditions(report, parameters)
    yield from planted_faults(report)
    yield from error_shares.faults(report, parameters)
    yield from secret_figures.faults(report)
    yield from secret_settings.faults(report, parameters)
    yield from _membership(report, parameters)
    yield from other_verdicts(report, parameters.canary_conditions or (), by_coins=by_coins)
    yield from wrong_curve(report, parameters)
    yield from wrong_noise(report, parameters)
    yield from unlikely_to_refute(report, parameters)
    yield from extraction_tests.contradictions(report.evidence)
    yield from known_elsewhere.faults(report, parameters, by_coins=by_coins)
    yield from extraction_counts.faults(report, parameters)
    yield from wrong_claims(report)
    yield from claim_sources.faults(report, parameters)
    yield from split_groups.faults(report, parameters)
    yield from threshold_bound.wrong_claims(report)
    yield from rank_tests.faults(report, parameters)


def _interval(item: Evidence) -> str:
    """What is wrong with an interval of a known kind; "" if nothing is, or if the kind is unknown."""
    limits = (item.lower, item.estimate, item.upper)
    without = item.bound is Bound.NONE or (item.estimate is None and item.details.get("texts") == 0)
    if without and (item.lower, item.upper) != (None, None):
        return "it states an end of an interval, and has none"
    if None in limits:
        return "" if limits == (None, None, None) or not _is_auc(item) else "an end of its interval is missing"
    low, value, high = (float(limit) for limit in limits if limit is not None)
    if item.interval in OVER_RELABELLINGS:
        return wrong_limits(item, (low, value, high), 0.0 if _is_auc(item) else -1.0)
    if _is_auc(item):
        return _of_auc(item, low, value, high)
    counts = _counts(item)
    if item.interval != _EXACT or counts is None:
        return ""
    successes, perhaps, total = counts
    if total > _MOST:
        return f"it counts {total}, more than is supported"
    if not 0 <= successes <= successes + perhaps <= total or not math.isclose(
        value * total, successes, abs_tol=_ROUNDING
    ):
        return f"its estimate is {value:.6g}, but it counts {successes} of {total}"
    tail = (1 - item.confidence) / 2
    fits = is_limit(low, successes - 1, total, 1 - tail, at_end=successes == 0, end=0.0)
    most = successes + perhaps
    if item.quantity.startswith("TPR at "):
        # Half of it is for a rank whose false positive rate is smaller than the named one.
        most, tail = int(item.details.get("upper_positives", -1)), tail / 2
    fits = fits and successes <= most <= total and is_limit(high, most, total, tail, at_end=most == total, end=1.0)
    return "" if fits else f"its interval is not that of {successes} of {total} at {100 * item.confidence:.4g} %"


def _of_auc(item: Evidence, low: float, value: float, high: float) -> str:
    """What is wrong with the interval of an AUC that was not fitted to the records."""
    if item.interval in (_DELONG, _DELONG_T):
        if not 0 < low < value < high < 1:
            return "its interval is not around its estimate"
        ends = _logit(low) + _logit(high)
        return "" if math.isclose(ends, 2 * _logit(value), abs_tol=_ROUNDING) else "its interval is not its estimate's"
    if item.interval == _ADDED:
        return _with_record_added(item, low, value, high)
    if item.interval == _CHERNOFF[0]:
        return _by_chernoff(item, low, value, high)
    known = item.interval in (_PAIRS, _CHERNOFF[1])
    return "" if known else f"the interval {item.interval!r} is not one that privctl computes"


def _with_record_added(item: Evidence, low: float, value: float, high: float) -> str:
    """Checks that each limit follows from the AUC, the numbers of records and the stated moments.

    Without moments a limit is 0 or 1. Without scipy, which the gate does not need, nothing is recomputed.
    """
    try:
        from verify.audits.ranks.figures import added_limit
    except ImportError:
        return ""
    sizes = [item.samples.get(side, 0) for side in ("members", "nonmembers")]
    if not 0 <= low <= value <= high <= 1 or min(sizes) < 1:
        return "its interval is not around its estimate"
    for side, share, limit in (("below", value, low), ("above", 1 - value, 1 - high)):
        deviation, skewness = (item.details.get(f"{name}_{side}") for name in ("deviation", "skewness"))
        if deviation is None or skewness is None:
            fits = limit == 0 and (deviation, skewness) == (None, None)
        else:
            tail = (1 - item.confidence) / 2
            fits = skewness > 0 and math.isclose(
                added_limit(share, sizes, deviation, skewness, tail), limit, rel_tol=_SAME, abs_tol=_SAME
            )
        if not fits:
            return f"its {'lower' if side == 'below' else 'upper'} limit does not follow from its other numbers"
    return ""


def _by_chernoff(item: Evidence, low: float, value: float, high: float) -> str:
    """Checks limits at which exp(-pairs KL(value, limit)) is half the error (Hoeffding 1963, section 5).

    Equal scores give an AUC of 1/2, of which nothing follows.
    """
    pairs, least = min(item.samples.get("members", 0), item.samples.get("nonmembers", 0)), (1 - item.confidence) / 2
    if (low, value, high) == (0.0, 0.5, 1.0):
        return ""
    if not (0 <= low <= value <= high <= 1 and 0 < least < 1):
        return "its interval is not around its estimate"
    for limit in (low, high):
        if limit == value in (0.0, 1.0):
            continue
        reached = -pairs * _divergence(value, limit)
        at_end = min(limit, 1 - limit) < _END and reached >= math.log(least)
        if not at_end and not math.isclose(reached, math.log(least), rel_tol=1e-4):
            return "its interval is not its estimate's"
    return ""


def _divergence(share: float, chance: float) -> float:
    """KL(Bernoulli(``share``), Bernoulli(``chance``)) in nats."""
    return sum(
        0.0 if part == 0 else math.inf if of == 0 else part * math.log(part / of)
        for part, of in ((share, chance), (1 - share, 1 - chance))
    )


def _is_auc(item: Evidence) -> bool:
    return item.quantity in ("AUC", alike_texts.APART)


def _counts(item: Evidence) -> tuple[int, int, int] | None:
    """The counts (found, undecided, total); None if the evidence does not state them."""
    details, samples = item.details, item.samples
    successes: float | None
    total: float | None
    if item.quantity.startswith("TPR at "):
        successes, total = details.get("true_positives"), samples.get("members")
    elif item.method == _COMPLETION:
        successes, total = details.get("disclosed"), samples.get("canaries")
    elif item.method in (_EXTRACTION, *extraction_tests.SEARCHES):
        successes, total = details.get("extracted"), details.get("texts")
    else:
        successes, total = midpoint.counts(item) or (None, None)
    if successes is None or not total:
        return None
    return int(successes), int(details.get("undecided", 0)), int(total)


def _chance(item: Evidence) -> str:
    """What is wrong with the stated chance level: the AUC or the rate that an uninformed attack may reach."""
    members, others = (item.samples.get(side, 0) for side in ("members", "nonmembers"))
    if item.quantity.removesuffix(alike_texts.ALIKE) in _DIFFERENCES and item.details.get("chance", 0.0) != 0.0:
        return f"its chance is {item.details['chance']:g}, and two rates of one model do not differ by chance"
    if item.estimate is None or item.samples.keys() != {"members", "nonmembers"} or min(members, others) < 1:
        return ""
    stated, named = item.details.get("chance"), _FPR.fullmatch(item.quantity)
    if stated is None:
        return "its chance is missing" if _is_auc(item) else ""
    if named and others <= _MOST:
        rank = int(float(named[1]) / 100 * others + 1e-9)
        fits = is_limit(stated, rank, others, (1 - item.confidence) / 2, at_end=rank == others, end=1.0)
    elif _is_auc(item):
        fits = stated == 0.5
    else:
        shares = {"accuracy": max(members, others), "precision": members}
        share = shares.get(item.quantity)
        fits = share is None or math.isclose(stated, share / (members + others), abs_tol=_ROUNDING)
    return "" if fits else f"chance does not give {stated:.6g} with {members} members and {others} others"


def _logit(value: float) -> float:
    return math.log(value) - math.log1p(-value)


def _confidence(item: Evidence, whole: float | None) -> str:
    """The intervals hold jointly, so none may have a lower confidence than the audit."""
    if not _is_auc(item) and _counts(item) is None:
        return ""
    if whole is None or not 0.5 <= whole < 1:
        return "the audit does not state the joint confidence of its intervals"
    return "" if whole <= item.confidence < 1 else f"it holds with {item.confidence:g}, the whole audit with {whole:g}"


def _membership(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Attacks need their baselines, and the verdict must follow from the joint test or, without one, the intervals.

    If privctl drew the split, which ``verify.audits.split.drawn`` checks, the baselines cannot excuse a finding.
    """
    least, drawn = parameters.least_auc, parameters.split_commitment is not None
    attacks = [
        item for item in report.evidence if "chance" in item.details and not item.quantity.startswith("AUC over")
    ]
    attacks = [item for item in attacks if item.samples.keys() == {"members", "nonmembers"}]
    baselines = {item.method: item for item in attacks if item.method in BASELINES}
    attacks = [item for item in attacks if item.method not in BASELINES]
    if not attacks:
        return
    yield from missing_inputs(report, () if _is_of_given_scores(report, attacks) else ("members", "nonmembers"))
    for name in (BLIND, LENGTH):
        if name not in baselines and not _is_of_given_scores(report, attacks):
            yield f"the {name} is missing, without which no attack says anything of the model"
    outcome = outcome_of(report, MEMBERSHIP)
    if outcome is None:
        yield f"the verdict on {MEMBERSHIP!r} is missing"
        return
    yield from joint_test.faults(attacks, parameters.confidence)
    above = [item for item in attacks if item.lower is not None and item.lower > item.details["chance"]]
    tested = any(item.test is not None for item in attacks)
    seen = [item for item in attacks if item.test is not None and item.test.rejects] if tested else above
    certain = [] if drawn else [item.method for item in baselines.values() if _excludes(item, 0.5)]
    detected = _attributed(report, {item.method for item in seen}, baselines, certain, drawn=drawn)
    if outcome is Outcome.REFUTED and not seen:
        yield f"its verdict on {MEMBERSHIP!r} is {outcome}, but its joint test finds no attack better than chance"
    elif outcome is Outcome.REFUTED and not detected:
        yield (
            f"its verdict on {MEMBERSHIP!r} is {outcome}, but the records may differ without the model, and no "
            "attack is certain to do better" + ("" if not certain else " on a model that saw neither side")
        )
    elif detected and outcome is not Outcome.REFUTED:
        yield f"its verdict on {MEMBERSHIP!r} is {outcome}, but {min(detected)} tells them apart"
    reach = min((item.sees for item in attacks if item.sees is not None), default=1.0)
    enough = least is not None and reach <= least and not certain and not seen and not above
    if outcome in (Outcome.CONSISTENT, Outcome.PROVED) and not enough:
        yield f"its verdict on {MEMBERSHIP!r} is {outcome}, which its evidence does not support"


def _attributed(
    report: PrivacyReport, seen: set[str], baselines: Mapping[str, Evidence], certain: Sequence[str], *, drawn: bool
) -> set[str]:
    """The attacks of ``seen`` that tell something of the model, and not only of records that differ without it.

    ``certain`` are the baselines whose interval shows that the records differ.
    """
    detected = set(seen)
    if not drawn and (certain or _is_suspected(baselines.get(BLIND))):
        detected &= {i.method for i in report.evidence if i.quantity.startswith(_DIFFERENCE) and (i.lower or 0) > 0}
    if certain:
        controlled = list(certain) == [BLIND] and _finds_nothing(baselines.get(CONTROL))
        detected &= set(_CONTROLLED) if controlled else set()
    return detected


def _finds_nothing(control: Evidence | None) -> bool:
    """Whether a reference model that saw neither side cannot tell them apart, although it had the power to."""
    return control is not None and not _excludes(control, 0.5) and control.details.get("detectable", 1.0) <= _POWERFUL


def _is_suspected(blind: Evidence | None) -> bool:
    """Whether the test on the records alone, without the model, rejects; older reports have no such test."""
    if blind is None or "p_value" not in blind.details:
        return False
    return blind.details["p_value"] <= blind.details.get("level", 1.0)


def _is_of_given_scores(report: PrivacyReport, attacks: Sequence[Evidence]) -> bool:
    """Whether the audit judges scores given by another tool rather than scores that privctl computed from a model."""
    beside = {
        "split",
        "members",
        "nonmembers",
        *(("model", "companion") if outside_scores.is_tied_to_model(report) else ()),
    }
    roles = {item.role for item in report.inputs} - beside
    return roles == {"scores"} and all(i.method.startswith(_COLUMN) for i in attacks)


def _excludes(item: Evidence, value: float) -> bool:
    return item.lower is not None and item.upper is not None and not item.lower <= value <= item.upper
