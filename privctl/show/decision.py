"""An audit's findings as one sentence for those who decide on a release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from privctl.domain.evidence import Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.leaks import (
    CANARIES,
    EXTRACTION,
    MEMBERSHIP,
    SECRETS,
    TRAINED_ON,
    WITHOUT_MODEL,
    attacked_unit,
    found_leaks,
    percent,
    tests_whole_file,
)


class Decision(StrEnum):
    """What an audit's findings amount to."""

    WITHHOLD = "Do not release"
    SLIGHT = "A small leak"
    INCONCLUSIVE = "Inconclusive"
    NOTHING = "Nothing found"
    UNTESTED = "Nothing was tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The ``decision`` and the ``sentence`` that gives it with its reason."""

    decision: Decision
    sentence: str


#: What a rejected hypothesis means if the evidence is within the margins of a leak.
_SLIGHT = {
    MEMBERSHIP: "training records can be told from others, by a margin that is small or uncertain",
    EXTRACTION: "the model reproduces training text, exactly or nearly, though little more often than other text",
    CANARIES: "planted secrets left a trace, though a small or uncertain one",
    SECRETS: "training made some secrets easier to guess, by a margin that is small or uncertain",
}

#: Attacks that are fitted to the two files, so that their AUC is never below chance.
_FITTED = ("fused",)
_REVERSED = "the non-members look more like training data than the members do"

#: The names in omissions of parts of an audit that could not be run.
_PARTS = ("extraction", "secrets")
#: Phrases by which a verdict on a claim states that the audit could not have refuted it.
_SMALL = ("too small to test the claim", "cannot refute this claim")


def conclusion(report: PrivacyReport) -> Conclusion:
    """The conclusion of the audit ``report``, by its worst finding, with what it could not measure."""
    by_findings = _conclusion_of_findings(report)
    sentences = [by_findings.sentence, *(f"{line[0].upper()}{line[1:]}." for line in not_measured(report))]
    return Conclusion(decision=by_findings.decision, sentence=" ".join(sentences))


def not_measured(report: PrivacyReport) -> Iterator[str]:
    """The parts of the audit that were requested but could not be run, with the reason."""
    for omission in report.omissions:
        if omission.what in _PARTS:
            yield f"{omission.what} was not measured: {omission.reason.rstrip('.')}"


def _conclusion_of_findings(report: PrivacyReport) -> Conclusion:
    refuted = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.REFUTED]
    certain = [
        f"{_the_claim(verdict)} is refuted: it promises more privacy than there is"
        for verdict in refuted
        if verdict.on_claim
    ]
    certain += [leak.words for leak in found_leaks(report)]
    if certain and is_reversed(report):
        certain.append(_why_reversed(report))
    if certain:
        return _concluded(Decision.WITHHOLD, certain)
    if refuted:
        return _concluded(Decision.SLIGHT, [_slight(verdict, report) for verdict in refuted])
    undecided = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    if undecided:
        return _concluded(Decision.INCONCLUSIVE, [_why_undecided(verdict, report) for verdict in undecided])
    if not report.verdicts:
        return _concluded(Decision.UNTESTED, ["the audit measured, but tested no hypothesis and no claim"])
    reach = "; ".join(_detectable_leaks(report))
    return Conclusion(
        decision=Decision.NOTHING,
        sentence=f"{Decision.NOTHING}, and this audit could have detected {reach}. This is no proof of privacy.",
    )


def is_reversed(report: PrivacyReport) -> bool:
    """Whether attacks that are not fitted to the files score non-members higher than members, and none the reverse."""
    areas = [
        item
        for item in report.evidence
        if item.quantity == "AUC"
        and item.method not in (*WITHOUT_MODEL, *_FITTED)
        and item.details.get("chance") == 0.5
    ]
    below = any(item.upper is not None and item.upper < 0.5 for item in areas)
    return below and not any(item.lower is not None and item.lower > 0.5 for item in areas)


def _why_reversed(report: PrivacyReport) -> str:
    """What may have gone wrong: swapped files, or external scores with the wrong sign."""
    if any(item.role == "scores" for item in report.inputs):
        return f"{_REVERSED}; the scores may be losses, where a higher one must mean more likely a member"
    return f"{_REVERSED}; the files may have been swapped"


