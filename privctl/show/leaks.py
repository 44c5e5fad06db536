"""The leaks that an audit shows, whether or not it refuted a claim.

A figure counts only if its interval is above chance by the margin stated here, never by its estimate alone. A figure
that cannot be attributed to the model (records that differ without it, no control, a broken commitment) does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import downward
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from privctl.show.text.style import number

#: How far above chance the lower end of an interval must be, for an AUC and for a rate of records or secrets. Text that
#: is reproduced word for word needs no margin, since it cannot be guessed.
AUC_MARGIN, RATE_MARGIN = 0.05, 0.01
#: Bits by which the mean exposure, less its sampling error, must exceed that of secrets never planted.
EXPOSURE_MARGIN = 0.5
#: The smallest certified epsilon that counts as a leak: an attacker's odds grow at least e-fold.
LEAST_EPSILON = 1.0
EXITS_WITH_0 = "The exit code is 0 nevertheless, because no claim of privacy was refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One leak: ``words`` for those who decide on a release, ``figures`` with the attack, its value and interval."""

    words: str
    figures: str


#: Subjects of verdicts, as the audits word them.
MEMBERSHIP = "members cannot be told from non-members"
EXTRACTION = "training text cannot be extracted"
CANARIES = "planted canaries left no trace"
SECRETS = "training made no secret easier to tell"
#: What a rejected hypothesis on membership means if the audit tested a whole file.
TRAINED_ON = "the model was trained on the data given as --members, or on data very much like them"
#: Extraction with prompts other than the texts' own prefixes -> the words for it in a leak's ``words`` and ``figures``.
_SEARCHES = {
    "adversarial prefix": ("with a short optimized prefix", "optimized prefixes give"),
    "prompts from a file": ("with prompts from a file", "prompts from a file give"),
    "divergence": ("by making the model repeat a word", "repetition gives"),
    "divergence control": ("with prompts of single words", "prompts of words give"),
}
#: Methods that look at records without the model, or at another model.
WITHOUT_MODEL = ("blind baseline", "length baseline", "reference control")


def found_leaks(report: PrivacyReport) -> tuple[Leak, ...]:
    """Each leak that ``report`` shows; empty if it is not the report of an audit."""
    if report.step != "audit":
        return ()
    outcomes = {verdict.subject: verdict.outcome for verdict in report.verdicts}
    return tuple(
        leak
        for subject, judge in _JUDGES.items()
        if subject in outcomes and (leak := judge(report, outcomes[subject])) is not None
    ) + tuple(_lower_bounds(report))


def leaks(report: PrivacyReport) -> tuple[str, ...]:
    """The figures of each leak that ``report`` shows."""
    return tuple(leak.figures for leak in found_leaks(report))


def exit_sentence(report: PrivacyReport) -> str:
    """What the exit code means; empty if no leak was found and no hypothesis rejected."""
    refuted = [verdict.on_claim for verdict in report.verdicts if verdict.outcome is Outcome.REFUTED]
    if not found_leaks(report) and all(refuted):
        return ""  # only claims, whose verdicts explain the exit code
    if any(refuted):
        return "The exit code is 1 because a claim of privacy was refuted."
    rejected = " REJECTED is the verdict on a hypothesis that every audit tests; a gate judges it." if refuted else ""
    return f"{EXITS_WITH_0}.{rejected}"


