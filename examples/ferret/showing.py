"""Make a Markdown table and a plot from the results, with the same bytes for the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from examples.ferret.settings import METHODS
from examples.harness.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PINK, RED, SKY, grid, svg
from examples.harness.tables import ends, interval, mean_and_range, table_lines
from examples.harness.tables import grouped as grouped_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

HEADINGS = (
    "epochs",
    "method",
    "ε of (ε, δ)-DP",
    "nats of mutual information",
    "held-out perplexity",
    "AUC, loss attack",
    "AUC, best attack",
    "processor seconds of training",
    "share of plain's time",
    "steps that published, of",
    "numbers published",
    "guarantee",
    "runs",
)

_LOOKS: Mapping[str, tuple[str, str]] = {
    "dp-sgd": (RED, "s"),
    "dp-sgd-large": (ORANGE, "D"),
    "ferret-max": (BLUE, "o"),
    "ferret-eighth": (SKY, "^"),
    "ferret-2": (PINK, "v"),
    "ferret-gaussian": (GREEN, "P"),
}
#: FERRET's time relative to plain training in its paper.
_PAPERS_TIME = 0.34


def grouped(results: Row) -> dict[tuple[int, str, float | None], list[Row]]:
    """The rows by cell, without the seed, in the order of the table: epochs, method, epsilon."""
    order = list(METHODS)
    rows = sorted(results["runs"], key=lambda r: (r["epochs"], order.index(r["method"]), r["epsilon"] or 0.0))
    return grouped_by(rows, lambda r: (r["epochs"], r["method"], r["epsilon"]))


def plain_seconds(results: Row) -> dict[int, float]:
    """The mean seconds of plain training, by number of epochs."""
    times: dict[int, list[float]] = {}
    for row in results["runs"]:
        if row["method"] == "plain":
            times.setdefault(row["epochs"], []).append(row["seconds"])
    return {epochs: mean(each) for epochs, each in times.items()}


def ratios(results: Row, rows: Sequence[Row]) -> float | None:
    """The mean time of ``rows``, which are one cell's, relative to plain training; None where that was not run."""
    base = plain_seconds(results).get(rows[0]["epochs"])
    return None if base is None else mean(row["seconds"] for row in rows) / base


def table(results: Row) -> str:
    """A row for the base model and one for each cell, with means over seeds and the widest ends of the intervals."""
    rows = [_cells(results, *key, rows) for key, rows in grouped(results).items()]
    if results["base"] is not None:
        rows.insert(0, ["0", "base model, not trained", *["–"] * 2, *_attacked([results["base"]]), *["–"] * 6])
    return "\n".join([*table_lines(HEADINGS, rows), "", *_notes(results)]) + "\n"


def _cells(results: Row, epochs: int, method: str, epsilon: float | None, rows: Sequence[Row]) -> list[str]:
    kind, first = METHODS[method], rows[0]
    budget = "–" if epsilon is None else f"{epsilon:g}"
    ratio, numbers = ratios(results, rows), [row["published_numbers"] for row in rows]
    return [
        str(epochs),
        kind.label,
        "–" if kind.nats else budget,
        budget if kind.nats else "–",
        *_attacked(rows),
        f"{mean(row['seconds'] for row in rows):.1f}",
        "–" if ratio is None else f"{100 * ratio:.0f} %",
        f"{mean(row['fired_steps'] for row in rows):.0f} of {first['steps']}",
        "–" if None in numbers else f"{mean(numbers):.0f}",
        guarantee(first["guarantee"]),
        str(len(rows)),
    ]


def _attacked(rows: Sequence[Row]) -> list[str]:
    perplexity = mean_and_range([row["perplexity"] for row in rows])
    best = ", ".join(sorted({row["best_attack"] for row in rows}))
    return [perplexity, interval(rows, "auc_loss"), f"{interval(rows, 'auc_best')}, {best}"]


def guarantee(found: Row | None) -> str:
    """One cell's guarantee as text."""
    if found is None:
        return "none"
    cap = "" if found["auc_cap"] is None else f"; AUC ≤ {_capped(found['auc_cap'])}"
    if found["notion"] == "mutual-information":
        worst = found.get("worst_case_delta")
        return f"{found['epsilon']:.3g} nats{cap}" + ("" if worst is None else f"; at every ε, δ ≥ {worst:.2g}")
    return f"({found['epsilon']:.3g}, {found['delta']:g})-DP{cap}"


def _capped(cap: float) -> str:
    return "1 (no bound)" if cap >= 1 else f"{cap:.3f}"


def _notes(results: Row) -> Iterator[str]:
    told = results["settings"]
    runs = [*results["runs"], *([results["base"]] if results["base"] else [])]
    each = {row["confidence_each"] for row in runs}
    yield (
        "ε and nats cannot be compared: ε bounds the worst case, and nats an average. "
        f"{told['members']} members and {told['nonmembers']} non-members, {told['batch_size']} records per step "
        "(10 times as many where the method says so), "
        f"records truncated to {told['max_length']} tokens. Intervals hold at {_percents(each)} each, so that all of "
        "one audit hold together at 95 %. Several runs: mean of the estimates, widest ends of the intervals."
    )
    if results["left_out"]:
        yield ""
        yield f"Not possible: {'; '.join(results['left_out'])}."
    blind = [row["auc_blind"][0] for row in runs if row["auc_blind"]]
    if blind:
        yield ""
        yield f"A classifier that never sees a model tells members from non-members with an AUC of {mean(blind):.3f}."
    if results["tuning"]:
        yield ""
        yield (
            f"Learning rates, with the perplexity of records kept for tuning after {told['tuned_at']['epochs']} epochs "
            f"at ε, or nats, of {told['tuned_at']['epsilon']:g}; no guarantee covers this choice:"
        )
        yield ""
        yield from (f"- {METHODS[name].label}: {_tried(results, name)}" for name in METHODS if _tried(results, name))


