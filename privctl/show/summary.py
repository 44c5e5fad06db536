"""A model in a few sentences: its strongest guarantee, the attacks on it, and what was not checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Bound
from privctl.domain.guarantee import (
    Adjacency,
    AssumptionState,
    Guarantee,
    Notion,
    PrivacyUnit,
    RiskMeasure,
    Scope,
    Status,
)
from privctl.domain.mechanism import WeightNoise
from privctl.domain.protected import meaning_of_example
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.strength import (
    USELESS_RATE,
    Severity,
    largest_true_positive_rate,
    rests_on_unstated_loss,
    severity,
)
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.decision import Decision, conclusion, not_measured
from privctl.show.leaks import leaks
from privctl.show.page_data import AUDIT_STEP, PLANS, JudgedSubject, ReportSource
from privctl.show.text.style import bound, with_exponent
from privctl.show.verified import verification_sentence

#: What each status means.
MEANING = {
    Status.PROVED: "follows from what was enforced or checked",
    Status.CONDITIONAL: "follows if the stated assumptions hold",
    Status.CLAIMED: "published, but does not follow",
    Status.REFUTED: "certainly false",
    Status.VOID: "an assumption is violated, so nothing is guaranteed",
}
_WORST_FIRST = (Outcome.REFUTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT, Outcome.PROVED)
_STRENGTH = (Status.PROVED, Status.CONDITIONAL, Status.CLAIMED, Status.VOID, Status.REFUTED)
DO_NOT_RELEASE = "Do not release"
#: Most items that a sentence names.
_NAMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of one subject.

    ``lead`` is its strongest guarantee; ``guarantee``, ``attacked`` and ``verified`` are sentences on it, on the audits
    and on verification; ``leaked`` has the figures of the leaks found, empty if none. ``attack`` and ``check`` are the
    worst outcomes of audits and of verification (files that differ from their report count as the latter), None if
    there were none; ``worst`` is the worse of the two. ``headline`` is a few words, and ``severity`` its colour.
    ``unchecked`` lists what was not checked.
    """

    subject: JudgedSubject
    lead: Guarantee | None
    headline: str
    severity: Severity
    guarantee: str
    attacked: str
    leaked: str
    verified: str
    attack: Outcome | None
    check: Outcome | None
    worst: Outcome | None
    unchecked: tuple[str, ...]


def summarize(subject: JudgedSubject) -> Summary:
    """The summary of ``subject`` according to its reports."""
    lead = leading_guarantee(subject.source.report)
    audited = [v for source in subject.audits for v in source.report.verdicts]
    checked = [v for source in subject.checks for v in source.report.verdicts]
    broken = _digest_faults(subject)
    worst = worst_of([*audited, *decisive(checked), *broken])
    leaked = _leak_sentence(subject)
    worth = severity(lead, subject.source.report.mechanism)
    false = worst_of([*(v for v in audited if v.on_claim), *decisive(checked), *broken]) is Outcome.REFUTED
    return Summary(
        subject=subject,
        lead=lead,
        headline=DO_NOT_RELEASE if leaked or false else _headline(lead, worth),
        severity=Severity.BAD if worst is Outcome.REFUTED else worth,
        guarantee=_guarantee_sentence(subject, lead),
        attacked=_attack_sentence(subject),
        leaked=leaked,
        verified=_check_sentence(subject, checked, broken),
        attack=worst_of(audited),
        check=worst_of([*decisive(checked), *broken]),
        worst=worst,
        unchecked=tuple(_missing_checks(subject)),
    )


def _headline(lead: Guarantee | None, worth: Severity) -> str:
    if lead is None or lead.status not in (Status.PROVED, Status.CONDITIONAL):
        return "No guarantee"
    return "No useful guarantee" if worth is Severity.BAD else amount(lead)


def decisive(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts except those on guarantees that their own report marks as claimed, refuted or void."""
    return [verdict for verdict in verdicts if verdict.decisive]


def word_of(verdict: Verdict, step: str) -> str:
    """The word for the outcome; for a guarantee that promises nothing, with its status."""
    word = verdict.audit_word if step == AUDIT_STEP else str(verdict.outcome).lower()
    return word if verdict.decisive else f"{word}, only {verdict.status}"


def worst_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts sorted by outcome: refuted, inconclusive, consistent, proved."""
    return sorted(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.outcome))


def worst_of(verdicts: Sequence[Verdict]) -> Outcome | None:
    """The worst outcome; None if there are no verdicts."""
    return worst_first(verdicts)[0].outcome if verdicts else None


