"""Models side by side: the epsilon that follows, the utility of each, and what attacks found.

Everything is read from reports; what was not measured is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Notion, PrivacyUnit, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.strength import Severity, severity
from privctl.domain.verdict import Outcome
from privctl.show.leaks import MEMBERSHIP, WITHOUT_MODEL, found_leaks
from privctl.show.page_data import PLANS, JudgedSubject, PageData
from privctl.show.summary import leading_guarantee
from privctl.show.text.style import number, with_exponent

#: Kind of utility -> the quantities of evidence that measure it. The first kind is preferred.
UTILITIES = {
    "held-out accuracy": ("held-out accuracy",),
    "held-out perplexity": ("held-out perplexity", "perplexity"),
    "held-out loss, nats": ("held-out loss, nats",),
}
#: The columns of a row, in order.
HEADINGS = ("model", "epsilon that follows", "before", "after", "attack (interval)", "what attacks found")
_FOUND = {
    Severity.BAD: "a leak",
    Severity.WEAK: "a small or uncertain leak",
    Severity.FAIR: "nothing",
    Severity.NONE: "not attacked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel:
    """One model. ``epsilon`` is the one that follows, None if none does; ``status`` is that of its guarantee.

    ``utility`` is infinite if it was too large to be measured; ``before`` is the utility of the model that it was made
    from, according to its own report or that model's. ``attack`` is the AUC with the largest lower bound, and ``found``
    the severity of what attacks found.
    """

    name: str
    epsilon: float | None
    status: Status | None
    utility: float | None
    before: float | None
    attack: Evidence | None
    found: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """At least two models. ``quantity`` is what ``utility`` measures, None if no report has one.

    ``mixed``: some perplexities count the token that ends each text, as training does, and some do not, as with
    ``privctl noise --evaluate``.
    """

    models: tuple[ComparedModel, ...]
    quantity: str | None
    deltas: tuple[float, ...]
    mixed: bool = False

    @property
    def notes(self) -> Iterator[str]:
        """Notes on the figures, one sentence or more each."""
        if self.deltas:
            yield f"Epsilon at δ = {', '.join(with_exponent(delta, 3) for delta in self.deltas)}."
        if self.quantity is None:
            yield "No report has a held-out loss, perplexity or accuracy, so the height is the AUC of the attack."
        if any(model.utility == math.inf for model in self.models):
            yield "Infinite values are drawn at the end of the axis."
        if self.mixed:
            yield (
                "For trained models, perplexity counts the token that ends each text; for noised models it does not. "
                "Differences of a few percent between the two mean nothing."
            )
        if self.quantity is not None and (missing := [model.name for model in self.models if model.utility is None]):
            yield f"No report has the {self.quantity} of {', '.join(missing)}."

    def rows(self) -> Iterator[tuple[str, ...]]:
        """One row per model, with the columns ``HEADINGS``."""
        for model in self.models:
            yield (
                model.name,
                epsilon_words(model),
                number(model.before, 4),
                number(model.utility, 4),
                attack_words(model),
                _FOUND[model.found],
            )


def epsilon_words(model: ComparedModel) -> str:
    """The epsilon that follows, with its status."""
    return "none follows" if model.epsilon is None else f"≤ {with_exponent(model.epsilon, 3)} ({model.status})"


def attack_words(model: ComparedModel) -> str:
    """The attack's AUC with its interval."""
    best = model.attack
    if best is None or best.estimate is None or best.lower is None or best.upper is None:
        return "not attacked"
    return f"AUC {best.estimate:.2f} ({best.lower:.2f}–{best.upper:.2f})"


def compare(data: PageData) -> Comparison | None:
    """The models of a page side by side; None if there are fewer than two."""
    subjects = [subject for subject in data.subjects if subject.source.report.step not in PLANS]
    if len(subjects) < 2:
        return None
    counts = Counter(kind for subject in subjects for kind in UTILITIES if _measured(subject.source.report, kind))
    quantity = max(UTILITIES, key=lambda kind: counts[kind]) if counts else None
    measured = {item.quantity for s in subjects if quantity and (item := _measured(s.source.report, quantity))}
    deltas = {lead.delta for subject in subjects if (lead := leading_guarantee(subject.source.report)) is not None}
    return Comparison(
        models=tuple(_compared(subject, quantity) for subject in subjects),
        quantity=quantity,
        deltas=tuple(sorted(deltas)),
        mixed=len(measured) > 1,
    )


def _compared(subject: JudgedSubject, quantity: str | None) -> ComparedModel:
    report, lead = subject.source.report, leading_guarantee(subject.source.report)
    follows = (
        lead is not None
        and lead.notion is Notion.APPROXIMATE_DP
        and lead.unit is PrivacyUnit.EXAMPLE
        and severity(lead, report.mechanism) in (Severity.GOOD, Severity.FAIR, Severity.BAD)
        and lead.status in (Status.PROVED, Status.CONDITIONAL)
    )
    audits = [audit.report for audit in subject.audits]
    return ComparedModel(
        name=subject.source.name,
        epsilon=lead.epsilon if lead is not None and follows else None,
        status=lead.status if lead is not None and follows else None,
        utility=_utility(report, quantity),
        before=_utility_before(subject, quantity),
        attack=best_attack([item for audit in audits for item in audit.evidence]),
        found=_worst_severity(audits),
    )


def best_attack(evidence: Sequence[Evidence]) -> Evidence | None:
    """The AUC with the largest lower bound among attacks on the model itself; None if there is none."""
    areas = [
        item
        for item in evidence
        if item.quantity == "AUC" and item.lower is not None and item.method not in WITHOUT_MODEL
    ]
    return max(areas, key=lambda item: item.lower or 0.0, default=None)


def _worst_severity(audits: Sequence[PrivacyReport]) -> Severity:
    if any(found_leaks(audit) for audit in audits):
        return Severity.BAD
    outcomes = [v.outcome for audit in audits for v in audit.verdicts if v.subject == MEMBERSHIP]
    if not outcomes:
        return Severity.NONE
    return Severity.WEAK if Outcome.REFUTED in outcomes else Severity.FAIR


def _measured(report: PrivacyReport, quantity: str) -> Evidence | None:
    names = UTILITIES[quantity]
    return next((item for item in report.evidence if item.quantity in names), None)


def _utility(report: PrivacyReport, quantity: str | None) -> float | None:
    measured = None if quantity is None else _measured(report, quantity)
    if measured is None:
        return None
    return math.inf if measured.estimate is None else measured.estimate


def _utility_before(subject: JudgedSubject, quantity: str | None) -> float | None:
    own_utility = None if quantity is None else _measured(subject.source.report, quantity)
    if own_utility is not None and "before" in own_utility.details:
        return own_utility.details["before"]
    by_key = {ancestor.key: ancestor for ancestor in subject.ancestors}
    for key in subject.source.parents:
        if key in by_key and (value := _utility(by_key[key].report, quantity)) is not None:
            return value
    return None
