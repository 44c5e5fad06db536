"""A guarantee, for the terminal: its numbers, its assumptions and the attacker's risks."""

from __future__ import annotations

from collections.abc import Sequence

from privctl.domain.guarantee import Guarantee, Notion, Risk, RiskMeasure, Status
from privctl.domain.protected import is_of_users, meaning_of_example
from privctl.show.text.style import assumption_lines, bound, graded_word, paragraph


def amount(guarantee: Guarantee) -> str:
    """The guarantee's numbers with their units."""
    if guarantee.status is Status.REFUTED:
        return guarantee.name
    if guarantee.delta == 0 and guarantee.notion is not Notion.APPROXIMATE_DP:
        about = (
            "of mutual information, on average" if guarantee.notion is Notion.MUTUAL_INFORMATION else "about a secret"
        )
        return f"{'no finite number of' if guarantee.epsilon is None else bound(guarantee.epsilon)} nats {about}"
    epsilon = "no finite epsilon" if guarantee.epsilon is None else f"epsilon {bound(guarantee.epsilon)}"
    return f"{epsilon} at delta {bound(guarantee.delta)}"


def guarantee_text(guarantee: Guarantee, *, named: bool, verbose: bool, printed: Sequence[Guarantee] = ()) -> str:
    """The guarantee with its assumptions and risks, one paragraph each; ``named`` puts its name first.

    ``printed`` are guarantees that were printed before. Assumptions of one of them that this guarantee also rests on
    are not repeated: its name is given instead.
    """
    name = f"{guarantee.name}: " if named and guarantee.status is not Status.REFUTED else ""
    text = paragraph(f"{name}{amount(guarantee)} ({graded_word(guarantee)})")
    if guarantee.status in (Status.REFUTED, Status.CLAIMED):
        return text + paragraph(f"{guarantee.accountant}: {guarantee.note}", indent=2)
    if named or verbose:
        text += paragraph(guarantee.accountant, indent=2)
    if guarantee.note and (verbose or guarantee.notion is not Notion.APPROXIMATE_DP):
        text += paragraph(guarantee.note, indent=2)
    meaning = f" ({means})" if (means := meaning_of_example(guarantee)) else ""
    protected = f"protects one {guarantee.unit}{meaning}, neighbours by {guarantee.adjacency}, where"
    earlier = _same_assumptions(guarantee, printed)
    if earlier is None:
        text += paragraph(f"{protected}:", indent=2)
        return text + assumption_lines(guarantee.assumptions, verbose=verbose) + attacker_text(guarantee)
    others = [assumption for assumption in guarantee.assumptions if assumption not in earlier.assumptions]
    more = ", and:" if others else ""
    text += paragraph(f"{protected} the assumptions listed under {earlier.name!r} hold{more}", indent=2)
    return text + assumption_lines(others, verbose=verbose) + attacker_text(guarantee)


def _same_assumptions(guarantee: Guarantee, printed: Sequence[Guarantee]) -> Guarantee | None:
    """The guarantee among ``printed`` with the most assumptions, all of which ``guarantee`` rests on; None if none."""
    shown = (g for g in printed if g.assumptions and g.status not in (Status.REFUTED, Status.CLAIMED))
    within = [other for other in shown if set(other.assumptions) <= set(guarantee.assumptions)]
    return max(within, key=lambda other: len(other.assumptions), default=None)


def attacker_text(guarantee: Guarantee) -> str:
    """The most that an attacker can achieve, one paragraph per risk; empty if the guarantee states none.

    Of a void guarantee nothing follows, so its figures are not shown.
    """
    if guarantee.status is Status.VOID:
        return paragraph("What that leaves an attacker: unknown, as an assumption is violated and nothing follows.")
    if not guarantee.risks:
        return ""
    use = "a user's records were used" if is_of_users(guarantee) else "a record was used"
    risks = [paragraph(_risk(risk, use), indent=2) for risk in guarantee.risks]
    return "".join(["What that leaves an attacker, at most:\n", *risks])


def _risk(risk: Risk, use: str) -> str:
    if risk.measure is RiskMeasure.ADVANTAGE:
        return (
            f"advantage (true minus false positive rate) {bound(risk.bound, 4)}: a guess whether {use} is right "
            f"{bound(50 * (1 + risk.bound), 3)} % of the time, where chance gives 50 %"
        )
    if risk.measure is RiskMeasure.TRUE_POSITIVE_RATE:
        return f"true positive rate {bound(risk.bound, 4)} at {100 * (risk.at or 0):g} % false positives"
    if risk.measure is RiskMeasure.POSTERIOR:
        return f"probability {bound(risk.bound, 4)} of guessing a secret's value, where a blind guess has {risk.at:g}"
    return f"area under the ROC curve {bound(risk.bound, 4)}"