def _percents(values: set[float]) -> str:
    return " or ".join(f"{100 * value:.3g} %" for value in sorted(values))


def _tried(results: Row, method: str) -> str:
    rows = [row for row in results["tuning"] if row["method"] == method]
    best = min((row["perplexity"] for row in rows), default=None)
    said = (f"{row['learning_rate']:g} gives {row['perplexity']:.4g}" for row in rows)
    return ", ".join(f"**{text}**" if row["perplexity"] == best else text for row, text in zip(rows, said, strict=True))


def plot(results: Row) -> bytes:
    """Plot perplexity, AUC of the best attack and relative time against epsilon, in a column per number of epochs."""
    return svg(lambda figure: _draw(figure, results), (11.5, 11))


def _draw(figure: Figure, results: Row) -> None:
    cells = grouped(results)
    epochs = sorted({passes for passes, _, _ in cells})
    epsilons = sorted({epsilon for _, _, epsilon in cells if epsilon is not None})
    panels = figure.subplots(3, len(epochs), sharex=True, sharey="row", squeeze=False)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.93, bottom=0.185, wspace=0.06, hspace=0.1)
    for column, passes in enumerate(epochs):
        quality, attack, pace = (panels[row][column] for row in range(3))
        quality.set_title(f"{passes} epoch{'s' if passes > 1 else ''}", loc="left", weight="bold")
        for i, name in enumerate(_LOOKS):
            shown = {e: cells[passes, name, e] for e in epsilons if (passes, name, e) in cells}
            if not shown:
                continue
            places = [epsilons.index(e) + 0.09 * (i - (len(_LOOKS) - 1) / 2) for e in shown]
            look = _look(name)
            quality.plot(places, [mean(r["perplexity"] for r in rows) for rows in shown.values()], **look)
            found = [ends(rows, "auc_best") for rows in shown.values()]
            spread = [[m - low for low, m, _ in found], [high - m for _, m, high in found]]
            attack.errorbar(places, [m for _, m, _ in found], yerr=spread, elinewidth=0.9, **look | {"linewidth": 0})
            times = [ratios(results, rows) for rows in shown.values()]
            if None not in times:
                pace.plot(places, times, **look)
        _reference(quality, results, cells, passes, lambda row: row["perplexity"])
        _reference(attack, results, cells, passes, lambda row: row["auc_best"][0])
        pace.axhline(1, color=INK, linewidth=1.2)
        pace.axhline(_PAPERS_TIME, color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)))
        pace.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        pace.set_xlabel("ε, or nats where hollow")
        for axes in (quality, attack, pace):
            grid(axes, axis="y")
    _axes(panels[0][0], "Held-out perplexity", logarithmic=True)
    _axes(panels[1][0], "AUC of the best attack", logarithmic=False)
    _axes(panels[2][0], "Training time / plain's", logarithmic=True)
    figure.text(0.012, 0.975, "FERRET beside DP-SGD and plain training", size=14, weight="bold", va="top")
    _legend(figure, [name for name in _LOOKS if any(method == name for _, method, _ in cells)])


def _reference(
    axes: Axes, results: Row, cells: Mapping[Any, Sequence[Row]], epochs: int, value: Callable[[Row], float]
) -> None:
    """Draw lines for plain training and for the base model."""
    if plain := cells.get((epochs, "plain", None)):
        axes.axhline(mean(value(row) for row in plain), color=INK, linewidth=1.2)
    if results["base"] is not None:
        axes.axhline(value(results["base"]), color=INK, linewidth=1.0, linestyle=(0, (6, 2, 1, 2)))


def _axes(axes: Axes, label: str, *, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_ylabel(label)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, methods: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        *(Line2D([], [], label=_name(name), **_look(name)) for name in methods),
        Line2D([], [], color=INK, linewidth=1.2, label="plain training"),
        Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (6, 2, 1, 2)), label="base model, not trained"),
        Line2D([], [], color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)), label="FERRET's time in its paper"),
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.07, 0.015), ncols=2, frameon=False, handlelength=3.6,
        columnspacing=3.0, labelspacing=0.6,
    )  # fmt: skip


def _look(method: str) -> dict[str, Any]:
    """Colour, line and marker of a method; hollow where its budget is in nats."""
    colour, marker = _LOOKS[method]
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 1.3}
    return look | ({"markerfacecolor": "white", "linestyle": (0, (4, 2))} if METHODS[method].nats else {})


def _name(method: str) -> str:
    """The label of a method, with the kind of its guarantee."""
    found = METHODS[method]
    return f"{found.label}: {'nats of mutual information' if found.nats else '(ε, δ)-DP'}"
