"""The leaks that an audit shows, whether or not a claim was refuted: for its first line, and for pages.

A figure counts only where its interval lies beyond chance by the margin stated here, never by its estimate alone. What
an audit could not attribute to the model (records that differ without it, no control, a broken commitment) does not
count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import ParametersError, parameters_as
from privctl.show.text.style import number

#: How far the lower end of an interval must lie above chance: an AUC, a rate of records found or secrets told. Text
#: that comes out word for word needs no margin: nobody guesses it.
AUC_MARGIN, RATE_MARGIN = 0.05, 0.01
#: Bits by which mean exposure must exceed that of secrets never seen, beyond the scatter of such a mean.
EXPOSURE_MARGIN = 0.5
#: A certified epsilon from which on an attacker's odds grow at least e-fold.
LEAST_EPSILON = 1.0
EXITS_WITH_0 = "The exit code is 0 all the same, because no claim of privacy was refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """``words`` say it to whoever decides on a release; ``figures`` name the attack, its figure and the interval."""

    words: str
    figures: str


#: Subjects of verdicts, as the audits word them.
MEMBERSHIP = "members cannot be told from non-members"
EXTRACTION = "training text cannot be extracted"
CANARIES = "planted canaries left no trace"
SECRETS = "training made no secret easier to tell"
#: What a rejected hypothesis on membership means where the audit asked of a whole file.
TRAINED_ON = "the model was trained on the data given as --members, or on data very much like them"
#: Attacks on texts with other prompts than their own beginnings, and how a leak says it.
_SEARCHES = {
    "adversarial prefix": ("after a short prefix that was searched for", "optimized prefixes give"),
    "prompts from a file": ("in what the model writes after prompts from outside", "prompts from a file give"),
    "divergence": ("once the model is made to repeat a word", "repetition gives"),
    "divergence control": ("after prompts of single words", "prompts of words give"),
}
#: Methods that look at records without the model, or at another model.
WITHOUT_MODEL = ("blind baseline", "length baseline", "reference control")


def found_leaks(report: PrivacyReport) -> tuple[Leak, ...]:
    """Each leak that ``report`` shows. Empty for what is no audit."""
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
    """What the exit code does and does not mean; empty where nothing but claims was refuted and no leak found."""
    refuted = [verdict.on_claim for verdict in report.verdicts if verdict.outcome is Outcome.REFUTED]
    if not found_leaks(report) and all(refuted):
        return ""  # nothing but claims, whose verdicts say it
    if any(refuted):
        return "The exit code is 1 because a claim of privacy was refuted."
    rejected = (
        " REJECTED is said of a hypothesis that every audit tests, and is for a gate to judge." if refuted else ""
    )
    return f"{EXITS_WITH_0}.{rejected}"


def refutes(report: PrivacyReport) -> bool:
    """Whether the audit refuted a claim of privacy, which alone makes its exit code 1."""
    return any(v.outcome is Outcome.REFUTED and v.on_claim for v in report.verdicts)


def _membership(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    if outcome is not Outcome.REFUTED:
        return None
    blind = [i for i in report.evidence if i.method in WITHOUT_MODEL and i.quantity == "AUC" and _beyond(i, 0.0) > 0]
    # What records give away without the model is not the model's.
    least = max((item.upper or 0.0 for item in blind), default=0.0)
    scored = []
    for item in report.evidence:
        area = item.quantity == "AUC"
        if item.method in WITHOUT_MODEL or not (area or item.quantity.startswith("TPR at ")):
            continue
        # Where a baseline detects a difference, only the AUC can be compared with it.
        beyond = _beyond(item, least) if area or not blind else -math.inf
        if beyond > (AUC_MARGIN if area else RATE_MARGIN):
            scored.append((area, beyond, item))
    if not scored:
        return None
    best = max(scored, key=lambda each: each[:2])[2]
    return Leak(
        words=_told_apart(report, best),
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
            words=f"{count} training records come out word for word",
            figures=f"extraction makes the model write {count} training texts word for word, {_figure(beyond)}",
        )
    near = items.get("near-verbatim rate beyond held-out text")
    if near is not None and _exceeds(near):
        count = f"{_count(near, 'training_extracted')} of {_count(near, 'training_texts')}"
        return Leak(
            words=f"{count} {trained_on(report, many=True)} come out nearly word for word",
            figures=f"extraction makes the model write {count} training texts nearly word for word, {_figure(near)}",
        )
    for method, (how, what) in _SEARCHES.items():
        found = [item for item in report.evidence if item.method == method and item.details.get("detected")]
        found = [item for item in found if "training_extracted" in item.details]
        if found:
            return _searched(found[0], how, what)
    grid = items.get("share found by sampling beyond held-out text, over n and p")
    if grid is not None and grid.details.get("detected"):
        share = percent(grid.estimate)
        return Leak(
            words=f"{share} of the training records come out word for word if asked for often",
            figures=f"extraction by sampling gives up to {share} more of the training texts than of held-out ones",
        )
    sampled = [item for name, item in items.items() if name.startswith("training text found in ")]
    if not sampled:
        return None
    return Leak(
        words=f"{percent(sampled[0].estimate)} of the training records come out word for word by sampling",
        figures=f"extraction by sampling gives training text word for word, {_figure(sampled[0])}",
    )


def _exceeds(item: Evidence) -> bool:
    """Whether training text comes out more often than held-out text, by a test or else by its interval."""
    return bool(item.details["detected"]) if "detected" in item.details else _beyond(item, 0.0) > 0


def _searched(item: Evidence, how: str, what: str) -> Leak:
    """What prompts open that are not the records' beginnings."""
    count = f"{_count(item, 'training_extracted')} of {_count(item, 'training_texts')}"
    other = f"{_count(item, 'held_out_extracted')} of {_count(item, 'held_out_texts')}"
    nearly = "nearly " if item.quantity.startswith("near-verbatim") else ""
    return Leak(
        words=f"{count} training records come out {nearly}word for word {how}",
        figures=f"{what} {count} training texts {nearly}word for word, and {other} held-out ones",
    )


