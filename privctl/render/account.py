"""A plan as text: the table of methods, what stands behind each, and what is left to an attacker."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.guarantee import Guarantee, Notion, RiskMeasure, Status
from privctl.render.text import number, table

_WIDTH = 80

_BOUND = {
    Status.PROVED: "yes",
    Status.CONDITIONAL: "yes",
    Status.CLAIMED: "claimed",
    Status.REFUTED: "refuted",
    Status.VOID: "void",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One method as the table shows it; ``failure`` where it has no answer."""

    title: str
    seconds: float
    guarantee: Guarantee | None
    failure: str = ""


def account_text(rows: Sequence[AccountRow], main: Guarantee, *, column: str, heading: str) -> str:
    """The whole answer to ``privctl account`` for (epsilon, delta) mechanisms."""
    shown = [row for row in rows if row.guarantee is not None]
    headings = ["method", column, "true epsilon <=", "bound", "seconds"]
    body = []
    for row in shown:
        assert row.guarantee is not None
        value = row.guarantee.epsilon if column == "epsilon" else row.guarantee.noise_multiplier
        body.append(
            [
                row.title,
                _value(value),
                "none" if row.guarantee.follows is None else number(row.guarantee.follows, 4),
                _BOUND[row.guarantee.status],
                f"{row.seconds:.3f}",
            ]
        )
    lines = [heading, "", table(headings, body).rstrip("\n"), ""]
    lines += [line for row in rows for line in _wrapped(f"{row.title}: {_behind(row)}")]
    lines += ["", *_rests_on(main), "", *attacker_lines(main)]
    return "\n".join(lines) + "\n"


def attacker_lines(guarantee: Guarantee) -> list[str]:
    """What the guarantee leaves an attacker, one line a risk."""
    if not guarantee.risks:
        return []
    lines = ["What that leaves an attacker, at most:"]
    for risk in guarantee.risks:
        if risk.measure is RiskMeasure.ADVANTAGE:
            text = (
                f"advantage (true minus false positive rate) {risk.bound:.4g}: if a fair coin decided whether a record "
                f"was used, {50 * (1 + risk.bound):.3g} % told right"
            )
        elif risk.measure is RiskMeasure.TRUE_POSITIVE_RATE:
            text = f"true positive rate {risk.bound:.4g} at {100 * (risk.at or 0):g} % false positives"
        elif risk.measure is RiskMeasure.POSTERIOR:
            text = (
                f"a secret's value named right with probability {risk.bound:.4g}, where a blind guess has {risk.at:g}"
            )
        else:
            text = f"area under the ROC curve {risk.bound:.4g}"
        lines.append(f"  {text}")
    return lines


def notions_text(rows: Sequence[AccountRow], *, heading: str) -> str:
    """The answer for mechanisms whose guarantees are of several notions: a paragraph each."""
    lines = [heading]
    for row in rows:
        guarantee = row.guarantee
        if guarantee is None:
            lines += ["", f"{row.title}: {row.failure}"]
            continue
        lines += ["", f"{row.title}: {_amount(guarantee)} ({guarantee.status})", f"  {guarantee.accountant}"]
        lines += [f"  {a.state}: {a.statement}" for a in guarantee.assumptions]
        lines += [f"  {guarantee.note}"] if guarantee.note else []
        lines += [f"  {line.strip()}" for line in attacker_lines(guarantee)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_long_words=False)


def _amount(guarantee: Guarantee) -> str:
    if guarantee.notion is not Notion.APPROXIMATE_DP and guarantee.delta == 0:
        return f"{_value(guarantee.epsilon)} nats"
    if guarantee.epsilon is None:
        return f"no finite epsilon at delta {guarantee.delta:g}"
    return f"epsilon {_value(guarantee.epsilon)} at delta {guarantee.delta:g}"


def _value(value: float | None) -> str:
    return "none" if value is None else number(value)


def _behind(row: AccountRow) -> str:
    if row.guarantee is None:
        return f"no answer: {row.failure}"
    word = "REFUTED" if row.guarantee.status is Status.REFUTED else "NOT ESTABLISHED"
    note = f". {word}: {row.guarantee.note}" if row.guarantee.note else ""
    return f"{row.guarantee.accountant}{note}"


def _rests_on(main: Guarantee) -> list[str]:
    known = (
        f"; no less than {number(main.floor)} for the worst data and an observer of every step" if main.floor else ""
    )
    lines = [
        f"To rely on: {main.name}, noise multiplier {_value(main.noise_multiplier)}, "
        f"epsilon {_value(main.epsilon)} at delta {main.delta:g}{known}."
        if main.noise_multiplier is not None
        else f"To rely on: {main.name}, epsilon {_value(main.epsilon)} at delta {main.delta:g}{known}."
    ]
    lines.append(f"It protects one {main.unit}, neighbours by {main.adjacency}, and holds if:")
    return lines + [f"  {a.statement} ({a.state})" for a in main.assumptions]
