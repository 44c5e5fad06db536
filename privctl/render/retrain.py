"""A finished retraining, for the terminal."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.render.account import attacker_lines
from privctl.render.text import number, table


def retrain_text(report: PrivacyReport) -> str:
    """Measures of the last epoch, then the guarantee with what it rests on, or that there is none."""
    rows = [[item.quantity, number(item.estimate, 5)] for item in report.evidence]
    lines = [table(["measured", "last epoch"], rows)] if rows else []
    for guarantee in report.guarantees:
        epsilon = "no finite epsilon" if guarantee.epsilon is None else f"epsilon {number(guarantee.epsilon)}"
        lines.append(f"{epsilon} at delta {guarantee.delta:g} ({guarantee.status})\n")
        lines.append(f"  protects one {guarantee.unit}, neighbours by {guarantee.adjacency}, where:\n")
        lines += [f"  {a.state}: {a.statement}\n" for a in guarantee.assumptions]
        lines += [f"{line}\n" for line in attacker_lines(guarantee)]
    lines += [f"note: {warning}\n" for warning in report.warnings]
    return "".join(lines)