def _canaries(report: PrivacyReport, outcome: Outcome) -> Leak | None:
    tests = {item.quantity: item for item in report.evidence if item.method == "canary exposure"}
    included, control = tests.get("mean bits, included"), tests.get("mean bits, left out (control)")
    if _commitment_broken(report) or control is None or control.details.get("detected"):
        return None
    completed = [item for item in report.evidence if item.method == "canary completion"]
    left_out = sum(item.details.get("disclosed", 0.0) for item in completed if "left out" in item.quantity)
    extracted = [item for item in completed if "included" in item.quantity and _beyond(item, 0.0) > 0]
    if extracted and not left_out:
        best = max(extracted, key=lambda item: item.lower or 0.0)
        count = f"{_count(best, 'disclosed')} of {best.samples.get('canaries', '?')}"
        copies = best.quantity.removeprefix("disclosed, included, ")
        return Leak(
            words=f"{count} planted secrets with {copies.removeprefix('included, ')} come out word for word",
            figures=f"canary completion extracts {count} canaries with {copies} word for word, {_figure(best)}",
        )
    if outcome is not Outcome.REFUTED or included is None or included.estimate is None:
        return None
    details = included.details
    if not {"without_memorization", "level", "effective", "p_value"} <= details.keys() or not 0 < details["level"] < 1:
        return None
    chance, level = details["without_memorization"], details["level"]
    # Exposures of secrets never seen are exponential: their standard deviation is their mean.
    scatter = NormalDist().inv_cdf(1 - level) * chance / math.sqrt(max(details["effective"], 1))
    if included.estimate - scatter <= chance + EXPOSURE_MARGIN:
        return None
    return Leak(
        words="the model remembers secrets that were planted in its training data",
        figures=f"planted canaries stand out, mean exposure {number(included.estimate, 3)} bits (at least "
        f"{number(included.estimate - scatter, 3)}; {number(chance, 3)} without memorization; "
        f"p = {number(details['p_value'], 2)})",
    )


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
    if _beyond(trained, least) <= RATE_MARGIN:
        return None
    count = f"{_count(trained, 'told')} of {trained.samples.get('secrets', '?')}"
    return Leak(
        words=f"{count} secrets of the training data are the attacker's first guess",
        figures=f"secret reconstruction tells {count} secrets trained on first, {_figure(trained)}",
    )


