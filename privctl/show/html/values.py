"""The values that templates lay out: figures, tables and coloured words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.shown import upward
from privctl.domain.verdict import Outcome
from privctl.show.svg.shapes import Node
from privctl.show.text.style import number

#: Most rows of one table.
MOST_ROWS = 200

State = Status | Outcome | AssumptionState

_COLOURS: dict[State, str] = {
    Status.PROVED: "good",
    Status.CONDITIONAL: "fair",
    Status.CLAIMED: "weak",
    Status.REFUTED: "bad",
    Status.VOID: "void",
    Outcome.PROVED: "good",
    Outcome.CONSISTENT: "good",
    Outcome.REFUTED: "bad",
    Outcome.INCONCLUSIVE: "none",
    AssumptionState.ENFORCED: "good",
    AssumptionState.CHECKED: "good",
    AssumptionState.ASSERTED: "fair",
    AssumptionState.VIOLATED: "bad",
}


def colour(state: State | None) -> str:
    """The CSS class for a state; neutral for None."""
    return "none" if state is None else _COLOURS[state]


def state_word(state: State) -> str:
    """The word for a state on the page."""
    return str(state).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pill:
    """A coloured label: a ``state``, which decides its colour, and a ``word``."""

    state: State
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with the ``rows`` shown and the number of those ``hidden``; the first cell of a row is its heading."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Pill | str]]
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, ``height`` units high; ``words`` describe it, also for readers who cannot see it.

    ``key`` is its id on the page, ``notes`` are printed below it, and ``tables`` have the numbers that it shows.
    """

    key: str
    title: str
    words: str
    height: float
    shapes: Sequence[Node]
    notes: Sequence[str]
    tables: Sequence[Table]


def figure(
    key: str, title: str, words: str, height: float, shapes: Iterable[Node], *, notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> Figure:  # fmt: skip
    """Make a ``Figure``."""
    return Figure(
        key=key, title=title, words=words, height=height, shapes=tuple(shapes), notes=notes, tables=tuple(tables)
    )


def table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[Pill | str]], total: int | None = None
) -> Table:
    """Make a ``Table`` of at most ``MOST_ROWS`` rows; ``total`` is the number of rows if ``rows`` were cut already."""
    shown = rows[:MOST_ROWS]
    hidden = (len(rows) if total is None else total) - len(shown)
    return Table(caption=caption, headings=headings, rows=shown, hidden=hidden)


def interval(item: Evidence) -> str:
    """The interval of an item of evidence, in words."""
    if item.bound is Bound.UPPER and item.upper is not None:
        return f"at most {upward(item.upper, 3)}"
    if item.lower is None:
        return "–"
    if item.bound is Bound.LOWER or item.upper is None:
        return f"at least {number(item.lower, 3)}"
    return f"{number(item.lower, 3)} to {number(item.upper, 3)}"


def evidence_table(caption: str, evidence: Sequence[Evidence]) -> Table:
    """A table of evidence: estimate, interval, confidence, chance and samples of each quantity."""
    rows = [
        (
            item.method,
            item.quantity,
            number(item.estimate, 4),
            interval(item),
            f"{100 * item.confidence:.4g} %" if (item.lower, item.upper) != (None, None) else "–",
            number(item.details.get("chance"), 3),
            ", ".join(f"{count:,} {name}" for name, count in item.samples.items()),
            item.reason or "–",
        )
        for item in evidence[:MOST_ROWS]
    ]
    headings = ("method", "quantity", "estimate", "interval", "confidence", "chance", "samples", "remark")
    return table(caption, headings, rows, len(evidence))
