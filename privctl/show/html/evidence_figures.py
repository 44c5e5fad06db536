"""Figures of models side by side, and of audits' rates and bounds: extraction, canaries, secrets, epsilons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.domain.evidence import Bound, Evidence
from privctl.domain.guarantee import Notion, Scope
from privctl.domain.strength import severity
from privctl.show.comparison import HEADINGS, compare
from privctl.show.html.values import Figure, Table, evidence_table, figure, interval, table
from privctl.show.page_data import JudgedSubject, PageData, ReportSource
from privctl.show.summary import amount
from privctl.show.svg import compare as side_by_side
from privctl.show.svg.dots import MOST, DotRow, ReferenceLine, dots, height
from privctl.show.text.style import bound, number, with_exponent

#: Most tensors of one figure.
_TENSORS = 16
#: Most characters of a tensor's name in it.
_NAME = 30
_TESTS = ("p_value", "level")
#: Families of evidence that are rates: beginning of the method, title, description of the figure.
_RATES = (
    ("extraction", "Text that the model reproduces", "Shares of texts that the model completes word for word."),
    ("canary completion", "Canaries the model completes", "Shares of canaries that the model completes greedily."),
    (
        "secret",
        "Secrets that can be guessed",
        "Shares of secrets that rank first among their candidates, or that the model writes; rings show chance.",
    ),
)


def rate_figures(source: ReportSource) -> Iterator[Figure]:
    """One figure for each family of rates in one audit, with intervals."""
    for beginning, title, words in _RATES:
        items = [item for item in source.report.evidence if item.method.startswith(beginning)]
        rates = [item for item in items if item.lower is not None and item.upper is not None]
        if not rates:
            continue
        rows = [_rate(item) for item in rates]
        yield figure(
            f"{source.key}-{beginning.replace(' ', '-')}",
            f"{title}: {source.name}",
            f"{words} Bars are intervals that hold with the confidence stated in the table.",
            height(rows),
            dots(rows, "share"),
            notes=[f"The first {MOST} of {len(rows)} are drawn."] if len(rows) > MOST else [],
            tables=[evidence_table(f"{title}, {source.name}", items)],
        )


def _rate(item: Evidence) -> DotRow:
    value = item.estimate
    chance = item.details.get("chance")
    return DotRow(
        name=item.quantity,
        value=value,
        lower=item.lower,
        upper=item.upper,
        hollow=chance if chance else None,
        text=number(value, 3),
        colour="lead" if chance is not None and (item.lower or 0) > chance else "calm",
        tip=f"{item.quantity}: {number(value, 3)} ({interval(item)})",
    )


def epsilon_figure(subject: JudgedSubject) -> Figure | None:
    """All epsilons of one model on one axis: stated upper bounds, and lower bounds that audits certify.

    None if there are fewer than two numbers to compare.
    """
    source = subject.source
    rows = []
    for guarantee in source.report.guarantees:
        usual = guarantee.notion is Notion.APPROXIMATE_DP and guarantee.scope is Scope.THIS_MODEL
        if usual and guarantee.epsilon:
            rows.append(DotRow(
                name=f"{guarantee.name}, {guarantee.adjacency} ({guarantee.status})",
                value=guarantee.epsilon,
                text=f"≤ {with_exponent(guarantee.epsilon)}",
                colour=severity(guarantee, source.report.mechanism),
                tip=f"{guarantee.name}: {amount(guarantee)}, {guarantee.status}",
            ))  # fmt: skip
    lower = list(_certified(subject.audits))
    if not rows or len(rows) + len(lower) < 2:
        return None
    rows += lower
    words = "Epsilon on a log axis: stated upper bounds, coloured by strength, and lower bounds certified by audits."
    deltas = sorted({guarantee.delta for guarantee in source.report.guarantees})
    notes = [f"Stated at δ = {', '.join(with_exponent(delta, 3) for delta in deltas)}."]
    if len(rows) > MOST:
        notes.append(f"The first {MOST} of {len(rows)} are drawn.")
    return figure(
        f"{source.key}-epsilons",
        f"Every epsilon: {source.name}",
        words,
        height(rows),
        dots(rows, "epsilon", log=True),
        notes=notes,
        tables=[table(f"Epsilons, {source.name}", ("what", "epsilon"), [(row.name, row.text) for row in rows])],
    )


def _certified(audits: Sequence[ReportSource]) -> Iterator[DotRow]:
    for audit in audits:
        for item in audit.report.evidence:
            named = item.quantity == "epsilon" or item.quantity.startswith("epsilon lower bound")
            if item.bound is Bound.LOWER and named and item.estimate is not None:
                ceiling = item.details.get("ceiling")
                text = f"≥ {number(item.estimate, 3)}"
                if ceiling is not None:
                    text += f" (could show {number(ceiling, 3)})"
                yield DotRow(
                    name=f"{item.method}, certified", value=item.estimate or None, text=text, hollow=ceiling or None
                )


def account_figure(source: ReportSource) -> Figure | Table | None:
    """The epsilon of a plan by every method, and what follows from the same noise; a table if nothing can be drawn."""
    guarantees = [g for g in source.report.guarantees if g.notion is Notion.APPROXIMATE_DP]
    drawn = [g for g in guarantees if g.epsilon and g.follows]
    if not guarantees:
        return None
    rows = [
        DotRow(
            name=f"{g.name} ({g.status})",
            value=g.follows,
            hollow=g.epsilon,
            text=f"{with_exponent(g.epsilon)}, true ≤ {with_exponent(g.follows)}",
            colour=severity(g, source.report.mechanism),
        )
        for g in drawn
    ]
    body = [
        (g.name, number(g.noise_multiplier), bound(g.epsilon), bound(g.follows), str(g.status), g.accountant)
        for g in guarantees
    ]
    heads = ("method", "noise multiplier", "epsilon it says", "true epsilon, at most", "status", "accountant")
    tables = [table(f"Every method, {source.name}", heads, body)]
    if not rows:
        return tables[0]
    words = "Epsilon by method on a log axis: rings are what a method states, dots what follows from the same noise."
    return figure(
        f"{source.key}-account", f"Every accountant: {source.name}", words, height(rows),
        dots(rows, f"epsilon at δ = {with_exponent(guarantees[0].delta, 3)}", log=True), tables=tables,
    )  # fmt: skip


def tests_table(source: ReportSource) -> Table | None:
    """The p-values of an audit's tests; None if there are none."""
    items = [item for item in source.report.evidence if all(name in item.details for name in _TESTS)]
    rows = [
        (item.method, item.quantity, number(item.estimate, 4), *(f"{item.details[name]:.3g}" for name in _TESTS))
        for item in items
    ]
    return (
        table(f"Tests, {source.name}", ("method", "quantity", "estimate", *("p-value", "level")), rows)
        if rows
        else None
    )