def _membership(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    if outcome is not Outcome.REFUTED:
        return None
    blind = [i for i in report.evidence if i.method in WITHOUT_MODEL and i.quantity == "AUC" and _margin(i, 0.0) > 0]
    # A difference that is visible without the model is not a leak of the model.
    least = max((item.upper or 0.0 for item in blind), default=0.0)
    scored = []
    for item in report.evidence:
        area = item.quantity == "AUC"
        if item.method in WITHOUT_MODEL or not (area or item.quantity.startswith("TPR at ")):
            continue
        # Where a baseline detects a difference, only the AUC can be compared with it.
        beyond = _margin(item, least) if area or not blind else -math.inf
        if beyond > (AUC_MARGIN if area else RATE_MARGIN):
            scored.append((area, beyond, item))
    if not scored:
        return None
    best = max(scored, key=lambda entry: entry[:2])[2]
    return Leak(
        words=_membership_words(report, best),
        figures=f"the attack {best.method} tells members from non-members, {_figure(best)}",
    )


def _extraction(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    if outcome is not Outcome.REFUTED:
        return None
    items = {item.quantity: item for item in report.evidence if item.method == "extraction"}
    rate, beyond = items.get("rate on training text"), items.get("rate beyond held-out text")
    if rate is not None and beyond is not None and _exceeds(beyond):
        among, side = (beyond, "training_") if "known_training" in beyond.details else (rate, "")
        count = f"{_count(among, side + 'extracted')} of {_count(among, side + 'texts')}"
        return Leak(
            words=f"{count} training records can be extracted word for word",
            figures=f"extraction makes the model write {count} training texts word for word, {_figure(beyond)}",
        )
    near = items.get("near-verbatim rate beyond held-out text")
    if near is not None and _exceeds(near):
        count = f"{_count(near, 'training_extracted')} of {_count(near, 'training_texts')}"
        return Leak(
            words=f"{count} {attacked_unit(report, many=True)} can be extracted nearly word for word",
            figures=f"extraction makes the model write {count} training texts nearly word for word, {_figure(near)}",
        )
    for method, (how, what) in _SEARCHES.items():
        detected = [item for item in report.evidence if item.method == method and item.details.get("detected")]
        detected = [item for item in detected if "training_extracted" in item.details]
        if detected:
            return _prompted_leak(detected[0], how, what)
    grid = items.get("share found by sampling beyond held-out text, over n and p")
    if grid is not None and grid.details.get("detected"):
        share = percent(grid.estimate)
        return Leak(
            words=f"{share} of the training records can be extracted word for word by repeated sampling",
            figures=f"extraction by sampling gives up to {share} more of the training texts than of held-out ones",
        )
    sampled = [item for name, item in items.items() if name.startswith("training text found in ")]
    if not sampled:
        return None
    return Leak(
        words=f"{percent(sampled[0].estimate)} of the training records can be extracted word for word by sampling",
        figures=f"extraction by sampling gives training text word for word, {_figure(sampled[0])}",
    )


def _exceeds(item: Evidence) -> bool:
    """Whether training text is extracted more often than held-out text, by a test, or by the interval without one."""
    return bool(item.details["detected"]) if "detected" in item.details else _margin(item, 0.0) > 0


def _prompted_leak(item: Evidence, how: str, what: str) -> Leak:
    """A leak by prompts other than the records' own prefixes."""
    count = f"{_count(item, 'training_extracted')} of {_count(item, 'training_texts')}"
    other = f"{_count(item, 'held_out_extracted')} of {_count(item, 'held_out_texts')}"
    nearly = "nearly " if item.quantity.startswith("near-verbatim") else ""
    return Leak(
        words=f"{count} training records can be extracted {nearly}word for word {how}",
        figures=f"{what} {count} training texts {nearly}word for word, and {other} held-out ones",
    )


def _canaries(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    tests = {item.quantity: item for item in report.evidence if item.method == "canary exposure"}
    included, control = tests.get("mean bits, included"), tests.get("mean bits, left out (control)")
    if _is_commitment_broken(report) or control is None or control.details.get("detected"):
        return None
    completed = [item for item in report.evidence if item.method == "canary completion"]
    left_out = sum(item.details.get("disclosed", 0.0) for item in completed if "left out" in item.quantity)
    extracted = [item for item in completed if "included" in item.quantity and _margin(item, 0.0) > 0]
    if extracted and not left_out:
        best = max(extracted, key=lambda item: item.lower or 0.0)
        count = f"{_count(best, 'disclosed')} of {best.samples.get('canaries', '?')}"
        copies = best.quantity.removeprefix("disclosed, included, ")
        return Leak(
            words=f"{count} planted secrets with {copies.removeprefix('included, ')} can be extracted word for word",
            figures=f"canary completion extracts {count} canaries with {copies} word for word, {_figure(best)}",
        )
    if outcome is not Outcome.REFUTED or included is None or included.estimate is None:
        return None
    details = included.details
    if not {"without_memorization", "level", "effective", "p_value"} <= details.keys() or not 0 < details["level"] < 1:
        return None
    chance, level = details["without_memorization"], details["level"]
    # Exposures of secrets never planted are exponential, with their mean as standard deviation. If some secrets are
    # memorized more than others, exposures vary more.
    deviation, effective = max(chance, details.get("deviation", 0.0)), max(details["effective"], 1)
    critical = NormalDist().inv_cdf(1 - level)
    if included.estimate - critical * deviation / math.sqrt(effective) <= chance + EXPOSURE_MARGIN:
        return None
    least = max(0.0, _least_mean(included.estimate, deviation, effective, critical))
    return Leak(
        words="the model remembers secrets that were planted in its training data",
        figures=f"planted canaries have a mean exposure of {number(included.estimate, 3)} bits (at least "
        f"{downward(least, 3)}; {number(chance, 3)} without memorization; "
        f"p = {number(details['p_value'], 2)})",
    )


def _least_mean(mean: float, deviation: float, count: float, critical: float) -> float:
    """A lower limit of the mean exposure, by the ``mean`` and standard ``deviation`` of ``count`` canaries.

    An exposure of 0 bits is added to them. Otherwise, a few that all reach the highest exposure would seem to show that
    nearly all do: where 8 in 10 reach 12 bits and the others are by chance, a limit at 99.4 % that ignores this lies
    above the mean for 33 of 100 sets of 5 canaries, and this one for none.
    """
    variance = ((count - 1) * deviation**2 + mean**2 * count / (count + 1)) / count
    return mean * count / (count + 1) - critical * math.sqrt(variance / (count + 1))


def _secrets(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    if outcome is not Outcome.REFUTED:
        return None
    items = {item.quantity: item for item in report.evidence if item.method == "secret reconstruction"}
    trained = items.get("told first, trained")
    if trained is None:
        return None
    names = ("trained, before training", "never drawn (control)", "held out (control)")
    controls = [items.get(f"told first, {name}") for name in names]
    least = max((item.upper or 0.0 for item in controls if item is not None), default=0.0)
    if _margin(trained, least) <= RATE_MARGIN:
        return None
    count = f"{_count(trained, 'told')} of {trained.samples.get('secrets', '?')}"
    return Leak(
        words=f"{count} secrets of the training data are the attacker's first guess",
        figures=f"secret reconstruction ranks {count} training secrets first, {_figure(trained)}",
    )


_JUDGES: dict[str, Callable[[PrivacyReport, Outcome], Leak | None]] = {
    MEMBERSHIP: _membership,
    EXTRACTION: _extraction,
    CANARIES: _canaries,
    SECRETS: _secrets,
}


def _lower_bounds(report: PrivacyReport) -> Iterator[Leak]:
    """Lower bounds on epsilon for one record or group, where no claim was given that they could refute."""
    if any(verdict.on_claim for verdict in report.verdicts):
        return
    bounds = [
        item
        for item in report.evidence
        if item.bound is Bound.LOWER and item.quantity.startswith("epsilon") and item.details.get("copies", 1) == 1
    ]
    best = max(bounds, key=lambda item: item.lower or 0.0, default=None)
    if best is not None and (best.lower or 0.0) >= LEAST_EPSILON:
        delta = best.details.get("delta")
        at_delta = "" if delta is None else f" at delta {number(delta, 3)}"
        least = f"epsilon is at least {number(best.lower, 3)}{at_delta}, with {100 * best.confidence:.4g} % confidence"
        whose = "all records of a group together" if "group_records" in best.details else "a single record"
        yield Leak(
            words=f"for {whose}, {least}, so any promise of a smaller epsilon is false",
            figures=f"{least} ({best.method})",
        )


def _is_commitment_broken(report: PrivacyReport) -> bool:
    """Whether canaries were not planted as their manifest says, or the report's statement cannot be read."""
    try:
        conditions = parameters_as(AuditParameters, report).canary_conditions or ()
    except ParametersError:
        return True
    return any(assumption.state is AssumptionState.VIOLATED for assumption in conditions)


def _margin(item: Evidence, least: float) -> float:
    """How far the interval is above chance, or above ``least`` if that is larger; minus infinity without one."""
    return -math.inf if item.lower is None else item.lower - max(item.details.get("chance", 0.0), least)


def attacked_unit(report: PrivacyReport, *, many: bool = False) -> str:
    """What a membership attack judged, in words, one or ``many``: a training record, or a group of them."""
    field = settings_of(report).group_by
    if field is None:
        return "training records" if many else "training record"
    return (
        f"groups of training records of one {field!r} each" if many else f"group of training records of one {field!r}"
    )


def tests_whole_file(report: PrivacyReport) -> bool:
    """Whether the audit tested if a whole file was trained on (``--attack fused``), not single records."""
    return settings_of(report).attack == ("fused",)


def settings_of(report: PrivacyReport) -> AuditParameters:
    """The settings that an audit's report states; the defaults if they cannot be read."""
    try:
        return parameters_as(AuditParameters, report)
    except ParametersError:
        return AuditParameters()


def _membership_words(report: PrivacyReport, item: Evidence) -> str:
    """What an AUC or a TPR means: an AUC is the probability of picking the member of a pair."""
    if item.quantity == "AUC":
        field = settings_of(report).group_by
        shown = "a training record and another one" if field is None else f"all records of two values of {field!r}"
        question = "which is which" if field is None else "which was trained on"
        words = (
            f"an attacker shown {shown} tells {question} {percent(item.estimate)} of the time (at least "
            f"{percent(item.lower)}; by guessing, 50 %)"
        )
        return f"{TRAINED_ON}: {words}" if tests_whole_file(report) else words
    alarms = item.quantity.removeprefix("TPR at ").removesuffix(" FPR")
    return (
        f"an attacker recognizes {percent(item.estimate)} of the {attacked_unit(report, many=True)} "
        f"(at least {percent(item.lower)}) at {alarms} false alarms among these records, which are at most "
        f"{percent(item.details.get('chance'))} among others"
    )


def percent(share: float | None) -> str:
    """``share`` as a percentage with three significant digits; a question mark where it is unknown."""
    return "?" if share is None else f"{number(100 * share, 3)} %"


def _count(item: Evidence, name: str) -> str:
    """A count among the details; a question mark if the report lacks it."""
    return f"{item.details[name]:.0f}" if name in item.details else "?"


def _figure(item: Evidence) -> str:
    chance = item.details.get("chance")
    comparison = "" if chance is None else f"; chance {number(chance, 3)}"
    return (
        f"{item.quantity} {number(item.estimate, 3)} ({number(item.lower, 3)} to {number(item.upper, 3)}{comparison})"
    )