_JUDGES: dict[str, Callable[[PrivacyReport, Outcome], Leak | None]] = {
    MEMBERSHIP: _membership,
    EXTRACTION: _extraction,
    CANARIES: _canaries,
    SECRETS: _secrets,
}


def _lower_bounds(report: PrivacyReport) -> Iterator[Leak]:
    """Lower bounds on epsilon for one record or group, where no claim was given that they could refute."""
    if any(each.on_claim for each in report.verdicts):
        return
    bounds = [
        item
        for item in report.evidence
        if item.bound is Bound.LOWER and item.quantity.startswith("epsilon") and item.details.get("copies", 1) == 1
    ]
    best = max(bounds, key=lambda item: item.lower or 0.0, default=None)
    if best is not None and (best.lower or 0.0) >= LEAST_EPSILON:
        delta = best.details.get("delta")
        at = "" if delta is None else f" at delta {number(delta, 3)}"
        least = f"epsilon is at least {number(best.lower, 3)}{at}, with {100 * best.confidence:.4g} % confidence"
        whose = "all records of a group together" if "group_records" in best.details else "a single record"
        yield Leak(
            words=f"for {whose}, {least}, so that no promise of a smaller one is true",
            figures=f"{least} ({best.method})",
        )


def _commitment_broken(report: PrivacyReport) -> bool:
    """Whether canaries were not planted as their manifest says, or the report does not say."""
    try:
        held = parameters_as(AuditParameters, report).canary_conditions or ()
    except ParametersError:
        return True
    return any(each.state is AssumptionState.VIOLATED for each in held)


def _beyond(item: Evidence, least: float) -> float:
    """How far the interval lies above chance, or above ``least`` where that is more; minus infinity without one."""
    return -math.inf if item.lower is None else item.lower - max(item.details.get("chance", 0.0), least)


def trained_on(report: PrivacyReport, *, many: bool = False) -> str:
    """What an attack on membership tells from others, one or ``many``: a record, or all records with one value."""
    field = settings_of(report).group_by
    if field is None:
        return "training records" if many else "training record"
    return (
        f"groups of training records of one {field!r} each" if many else f"group of training records of one {field!r}"
    )


def judged_as_one(report: PrivacyReport) -> bool:
    """Whether the audit asked of a whole file if it was trained on (``--attack fused``), and not of its records."""
    return settings_of(report).attack == ("fused",)


def settings_of(report: PrivacyReport) -> AuditParameters:
    """What an audit's report states of its settings; nothing where that cannot be read."""
    try:
        return parameters_as(AuditParameters, report)
    except ParametersError:
        return AuditParameters()


def _told_apart(report: PrivacyReport, item: Evidence) -> str:
    """An AUC is the chance of picking the member out of a pair; a TPR the share of members recognized."""
    if item.quantity == "AUC":
        field = settings_of(report).group_by
        shown = "a training record and another one" if field is None else f"all records of two values of {field!r}"
        told = "which is which" if field is None else "which was trained on"
        words = (
            f"an attacker shown {shown} tells {told} {percent(item.estimate)} of the time (at least "
            f"{percent(item.lower)}; by guessing, 50 %)"
        )
        return f"{TRAINED_ON}: {words}" if judged_as_one(report) else words
    alarms = item.quantity.removeprefix("TPR at ").removesuffix(" FPR")
    return (
        f"an attacker recognizes {percent(item.estimate)} of the {trained_on(report, many=True)} "
        f"(at least {percent(item.lower)}) at {alarms} false alarms"
    )


def percent(share: float | None) -> str:
    """``share`` as a percentage with three significant digits; a question mark where it is unknown."""
    return "?" if share is None else f"{number(100 * share, 3)} %"


def _count(item: Evidence, name: str) -> str:
    """A count among the details, which a report from elsewhere may lack."""
    return f"{item.details[name]:.0f}" if name in item.details else "?"


def _figure(item: Evidence) -> str:
    chance = item.details.get("chance")
    comparison = "" if chance is None else f"; chance {number(chance, 3)}"
    return (
        f"{item.quantity} {number(item.estimate, 3)} ({number(item.lower, 3)} to {number(item.upper, 3)}{comparison})"
    )