def leading_guarantee(report: PrivacyReport) -> Guarantee | None:
    """The guarantee for one example with the best status and then the smallest epsilon; other kinds come last.

    A guarantee for noise on weights that assumes a kind of loss which nobody stated comes after the others of its
    status. None if the report states no guarantee for this model.
    """
    candidates = [g for g in report.guarantees if g.scope is Scope.THIS_MODEL]

    def rank(guarantee: Guarantee) -> tuple[bool, int, bool, float]:
        usual = guarantee.notion is Notion.APPROXIMATE_DP and guarantee.unit is PrivacyUnit.EXAMPLE
        epsilon = math.inf if guarantee.epsilon is None else guarantee.epsilon
        noise = report.mechanism
        unstated = isinstance(noise, WeightNoise) and rests_on_unstated_loss(guarantee, noise)
        return not usual, _STRENGTH.index(guarantee.status), unstated, epsilon

    return min(candidates, key=rank, default=None)


def amount(guarantee: Guarantee) -> str:
    """The numbers of a guarantee with their units."""
    if guarantee.notion is Notion.MUTUAL_INFORMATION:
        return f"{with_exponent(guarantee.epsilon)} nats of mutual information, on average"
    if guarantee.notion is Notion.SECRET_PROTECTION and not guarantee.delta:
        return f"{with_exponent(guarantee.epsilon)} nats about one secret"
    if guarantee.epsilon is None:
        return f"no finite ε at δ = {with_exponent(guarantee.delta, 3)}"
    return f"ε\u00a0≤\u00a0{with_exponent(guarantee.epsilon)} at δ\u00a0=\u00a0{with_exponent(guarantee.delta, 3)}"


def protects(guarantee: Guarantee) -> str:
    """The unit and adjacency of a guarantee, and whether it covers all candidates."""
    which = "" if guarantee.scope is Scope.THIS_MODEL else ", for an attacker who sees all candidates"
    stated = guarantee.adjacency is not Adjacency.UNSTATED
    neighbours = f"neighbours by {guarantee.adjacency}" if stated else "neighbours not stated"
    meaning = f" ({means})" if (means := meaning_of_example(guarantee)) else ""
    return f"one {guarantee.unit}{meaning}, {neighbours}{which}"


def weak_bound(guarantee: Guarantee, report: PrivacyReport) -> str:
    """A sentence on a guarantee that holds but rules out almost nothing; empty for others."""
    rate = largest_true_positive_rate(guarantee, one_gaussian=isinstance(report.mechanism, WeightNoise))
    if rate is None or rate < USELESS_RATE or guarantee.status not in (Status.PROVED, Status.CONDITIONAL):
        return ""
    return f"It rules out little: an attacker may still find {_percent(rate)} of the records at 1 % false positives."


def _attacker_sentence(guarantee: Guarantee) -> str:
    """What the guarantee means for an attacker, without epsilon; empty if it states no advantage."""
    if guarantee.status not in (Status.PROVED, Status.CONDITIONAL):
        return ""
    rates = [50 * (1 + risk.bound) for risk in guarantee.risks if risk.measure is RiskMeasure.ADVANTAGE]
    meaning = f" ({means})" if (means := meaning_of_example(guarantee)) else ""
    return (
        f"An attacker who sees the model can tell with at most {bound(min(rates), 3)} % accuracy whether one given "
        f"{guarantee.unit}{meaning} was used; guessing has 50 %."
        if rates
        else ""
    )


def in_a_sentence(report: PrivacyReport) -> str:
    """What the strongest guarantee of a training leaves an attacker, without epsilon; empty if no number says it."""
    lead = leading_guarantee(report)
    if lead is None or lead.status not in (Status.PROVED, Status.CONDITIONAL):
        return "Nothing limits what this model reveals: no privacy guarantee follows."
    meaning = weak_bound(lead, report) or _attacker_sentence(lead)
    asserted = sum(each.state is AssumptionState.ASSERTED for each in lead.assumptions)
    if not meaning or lead.status is not Status.CONDITIONAL or not asserted:
        return meaning
    what = counted(asserted, "assumption holds", "assumptions hold")
    return f"{meaning} This follows if {what} that nothing enforces."


def _guarantee_sentence(subject: JudgedSubject, lead: Guarantee | None) -> str:
    if lead is None and not subject.source.models:
        return "It is not known how this model was made: its own report was not given."
    if lead is None:
        return "Nothing limits what this model reveals: its report states no guarantee."
    plan = subject.source.report.step in PLANS
    asserted = [a.statement for a in lead.assumptions if a.state is AssumptionState.ASSERTED]
    text = {
        Status.PROVED: "Proved: it follows from what was enforced or checked.",
        Status.CONDITIONAL: _condition(asserted),
        Status.CLAIMED: "Claimed: a published formula gives it, but it does not follow.",
        Status.REFUTED: "Refuted: the stated bound is certainly false.",
        Status.VOID: "Void: an assumption is violated, so nothing is guaranteed.",
    }[lead.status]
    meaning = weak_bound(lead, subject.source.report) or _attacker_sentence(lead)
    # The assumptions are long and may be cut on a page, so the meaning comes first.
    sentences = (meaning, text) if lead.status is Status.CONDITIONAL else (text, meaning)
    return " ".join(filter(None, ["A plan, not a run." if plan else "", *sentences]))


