"""The table of noise candidates, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privctl.domain.guarantee import Adjacency, Guarantee, Scope, Status
from privctl.show.text.style import Colour, bound, coloured, number, paragraph, table

_CHANGES = {
    Adjacency.REPLACE_ONE: "one example is replaced",
    Adjacency.ZERO_OUT: "one example's gradient becomes zero",
}
_EXPLAINED = {
    Status.PROVED: "proved: follows from what was enforced or checked, for the floats that are written",
    Status.CONDITIONAL: "conditional: follows if the report's assumptions hold",
    Status.CLAIMED: "claimed: published, does not follow",
    Status.VOID: "VOID: an assumption is violated; nothing is guaranteed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """One candidate: the epsilon requested, the noise's standard deviation, its guarantees and its utility.

    ``measured`` is the utility; ``published_stddev`` is what the published formula would add, if another was used.
    """

    epsilon: float | None
    stddev: float
    adjacency: Adjacency | None
    guarantees: Sequence[Guarantee]
    measured: float | None
    path: str
    published_stddev: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseWarnings:
    """Candidates without a useful guarantee or utility, each with the ``reasons``, and ``advice`` on what to do."""

    reasons: Mapping[str, str]
    advice: Sequence[str]


def noise_table(
    rows: Sequence[NoiseRow],
    *,
    warnings: NoiseWarnings | None = None,
    notes: Sequence[str] = (),
    quantity: str = "",
    original: float | None = None,
    dry_run: bool = False,
) -> str:
    """A table with one candidate per line: epsilon requested, noise, epsilon under each regime, utility and path.

    ``quantity`` names the utility that was measured ("" if none), ``original`` is that of the input.
    """
    regimes = _columns(rows)
    compared = any(row.published_stddev is not None for row in rows)
    headings = ["epsilon", "noise stddev", *(["published stddev"] if compared else [])]
    headings += [_heading(g) for g in regimes]
    headings += [quantity.removeprefix("held-out ")] if quantity else []
    headings += ["would write" if dry_run else "written"]
    body = []
    for row in rows:
        cells = [number(row.epsilon), number(row.stddev), *([number(row.published_stddev)] if compared else [])]
        cells += [bound(_find(row, g.name)) for g in regimes]
        cells += [number(row.measured)] if quantity else []
        body.append([*cells, row.path])
    if quantity:
        body.insert(0, ["-", "0", *["-"] * compared, *["-"] * len(regimes), number(original), "(the input)"])
    below = [_warned(warnings, len(rows)), _legend(rows), *(paragraph(note, indent=2) for note in notes)]
    return table(headings, body) + "".join(below)


def _warned(warnings: NoiseWarnings | None, candidates: int) -> str:
    """Warnings, printed between the table and its legend so that they are not missed."""
    if warnings is None:
        return ""
    lines = [f"{name}: {why}" if candidates > 1 else why for name, why in warnings.reasons.items()]
    reasons = [coloured(paragraph(line, indent=2).rstrip("\n"), Colour.BAD) + "\n" for line in lines]
    return "".join([*reasons, *(paragraph(line, indent=2) for line in warnings.advice)])


def _columns(rows: Sequence[NoiseRow]) -> list[Guarantee]:
    return [
        g
        for g in rows[0].guarantees
        if g.scope is Scope.THIS_MODEL and g.adjacency in (rows[0].adjacency, Adjacency.UNSTATED)
    ]


def _heading(guarantee: Guarantee) -> str:
    return f"{guarantee.name} ({guarantee.status})"


def _find(row: NoiseRow, name: str) -> float | None:
    return next(g.epsilon for g in _columns([row]) if g.name == name)


def _legend(rows: Sequence[NoiseRow]) -> str:
    guarantees = rows[0].guarantees
    if rows[0].adjacency is None or not guarantees:
        return ""
    change = _CHANGES[rows[0].adjacency]
    lines = [f"epsilon at delta {bound(guarantees[0].delta)} when {change}; the report has the other adjacency too"]
    lines += [text for status, text in _EXPLAINED.items() if any(g.status is status for g in guarantees)]
    if rows[0].published_stddev is not None:
        lines.append(
            "published stddev: what the DP-Weights paper's formula would add (--calibration published); its epsilon "
            "does not follow"
        )
    if len(rows) > 1:
        lines.append("candidates are nested: having several of them reveals no more than having the least noisy one")
    return "".join(paragraph(line, indent=2) for line in lines)
