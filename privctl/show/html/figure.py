"""What every picture and table of the page has in common: a name, a description in words, the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import AssumptionState, Status
from privctl.domain.verdict import Outcome
from privctl.show.html.axes import WIDTH
from privctl.show.html.markup import Node, el
from privctl.show.summary import WORDS
from privctl.show.text.style import number

#: Rows of one table.
MOST_ROWS = 200

_COLOURS = {
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


def colour(state: Status | Outcome | AssumptionState) -> str:
    """The class that colours what is in this state."""
    return _COLOURS[state]


def pill(state: Status | Outcome | AssumptionState, word: str = "") -> Node:
    """A state as a small coloured word."""
    text = word or (WORDS[state] if isinstance(state, Outcome) else str(state))
    return el("span", text, class_=f"pill {colour(state)}")


def picture(key: str, title: str, words: str, height: float, shapes: Iterable[Node]) -> Node:
    """An SVG of the page's width; ``words`` say what it shows to whoever cannot see it."""
    return el(
        "svg",
        el("title", title, id=f"{key}-title"),
        el("desc", words, id=f"{key}-desc"),
        list(shapes),
        role="img",
        class_="plot",
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def figure(
    key: str, title: str, words: str, height: float, shapes: Iterable[Node], *, notes: Sequence[str] = (),
    behind: Sequence[Node] = (),
) -> Node:  # fmt: skip
    """A titled picture with what to know of it, and the numbers ``behind`` it on demand."""
    return el(
        "figure",
        el("h3", title),
        picture(key, title, words, height, shapes),
        el("figcaption", [el("p", note) for note in (words, *notes)]),
        el("details", el("summary", "The numbers"), list(behind)) if behind else None,
        id=key,
    )


def table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[Node | str]], total: int | None = None
) -> Node:
    """A table that scrolls by itself where it is wider than the page; long ones are cut, and say so."""
    shown = rows[:MOST_ROWS]
    hidden = (len(rows) if total is None else total) - len(shown)
    body = [
        el("tr", [el("th" if i == 0 else "td", cell, scope="row" if i == 0 else None) for i, cell in enumerate(row)])
        for row in shown
    ]
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", el("tr", [el("th", heading, scope="col") for heading in headings])),
            el("tbody", body),
        ),
        el("p", f"{hidden} more rows are in the report.", class_="muted") if hidden > 0 else None,
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption,
    )


def interval(item: Evidence) -> str:
    """An evidence's interval in words."""
    if item.lower is None:
        return "–"
    if item.bound is Bound.LOWER or item.upper is None:
        return f"at least {number(item.lower, 3)}"
    return f"{number(item.lower, 3)} to {number(item.upper, 3)}"


def evidence_table(caption: str, evidence: Sequence[Evidence]) -> Node:
    """Measured quantities with all that is known of each."""
    rows = [
        (
            item.method,
            item.quantity,
            number(item.estimate, 4),
            interval(item),
            f"{100 * item.confidence:.4g} %" if item.lower is not None else "–",
            number(item.details.get("chance"), 3),
            ", ".join(f"{count:,} {name}" for name, count in item.samples.items()),
            item.reason or "–",
        )
        for item in evidence[:MOST_ROWS]
    ]
    headings = ("method", "quantity", "estimate", "interval", "confidence", "chance", "samples", "remark")
    return table(caption, headings, rows, len(evidence))