def _concluded(decision: Decision, reasons: Sequence[str]) -> Conclusion:
    return Conclusion(decision=decision, sentence=f"{decision}: {'; '.join(reasons)}.")


def _why_undecided(verdict: Verdict, report: PrivacyReport) -> str:
    """Why a verdict is inconclusive, in words that need no table; otherwise the first clause of its reason."""
    first = verdict.reason.partition(";")[0]
    if verdict.subject == MEMBERSHIP:
        if first.startswith("confounded"):
            return (
                "the two files differ even without the model, so the difference need not be due to training; compare "
                "records that were assigned at random"
            )
        if first.startswith("the sides differ, but backwards"):
            return _why_reversed(report)
        least = _detectable(report.evidence)
        if least is None:
            return "no attack found a leak, but with so few records any leak would have been missed"
        return (
            "no attack found a leak, but the audit is small: the smallest leak that it could have detected is "
            f"{_attacker_words(least, attacked_unit(report))}"
        )
    if verdict.subject == EXTRACTION:
        if first.startswith("confounded"):
            return (
                "texts like the extracted ones occur only in the training data, so the model may know them from "
                "elsewhere; compare with held-out text drawn at random from the same source"
            )
        compared = next((item for item in report.evidence if _is_compared(item)), None)
        if compared is None:
            return f"{first}, but no held-out text was given to compare with"
        share = compared.details.get("detectable")
        records = attacked_unit(report, many=True)
        missed = "" if share is None else f": it could miss the extraction of up to {percent(share)} of the {records}"
        return f"{first}, but the audit is small{missed}"
    mechanism = verdict.subject.partition("): the mechanism ")[2]
    if mechanism and first.startswith("the guesses do not refute"):
        return f"the audit is too small to test the mechanism {mechanism}"
    if verdict.on_claim:
        small = any(words in verdict.reason for words in _SMALL)
        return f"the audit is too small to test {_the_claim(verdict)}" if small else f"{verdict.subject}: {first}"
    return first


def _the_claim(verdict: Verdict) -> str:
    """The claim that ``verdict`` judges, with its source unless it was given as an option."""
    promise, of_dp, source = verdict.subject.partition("-DP, ")
    if not of_dp:
        return f"the claim {verdict.subject}"
    return f"the claim of {promise}-DP" + ("" if source == "as claimed" else f" ({source})")


def _slight(verdict: Verdict, report: PrivacyReport) -> str:
    if verdict.subject == MEMBERSHIP and tests_whole_file(report):
        return f"{TRAINED_ON}, though single records are hard to tell from others"
    return _SLIGHT.get(verdict.subject, verdict.reason)


def _detectable_leaks(report: PrivacyReport) -> Iterator[str]:
    """The smallest leak that each test would have detected with power 0.8."""
    for verdict in report.verdicts:
        if verdict.subject == MEMBERSHIP:
            yield _attacker_words(_detectable(report.evidence), attacked_unit(report))
        elif verdict.subject == EXTRACTION:
            share = next((item.details.get("detectable") for item in report.evidence if _is_compared(item)), None)
            yield f"the verbatim extraction of {percent(share)} of the {attacked_unit(report, many=True)}"
        elif verdict.subject == CANARIES:
            yield "a trace of the planted secrets"
        elif verdict.subject == SECRETS:
            yield "secrets that training made easier to guess"
        else:
            yield f"a violation of {_the_claim(verdict)}"


def _is_compared(item: Evidence) -> bool:
    compared = item.method == "extraction" and item.quantity == "rate beyond held-out text"
    return compared and item.estimate is not None


def _detectable(evidence: Sequence[Evidence]) -> float | None:
    """The smallest AUC that an attack on the model would have detected; None if unknown."""
    areas = [item for item in evidence if item.quantity == "AUC" and item.method not in WITHOUT_MODEL]
    return min((item.sees for item in areas if item.sees is not None), default=None)


def _attacker_words(area: float | None, what: str) -> str:
    if area is None:
        return "any leak"
    return (
        f"an attacker who tells a {what} from another {percent(area)} of the time, where guessing is right 50 % of the "
        "time"
    )