def _end_of(name: str) -> str:
    """The end of a tensor's name, which distinguishes it from others, if the whole name is too long."""
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def noise_figure(source: ReportSource, stddev: float) -> Figure | None:
    """The noise relative to the weights of each released tensor; None if the weights could not be read."""
    if not source.tensors:
        return None
    largest = sorted(source.tensors, key=lambda tensor: -tensor.size)[:_TENSORS]
    rows = [
        DotRow(
            name=f"{_end_of(tensor.name)} ({tensor.size:,})",
            value=tensor.rms or None,
            text=f"{100 * min(1.0, stddev / tensor.rms):.3g} % noise" if tensor.noised and tensor.rms else "no noise",
            colour="lead" if tensor.noised else "calm",
            tip=f"{tensor.name} ({tensor.size:,})",
        )
        for tensor in largest
    ]
    words = (
        "Root mean square of each released tensor, noise included, on a log axis; the line is the noise. A dot on the "
        "line is a tensor that is almost entirely noise."
    )
    notes = ["Computed from the released weights alone: the weights without noise are not used."]
    if len(source.tensors) > len(rows):
        notes.append(f"The {len(rows)} largest of {len(source.tensors)} tensors are drawn.")
    body = [
        (t.name, f"{t.size:,}", number(t.rms, 4), number(stddev / t.rms if t.noised and t.rms else None, 4))
        for t in source.tensors
    ]
    heads = ("tensor", "weights", "root mean square", "noise / root mean square")
    return figure(
        f"{source.key}-noise", f"Noise against weights: {source.name}", words, height(rows, marked=True),
        dots(
            rows, "root mean square", marks=[ReferenceLine(value=stddev, name=f"noise {number(stddev, 3)}")], log=True
        ),
        notes=notes, tables=[table(f"Tensors, {source.name}", heads, body)],
    )  # fmt: skip


def comparison_figure(data: PageData) -> Figure | None:
    """The figure of models side by side; None for fewer than two models."""
    comparison = compare(data)
    if comparison is None:
        return None
    notes = list(comparison.notes)
    if len(comparison.models) > side_by_side.MOST:
        notes.append(f"The first {side_by_side.MOST} of {len(comparison.models)} are drawn.")
    return figure(
        "comparison", side_by_side.TITLE, side_by_side.MARKS, side_by_side.height(comparison),
        side_by_side.compare_shapes(comparison), notes=notes,
        tables=[table("Models side by side", HEADINGS, [*comparison.rows()])],
    )  # fmt: skip
