"""A plan of protection, for the terminal."""

from __future__ import annotations

from privctl.domain.report import PrivacyReport
from privctl.render.account import attacker_lines
from privctl.render.text import number, table


def secrets_plan_text(report: PrivacyReport) -> str:
    """Every cap that was tried; then, of the plan that was written, each guarantee with what it rests on."""
    facts = report.parameters
    lines = [
        f"{facts['secrets']} secrets in {facts['records_with_a_secret']} of {facts['dataset_size']} records; "
        f"{facts['steps']} steps of {facts['batch_size']} expected records\n\n"
    ]
    rows = [
        [
            "none" if entry["cap"] is None else number(entry["cap"], 4),
            f"{100 * entry['kept']:.4g} %",
            str(entry["held_out"]),
            number(entry["largest_probability"], 4),
            number(entry["noise_multiplier"], 6),
            f"{entry['gap']:.1e}",
            f"{entry['seconds']:.1f}",
        ]
        for entry in facts["caps"]
    ]
    lines.append(table(["cap", "kept", "held out", "largest p", "noise multiplier", "gap", "s"], rows))
    for guarantee in report.guarantees:
        amount = (
            f"{number(guarantee.epsilon)} nats"
            if guarantee.delta == 0
            else f"epsilon {number(guarantee.epsilon)} at delta {guarantee.delta:g}"
        )
        lines.append(
            f"\n{guarantee.name}: {amount} ({guarantee.status})\n  {guarantee.accountant}\n  {guarantee.note}\n"
        )
        lines += [f"  {line.strip()}\n" for line in attacker_lines(guarantee)]
    if report.guarantees:
        lines.append("\nThe secrets' protection rests on:\n")
        lines += [f"  {a.state}: {a.statement}\n" for a in report.guarantees[0].assumptions]
    lines += [f"note: {warning}\n" for warning in report.warnings]
    return "".join(lines)