def _condition(asserted: Sequence[str]) -> str:
    """The assumptions that a conditional guarantee rests on; after six, the others are counted."""
    if not asserted:
        return "Conditional: it follows if the stated assumptions hold."
    named, more = asserted[:_NAMED], len(asserted) - _NAMED
    these = "this assumption holds" if len(asserted) == 1 else f"these {len(asserted)} assumptions hold"
    rest = [f"and {more} more, listed with the guarantee"] if more > 0 else []
    return f"Conditional: it follows if {these}, which nothing enforces: {'; '.join([*named, *rest])}."


def _attack_sentence(subject: JudgedSubject) -> str:
    """The conclusion of each audit, worst first."""
    concluded = [conclusion(source.report) for source in subject.audits]
    by_severity = sorted(concluded, key=lambda conclusion: list(Decision).index(conclusion.decision))
    return " ".join(dict.fromkeys(conclusion.sentence for conclusion in by_severity)) or "Not attacked."


def _leak_sentence(subject: JudgedSubject) -> str:
    lines = dict.fromkeys(line for source in subject.audits for line in leaks(source.report))
    if not lines:
        return ""
    text = "; ".join(lines)
    return f"{text[0].upper()}{text[1:]}."


def _check_sentence(subject: JudgedSubject, verdicts: Sequence[Verdict], broken: Sequence[Verdict]) -> str:
    if broken:
        names = ", ".join(dict.fromkeys(verdict.subject for verdict in broken[:_NAMED]))
        return f"Do not rely on this: these files are not those that the reports recorded: {names}."
    if not subject.checks:
        return "No verification was given: the numbers are those of the report; privctl verify recomputes them."
    judged = decisive(verdicts)
    counts = [(str(word).lower(), sum(v.outcome is word for v in judged)) for word in _WORST_FIRST]
    text = verification_sentence(verdicts, subject.source.report.guarantees)
    if judged:
        text += f" Verdicts: {', '.join(f'{count} {word}' for word, count in counts if count)}."
    false = sum(v.outcome is Outcome.REFUTED for v in verdicts) - sum(v.outcome is Outcome.REFUTED for v in judged)
    return text + (
        f" Also refuted: {counted(false, 'bound')} that a report itself marks as only claimed." if false else ""
    )


def _digest_faults(subject: JudgedSubject) -> list[Verdict]:
    """Files that are not what a report says they are."""
    sources = (subject.source, *subject.ancestors, *subject.audits, *subject.checks)
    return [v for source in sources for v in source.digests if v.outcome is Outcome.REFUTED]


def _missing_checks(subject: JudgedSubject) -> Iterator[str]:
    if not subject.source.models and not subject.audits:
        return
    if not subject.audits:
        yield "No audit: the reports given contain no attack on this model."
    else:
        evidence = [item for source in subject.audits for item in source.report.evidence]
        if not any(item.bound is Bound.LOWER and "epsilon" in item.quantity for item in evidence):
            yield "No canaries: without random inclusion before training, no audit certifies a lower bound on ε."
        failed = [line for source in subject.audits for line in not_measured(source.report)]
        yield from (f"{line[0].upper()}{line[1:]}." for line in failed)
        without = {line.partition(" ")[0] for line in failed}
        if "extraction" not in without and not any(item.method.startswith("extraction") for item in evidence):
            yield "No extraction: no audit tested which training text the model reproduces."
        if "secrets" not in without and not any(item.method.startswith("secret") for item in evidence):
            yield "No secrets: no audit tested whether names, numbers and other secrets of the data can be guessed."
    if not subject.checks:
        yield "No report of a verification: privctl verify recomputes the guarantee with separate code."
    if not any(source.models for source in (subject.source, *subject.ancestors)):
        yield "No report of how the model was made was given."
    for source in (subject.source, *subject.ancestors):
        for name in source.absent:
            yield f"{name}, which {source.name} builds on, could not be read."


def verdicts_of(sources: Sequence[ReportSource]) -> Iterator[tuple[ReportSource, Verdict]]:
    """Every verdict with the report that states it, worst first."""
    pairs = [(source, verdict) for source in sources for verdict in source.report.verdicts]
    yield from sorted(pairs, key=lambda pair: (not pair[1].decisive, _WORST_FIRST.index(pair[1].outcome)))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
