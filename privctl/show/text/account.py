"""The output of ``privctl account``: a table of methods, the theorem behind each, and the attacker's risks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privctl.domain.guarantee import Guarantee, Status
from privctl.domain.protected import is_of_users
from privctl.domain.shown import downward
from privctl.show.text.guarantee import attacker_text, guarantee_text
from privctl.show.text.style import Colour, assumption_lines, bound, coloured, paragraph, table

_BOUND = {
    Status.PROVED: "yes",
    Status.CONDITIONAL: "yes",
    Status.CLAIMED: "claimed",
    Status.REFUTED: "refuted",
    Status.VOID: "void",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One method in the table: its run time in ``seconds``, and its guarantee, or the ``failure`` if it has none."""

    title: str
    seconds: float
    guarantee: Guarantee | None
    failure: str = ""


def account_text(
    rows: Sequence[AccountRow], main: Guarantee, *, column: str, heading: str, verbose: bool = False
) -> str:
    """The output of ``privctl account`` for (epsilon, delta) mechanisms.

    ``main`` is the guarantee to rely on. ``column`` is ``epsilon`` or the heading of the noise multipliers.
    """
    shown = [row for row in rows if row.guarantee is not None]
    headings = ["method", column, "true epsilon <=", "bound", "seconds"]
    body = []
    for row in shown:
        assert row.guarantee is not None
        value = row.guarantee.epsilon if column == "epsilon" else row.guarantee.noise_multiplier
        body.append(
            [
                row.title,
                _bound(value),
                "none" if row.guarantee.follows is None else bound(row.guarantee.follows, 4),
                _BOUND[row.guarantee.status] if row.guarantee.follows is not None else "no",
                f"{row.seconds:.3f}",
            ]
        )
    behind = "".join(paragraph(f"{row.title}: {_method_note(row)}", indent=2, hanging=6) for row in rows)
    parts = [_lines(heading), table(headings, body), behind, _rests_on(main, verbose=verbose), attacker_text(main)]
    return "\n".join(parts if main.epsilon is not None else (_unprotected(main), *parts))


def _unprotected(main: Guarantee) -> str:
    use = "a user's records were used" if is_of_users(main) else f"one {main.unit} was used"
    return paragraph(
        f"{coloured('No protection', Colour.BAD)}: no finite epsilon follows at delta {bound(main.delta)}, so an "
        f"attacker may be able to tell with certainty whether {use}."
    )


def _lines(text: str) -> str:
    return "".join(paragraph(line) for line in text.splitlines())


def notions_text(rows: Sequence[AccountRow], *, heading: str, verbose: bool = False) -> str:
    """The output of ``privctl account`` for mechanisms with guarantees of several notions of privacy: a block each."""
    parts = [_lines(heading)]
    for row in rows:
        if row.guarantee is None:
            parts.append(paragraph(f"{row.title}: {row.failure}"))
        else:
            parts.append(guarantee_text(row.guarantee, named=True, verbose=verbose))
    return "\n".join(parts)


def _bound(value: float | None) -> str:
    """An epsilon or a noise multiplier, rounded up, which is safe for both."""
    return "none" if value is None else bound(value)


def _method_note(row: AccountRow) -> str:
    if row.guarantee is None:
        return f"no result: {row.failure}"
    word = "REFUTED" if row.guarantee.status is Status.REFUTED else "NOT ESTABLISHED"
    note = f". {word}: {row.guarantee.note}" if row.guarantee.note else ""
    return f"{row.guarantee.accountant}{note}"


def _rests_on(main: Guarantee, *, verbose: bool) -> str:
    known = f"; at least {downward(main.floor)} for worst-case data and an observer of every step" if main.floor else ""
    about = f"one {main.unit}, neighbours by {main.adjacency},"
    if main.epsilon is None:
        return paragraph(
            f"Nothing to rely on: {main.name} gives no finite epsilon for {about} where:"
        ) + assumption_lines(main.assumptions, verbose=verbose)
    noise = "" if main.noise_multiplier is None else f"noise multiplier {_bound(main.noise_multiplier)}, "
    return (
        paragraph(f"To rely on: {main.name}, {noise}epsilon {bound(main.epsilon)} at delta {bound(main.delta)}{known}.")
        + paragraph(f"It protects {about} and holds if:")
        + assumption_lines(main.assumptions, verbose=verbose)
    )
