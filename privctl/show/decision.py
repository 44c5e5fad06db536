"""An audit's findings as one sentence for whoever decides on a release, before any table."""

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
    found_leaks,
    judged_as_one,
    percent,
    trained_on,
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


#: What a rejected hypothesis means where the evidence is not beyond the margins of a leak.
_SLIGHT = {
    MEMBERSHIP: "training records can be told from others, by a margin that is small or uncertain",
    EXTRACTION: "training text comes out, word for word or nearly so, though little more often than other text",
    CANARIES: "planted secrets left a trace, though a faint or uncertain one",
    SECRETS: "training made some secrets easier to guess, by a margin that is small or uncertain",
}

#: Attacks that learn from the files which side is which, so that no AUC of theirs lies below chance.
_FITTED = ("fused",)
_BACKWARDS = "the non-members look more like training data than the members do"

#: What an omission calls a part of an audit that could not be run.
_PARTS = ("extraction", "secrets")
#: How a verdict on a claim says that the audit could not have refuted it.
_SMALL = ("too small to test the claim", "cannot refute this claim")


def conclusion(report: PrivacyReport) -> Conclusion:
    """What the findings of the audit ``report`` amount to, and what it could not measure. The worst of them decides."""
    found = _of_findings(report)
    sentences = [found.sentence, *(f"{line[0].upper()}{line[1:]}." for line in not_measured(report))]
    return Conclusion(decision=found.decision, sentence=" ".join(sentences))


def not_measured(report: PrivacyReport) -> Iterator[str]:
    """The parts that the audit was asked for and could not run, with the reason."""
    for omission in report.omissions:
        if omission.what in _PARTS:
            yield f"{omission.what} was not measured: {omission.reason.rstrip('.')}"


def _of_findings(report: PrivacyReport) -> Conclusion:
    refuted = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.REFUTED]
    certain = [
        f"{_the_claim(each)} is refuted: it promises more privacy than there is" for each in refuted if each.on_claim
    ]
    certain += [leak.words for leak in found_leaks(report)]
    if certain and backwards(report):
        certain.append(_why_backwards(report))
    if certain:
        return _concluded(Decision.WITHHOLD, certain)
    if refuted:
        return _concluded(Decision.SLIGHT, [_slight(each, report) for each in refuted])
    undecided = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.INCONCLUSIVE]
    if undecided:
        return _concluded(Decision.INCONCLUSIVE, [_why_undecided(each, report) for each in undecided])
    if not report.verdicts:
        return _concluded(Decision.UNTESTED, ["the audit measured, but no hypothesis and no claim was put to the test"])
    reach = "; ".join(_reach(report))
    return Conclusion(
        decision=Decision.NOTHING,
        sentence=f"{Decision.NOTHING}, and this audit could have seen {reach}. This is no proof of privacy.",
    )


def backwards(report: PrivacyReport) -> bool:
    """Whether attacks that fit nothing to the files take non-members for members, and none of them the reverse."""
    areas = [
        item
        for item in report.evidence
        if item.quantity == "AUC"
        and item.method not in (*WITHOUT_MODEL, *_FITTED)
        and item.details.get("chance") == 0.5
    ]
    below = any(item.upper is not None and item.upper < 0.5 for item in areas)
    return below and not any(item.lower is not None and item.lower > 0.5 for item in areas)


def _why_backwards(report: PrivacyReport) -> str:
    """What may have gone wrong: with two files of records, or with scores from elsewhere."""
    if any(item.role == "scores" for item in report.inputs):
        return f"{_BACKWARDS}; the scores may be losses, where a higher one must mean more likely a member"
    return f"{_BACKWARDS}; the files may have been swapped"


def _concluded(decision: Decision, reasons: Sequence[str]) -> Conclusion:
    return Conclusion(decision=decision, sentence=f"{decision}: {'; '.join(reasons)}.")


def _why_undecided(verdict: Verdict, report: PrivacyReport) -> str:
    """The reason in words that need no table; the verdict's own first clause where there are none."""
    first = verdict.reason.partition(";")[0]
    if verdict.subject == MEMBERSHIP:
        if first.startswith("confounded"):
            return (
                "the two files differ by themselves, so what sets them apart need not have come from the model; "
                "compare records that were assigned at random"
            )
        if first.startswith("the sides differ, but backwards"):
            return _why_backwards(report)
        least = _detectable(report.evidence)
        if least is None:
            return "no attack found a leak, but with so few records it would have missed any"
        return (
            "no attack found a leak, but the audit is small: the least it could see is "
            f"{_told(least, trained_on(report))}"
        )
    if verdict.subject == EXTRACTION:
        if first.startswith("confounded"):
            return (
                "texts like those that come out stand in the training data alone, so the model may know them from "
                "elsewhere; compare with held-out text drawn at random from the same source"
            )
        compared = next((item for item in report.evidence if _compared(item)), None)
        if compared is None:
            return f"{first}, but no held-out text was given to compare with"
        share = compared.details.get("detectable")
        records = trained_on(report, many=True)
        missed = "" if share is None else f": it could miss up to {percent(share)} of the {records} coming out"
        return f"{first}, but the audit is small{missed}"
    mechanism = verdict.subject.partition("): the mechanism ")[2]
    if mechanism and first.startswith("the guesses do not refute"):
        return f"the audit is too small to test the mechanism {mechanism}"
    if verdict.on_claim:
        small = any(words in verdict.reason for words in _SMALL)
        return f"the audit is too small to test {_the_claim(verdict)}" if small else f"{verdict.subject}: {first}"
    return first


def _the_claim(verdict: Verdict) -> str:
    """The claim that ``verdict`` judges, and whose it is unless the caller gave it."""
    promise, of_dp, source = verdict.subject.partition("-DP, ")
    if not of_dp:
        return f"the claim {verdict.subject}"
    return f"the claim of {promise}-DP" + ("" if source == "as claimed" else f" ({source})")


def _slight(verdict: Verdict, report: PrivacyReport) -> str:
    if verdict.subject == MEMBERSHIP and judged_as_one(report):
        return f"{TRAINED_ON}, though their single records are hard to tell from others"
    return _SLIGHT.get(verdict.subject, verdict.reason)


def _reach(report: PrivacyReport) -> Iterator[str]:
    """What each test that found nothing would have found, four times in five."""
    for verdict in report.verdicts:
        if verdict.subject == MEMBERSHIP:
            yield _told(_detectable(report.evidence), trained_on(report))
        elif verdict.subject == EXTRACTION:
            share = next((item.details.get("detectable") for item in report.evidence if _compared(item)), None)
            yield f"{percent(share)} of the {trained_on(report, many=True)} coming out word for word"
        elif verdict.subject == CANARIES:
            yield "a trace of the planted secrets"
        elif verdict.subject == SECRETS:
            yield "secrets that training made easier to guess"
        else:
            yield f"a violation of {_the_claim(verdict)}"


def _compared(item: Evidence) -> bool:
    compared = item.method == "extraction" and item.quantity == "rate beyond held-out text"
    return compared and item.estimate is not None


def _detectable(evidence: Sequence[Evidence]) -> float | None:
    """The smallest AUC that an attack on the model would have shown."""
    areas = [item for item in evidence if item.quantity == "AUC" and item.method not in WITHOUT_MODEL]
    return min((item.sees for item in areas if item.sees is not None), default=None)


def _told(area: float | None, what: str) -> str:
    if area is None:
        return "any leak"
    return (
        f"an attacker who tells a {what} from another {percent(area)} of the time, where guessing is right 50 % of the "
        "time"
    )
