"""A finished retraining, for the terminal."""

from __future__ import annotations

from privctl.domain.guarantee import Guarantee, Notion, Status
from privctl.domain.report import PrivacyReport
from privctl.render.account import attacker_lines
from privctl.render.text import number, table


def retrain_text(report: PrivacyReport) -> str:
    """Measures of the last epoch, then each guarantee with what it rests on, or that there is none."""
    rows = [[item.quantity, number(item.estimate, 5)] for item in report.evidence]
    lines = [table(["measured", "last epoch"], rows)] if rows else []
    for guarantee in report.guarantees:
        lines.append(f"{_amount(guarantee)} ({guarantee.status})\n")
        if guarantee.status is Status.REFUTED:
            lines.append(f"  {guarantee.accountant}: {guarantee.note}\n")
            continue
        if len(report.guarantees) > 1:
            lines.append(f"  {guarantee.accountant}\n")
        if guarantee.notion is not Notion.APPROXIMATE_DP:
            lines.append(f"  {guarantee.note}\n")
        lines.append(f"  protects one {guarantee.unit}, neighbours by {guarantee.adjacency}, where:\n")
        lines += [f"  {a.state}: {a.statement}\n" for a in guarantee.assumptions]
        lines += [f"{line}\n" for line in attacker_lines(guarantee)]
    lines += [f"note: {warning}\n" for warning in report.warnings]
    return "".join(lines)


def _amount(guarantee: Guarantee) -> str:
    """The guarantee's numbers, with what they are numbers of."""
    if guarantee.notion is Notion.MUTUAL_INFORMATION:
        return f"{number(guarantee.epsilon)} nats of mutual information, on average"
    if guarantee.notion is Notion.SECRET_PROTECTION:
        nats = "no finite number of" if guarantee.epsilon is None else number(guarantee.epsilon)
        return f"{guarantee.name}: {nats} nats at most about the secret nearest to its bound"
    if guarantee.status is Status.REFUTED:
        return guarantee.name
    epsilon = "no finite epsilon" if guarantee.epsilon is None else f"epsilon {number(guarantee.epsilon)}"
    return f"{epsilon} at delta {guarantee.delta:g}"
