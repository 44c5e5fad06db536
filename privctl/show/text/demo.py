"""The demonstration's one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Guarantee
from privctl.domain.shown import counted
from privctl.show.text.style import bound, number, paragraph, table

#: What all names begin with, left out so that a row fits one line.
_STEM = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One model: the claimed epsilon, those that follow, its perplexity, and the attack's AUC."""

    name: str
    claimed: float | None
    convex: Guarantee | None
    nonconvex: Guarantee | None
    noise_stddev: float
    perplexity: float | None
    auc: Evidence


def demo_table(rows: Sequence[DemoRow], delta: float) -> str:
    """The table, a line a model, and how to read it."""
    body = [
        [
            row.name.removeprefix(_STEM),
            number(row.claimed, 3),
            _epsilon(row.convex),
            _epsilon(row.nonconvex),
            number(row.perplexity, 4),
            f"{number(row.auc.estimate, 3)} ({number(row.auc.lower, 3)} to {number(row.auc.upper, 3)})",
        ]
        for row in rows
    ]
    headings = ["model", "claimed", "if convex", "any loss", "perplexity", "attack AUC (interval)"]
    notes = (
        f"eps at delta {bound(delta, 3)}, replacing one record. 'claimed' is what the published formula promises.",
        "'if convex' follows for a convex loss, which a GPT-2 does not have; 'any loss' needs no such assumption, only "
        "that rounding in the training moved the weights no farther than exact steps may.",
        f"The noise has standard deviation {', '.join(number(row.noise_stddev, 3) for row in rows)}, in this order.",
        "'perplexity' is on records the model never saw; 'attack AUC' is 0.5 where a guess is as good.",
        "An AUC near 0.5 means that this attack found nothing, not that nothing leaks.",
    )
    return "".join([table(headings, body), "\n", *(paragraph(line, indent=2, hanging=2) for line in notes)])


def verification_text(reports: int, proved: int, false: int, failed: Sequence[str]) -> str:
    """The results of verifying the demonstration's own reports."""
    if failed:
        return paragraph(
            f"privctl verify does not pass {len(failed)} of {counted(reports, 'report')}: {', '.join(failed)}"
        )
    return paragraph(
        f"privctl verify passes all {reports} reports: {counted(proved, 'guarantee')} proved again by independent "
        f"code, {counted(false, 'published claim')} refuted, as the reports say"
    )


def _epsilon(guarantee: Guarantee | None) -> str:
    return bound(guarantee.epsilon if guarantee else None, 3)
