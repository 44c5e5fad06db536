"""Make a Markdown table and a plot from the results, with the same bytes for the same results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

from examples.harness.drawing import BLUE, GREEN, INK, ORANGE, RED, grid, svg
from examples.harness.tables import grouped as grouped_by
from examples.harness.tables import table_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
#: (task, private, layers, fraction)
Cell = tuple[str, bool, str, float | None]

HEADINGS = (
    "task", "training", "layers in LUQ-FP4", "held-out accuracy", "lowest to highest", "median", "held-out loss",
    "products in 4 bits", "speed, by a cost model", "ε of measurements", "runs",
)  # fmt: skip

NAMES = {
    "none": "none", "all": "all", "dpquant": "DPQuant", "random": "at random each epoch", "static": "drawn once",
}  # fmt: skip

_LOOKS = {"dpquant": (BLUE, "o"), "random": (GREEN, "^"), "static": (ORANGE, "s")}


def grouped(results: Row) -> dict[Cell, list[Row]]:
    """The runs by cell, without the seed, in the order of the table."""
    ways = list(NAMES)
    rows = sorted(
        results["runs"],
        key=lambda r: (r["task"], not r["private"], r["fraction"] or 0.0 if r["layers"] != "all" else 1.0,
                       ways.index(r["layers"]), r["seed"]),
    )  # fmt: skip
    return grouped_by(rows, lambda r: (r["task"], r["private"], r["layers"], r["fraction"]))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % confidence interval for the mean; None for fewer than two values."""
    from scipy.stats import t as student

    if len(values) < 2:
        return None
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def table(results: Row) -> str:
    """A row for each cell, then notes."""
    lines = table_lines(HEADINGS, [_cells(cell, rows) for cell, rows in grouped(results).items()])
    return "\n".join([*lines, "", *_notes(results)]) + "\n"


def _cells(cell: Cell, rows: Sequence[Row]) -> list[str]:
    task, private, layers, fraction = cell
    accuracies = [row["accuracy"] for row in rows]
    bounds = interval(accuracies)
    shares = [row["share_of_measurements"] for row in rows if row.get("share_of_measurements") is not None]
    return [
        task,
        "private" if private else "not private",
        NAMES[layers] + ("" if fraction is None else f", {100 * fraction:g} %"),
        f"{mean(accuracies):.3f}" + ("" if bounds is None else f" ± {mean(accuracies) - bounds[0]:.3f}"),
        f"{min(accuracies):.3f} to {max(accuracies):.3f}",
        f"{median(accuracies):.3f}",
        f"{mean(row['loss'] for row in rows):.3f}",
        f"{100 * mean(row['low_precision_share'] for row in rows):.0f} %",
        f"{mean(row['faster_by_model'] for row in rows):.2f}",
        f"{100 * mean(shares):.1f} %" if shares else "–",
        str(len(rows)),
    ]


def _notes(results: Row) -> Iterator[str]:
    told = results["settings"]
    held = {row["task"]: row["held_out"] for row in results["runs"]}
    yield (
        f"Private: ({told['epsilon']:g}, {told['delta']:g})-DP, including measurements. ± is Student's 95 % interval "
        "for the mean over seeds; runs of one seed also differ in their secret noise and batches. Held-out examples: "
        + ", ".join(f"{count} {task}" for task, count in sorted(held.items()))
        + f"; trained on: {', '.join(f'{n} {task}' for task, n in sorted(results['examples'].items()))}. "
        "Measured in full precision. Speeds come from a cost model: 4 times as fast in 4 bits, for these products only."
    )
    for task in sorted(held):
        yield ""
        yield _loss_of_bits(results, task)


def _loss_of_bits(results: Row, task: str) -> str:
    """One sentence on the accuracy with all layers in 4 bits, with and without privacy."""
    cells = grouped(results)

    def of(private: bool, layers: str) -> float | None:
        rows = cells.get((task, private, layers, None))
        return None if not rows else mean(row["accuracy"] for row in rows)

    found = {private: (of(private, "none"), of(private, "all")) for private in (True, False)}
    said = []
    for private, (whole, few) in found.items():
        if whole is not None and few is not None:
            said.append(f"{'with' if private else 'without'} privacy {whole:.3f} becomes {few:.3f}")
    return f"{task}, all layers in LUQ-FP4: {'; '.join(said)}." if said else f"{task}: not all runs were made."


def plot(results: Row) -> bytes:
    """Plot accuracy against the fraction of quantized layers, with a panel for each task."""
    tasks = sorted({row["task"] for row in results["runs"]})
    return svg(lambda figure: _draw(figure, results, tasks), (5.6 * len(tasks), 4.9))


def _draw(figure: Figure, results: Row, tasks: Sequence[str]) -> None:
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    figure.subplots_adjust(left=0.09, right=0.985, top=0.86, bottom=0.27, wspace=0.2)
    for axes, task in zip(panels, tasks, strict=True):
        _draw_task(axes, results, task)
    figure.text(0.012, 0.97, "Layers in LUQ-FP4, by how they are chosen", size=13, weight="bold", va="top")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0.05, 0.0), ncols=3, frameon=False, columnspacing=2.0
    )


def _draw_task(axes: Axes, results: Row, task: str) -> None:
    cells = {cell[1:]: rows for cell, rows in grouped(results).items() if cell[0] == task}
    for i, (layers, (colour, marker)) in enumerate(_LOOKS.items()):
        shown = {f: rows for (private, way, f), rows in cells.items() if private and way == layers and f is not None}
        if not shown:
            continue
        places = [fraction + 0.012 * (i - 1) for fraction in shown]
        centre = median if layers == "static" else mean
        values = [[row["accuracy"] for row in rows] for rows in shown.values()]
        label = NAMES[layers] + (": median" if layers == "static" else ": mean")
        axes.plot(places, [centre(v) for v in values], color=colour, marker=marker, linewidth=1.3, label=label)
        for place, each in zip(places, values, strict=True):
            axes.plot([place] * len(each), each, color=colour, marker=marker, linestyle="", markersize=3, alpha=0.6)
    for private, colour, name in ((True, INK, "private"), (False, RED, "not private")):
        ends = {x: cells.get((private, layers, None)) for x, layers in ((0.0, "none"), (1.0, "all"))}
        found = {x: [row["accuracy"] for row in rows] for x, rows in ends.items() if rows}
        if found:
            axes.plot(
                list(found), [mean(v) for v in found.values()], color=colour, marker="D", linestyle=(0, (4, 3)),
                linewidth=1.0, label=f"none and all, {name}: mean",
            )  # fmt: skip
        for x, each in found.items():
            axes.plot([x] * len(each), each, color=colour, marker="D", linestyle="", markersize=3, alpha=0.6)
    axes.set_title(task, loc="left")
    axes.set_xlabel("part of the layers in 4 bits")
    axes.set_ylabel("held-out accuracy")
    grid(axes, axis="y")
