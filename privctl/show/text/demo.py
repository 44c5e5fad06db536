"""The demonstration, for the terminal: its table, the verification and the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.evidence import Evidence
from privctl.domain.gate import GateJudgement, GateOutcome
from privctl.domain.guarantee import Guarantee
from privctl.domain.shown import counted
from privctl.show.text.style import bound, number, paragraph, table

#: The common beginning of names, left out so that a row fits one line.
_PREFIX = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One model: the claimed epsilon, the guarantees that follow, its perplexity and the attack's AUC."""

    name: str
    claimed: float | None
    convex: Guarantee | None
    any_loss: Guarantee | None
    noise_stddev: float | None
    perplexity: float | None
    auc: Evidence


def demo_table(rows: Sequence[DemoRow], delta: float) -> str:
    """The table, one line per model, and how to read it. ``delta`` is that of all guarantees."""
    body = [
        [
            row.name.removeprefix(_PREFIX),
            number(row.claimed, 3),
            _epsilon(row.convex),
            _epsilon(row.any_loss),
            number(row.perplexity, 4),
            f"{number(row.auc.estimate, 3)} ({number(row.auc.lower, 3)} to {number(row.auc.upper, 3)})",
        ]
        for row in rows
    ]
    deviations = [number(row.noise_stddev, 3) for row in rows if row.noise_stddev is not None]
    headings = ["model", "claimed", "if convex", "any loss", "perplexity", "attack AUC (interval)"]
    notes = (
        f"Epsilons are at delta {bound(delta, 3)} for replacing one record (for dp-sgd: adding or removing one). "
        "'claimed' is what the published formula promises.",
        "'if convex' follows for a convex loss, which a GPT-2 does not have; 'any loss' needs no such assumption, only "
        "that rounding in the training moved the weights no farther than exact steps may.",
        f"The noise added to finished weights has standard deviation {', '.join(deviations)}, in this order; dp-sgd "
        "adds noise in every training step.",
        "'perplexity' is on records that the model was not trained on; an 'attack AUC' of 0.5 is as good as a guess.",
        "An AUC near 0.5 means that this attack found nothing, not that nothing leaks.",
    )
    return "".join([table(headings, body), "\n", *(paragraph(line, indent=2, hanging=2) for line in notes)])


def verification_text(reports: int, proved: int, false: int, failed: Sequence[str]) -> str:
    """The results of verifying the demonstration's own reports, in a sentence; ``failed`` names those that fail."""
    if failed:
        return paragraph(
            f"privctl verify does not pass {len(failed)} of {counted(reports, 'report')}: {', '.join(failed)}"
        )
    return paragraph(
        f"privctl verify passes all {reports} reports: {counted(proved, 'guarantee')} proved again by independent "
        f"code, {counted(false, 'published claim')} refuted, as the reports state"
    )


def gate_text(judgements: Sequence[GateJudgement], policy: Path) -> str:
    """The gate's outcome for each model, with the findings that keep it from passing."""
    lines = [f"privctl gate with {policy}:\n"]
    for judgement in judgements:
        name = Path(judgement.models[0]).name if judgement.models else "no model"
        lines.append(paragraph(f"{name}: {judgement.outcome.value.upper()}", indent=2))
        open_findings = (*judgement.of(GateOutcome.FAIL), *judgement.of(GateOutcome.INCONCLUSIVE))
        for rule, count in Counter(finding.rule for finding in open_findings).items():
            first = next(finding for finding in open_findings if finding.rule == rule)
            more = f" (and {counted(count - 1, 'more finding')})" if count > 1 else ""
            lines.append(paragraph(f"{rule}: {first.message}{more}", indent=4))
    return "".join(lines)


def _epsilon(guarantee: Guarantee | None) -> str:
    return bound(guarantee.epsilon if guarantee else None, 3)
