"""Make Markdown tables and a plot from the results, with the same bytes for the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from examples.harness.drawing import BLUE, GREEN, INK, RED, grid, svg
from examples.harness.tables import grouped, interval, mean_and_range, table_lines
from examples.secrets.settings import PLAIN, UNIFORM

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


def trained(results: Row) -> list[tuple[str, list[Row]]]:
    """The trainings of the first experiment in order: plain, uniform, no cap, then caps from the largest down."""

    def order(key: str) -> tuple[int, float]:
        place = {PLAIN: 0, UNIFORM: 1, "none": 2}.get(key, 3)
        return (place, 0.0) if place < 3 else (place, -float(key))

    found = grouped(results["weights"]["runs"], lambda row: row["key"])
    return [(key, found[key]) for key in sorted(found, key=order)]


def table(results: Row) -> str:
    """Three tables: what each cap keeps and the noise it needs, the trained models, and extraction by noise."""
    parts: list[str] = []
    if results["weights"]:
        parts += [*_caps(results["weights"]), "", *_models(results), ""]
    if results["extraction"]:
        parts += list(_extraction(results))
    return "\n".join(parts).rstrip("\n") + "\n"


def _caps(found: Row) -> Iterator[str]:
    yield (
        f"{found['secrets']} rare words in {found['records_with_a_secret']} records, at most {found['largest_secret']} "
        "records each. The share of the records' weight that each cap keeps, and the noise that every word requires:"
    )
    yield ""
    rows = [
        [
            "none" if row["cap"] is None else f"{row['cap']:.4g}",
            f"{100 * row['kept']:.3g} %",
            f"{row['noise_multiplier']:.4g}",
            f"{row['largest_probability']:.3g}",
            f"{row['gap']:.1e}",
        ]
        for row in found["caps"]
    ]
    yield from table_lines(["cap", "kept", "noise multiplier", "largest sampling probability", "certified gap"], rows)


def _models(results: Row) -> Iterator[str]:
    told = results["settings"]["weights"]
    yield (
        f"Masked language models after {told['steps']} steps of {told['batch_size']} records. Except in the first row, "
        f"every word's posterior stays below {told['posterior']:g}, from a prior of {told['prior']:g}:"
    )
    yield ""
    rows = []
    for key, runs in trained(results):
        first = runs[0]
        losses, hits = ([row[name] for row in runs] for name in ("test_loss", "test_accuracy"))
        rows.append(
            [
                _name(key),
                f"{100 * first['kept']:.3g} %",
                "–" if key == PLAIN else f"{first['noise_multiplier']:.4g}",
                mean_and_range(losses),
                mean_and_range(hits),
                "–" if first["epsilon"] is None else f"{first['epsilon']:.3g}",
                str(len(runs)),
            ]
        )
    heads = ["training", "kept", "noise multiplier", "test loss, nats", "test accuracy", "ε of any one record", "runs"]
    yield from table_lines(heads, rows)
    deltas = {runs[0]["delta"] for _, runs in trained(results)} - {None}
    yield from ["", f"ε at δ = {', '.join(f'{delta:g}' for delta in sorted(deltas))}."] if deltas else []


def _name(key: str) -> str:
    names = {PLAIN: "plain", UNIFORM: "DP-SGD at the noise of no cap", "none": "plan without a cap"}
    return names[key] if key in names else f"plan of cap {float(key):.4g}"


def _extraction(results: Row) -> Iterator[str]:
    told, found = results["settings"]["extraction"], results["extraction"]
    count = found["runs"][0]["secrets"] if found["runs"] else 0
    yield (
        f"{count} planted numbers of {told['digits']} digits in {told['copies']} records each, among "
        f"{found['records']} records; {told['steps']} steps of {told['batch_size']} records. Share ranked first "
        f"among {told['candidates']} candidates, with the audit's interval, and upper bounds for any attack:"
    )
    yield ""
    rows = []
    for noise, runs in sorted(grouped(found["runs"], _noise).items()):
        first = runs[0]
        rows.append(
            [
                "0 (plain)" if not noise else f"{noise:g}",
                interval(runs, "told"),
                interval(runs, "greedy"),
                _bound(first["curve"]),
                _bound(first["fano"]),
                "–" if first["epsilon"] is None else f"{first['epsilon']:.3g}",
                str(len(runs)),
            ]
        )
    heads = ["noise multiplier", "ranked first", "written greedily", "bound, trade-off curve", "bound, Fano", "ε of any one record", "runs"]  # fmt: skip # noqa: E501
    yield from table_lines(heads, rows)
    yield ""
    before = mean(row["told_before"][0] for row in found["runs"]) if found["runs"] else 0.0
    yield (
        f"Before training {100 * before:.3g} % rank first; chance is {100 / told['candidates']:.3g} %. The noise "
        f"multiplier at which Fano's bound is 0.1 is {found['needed']:.4g}."
    )


def _noise(row: Row) -> float:
    return float(row["noise_multiplier"])


def _bound(value: float) -> str:
    return f"{value:.3g}" if value < 0.9995 else "1 (no bound)"


def plot(results: Row) -> bytes:
    """Plot noise and test loss against the weight that a cap keeps, and extraction against noise."""
    return svg(lambda figure: _draw(figure, results), (13, 4.6), layout="constrained")


def _draw(figure: Figure, results: Row) -> None:
    noise, loss, told = figure.subplots(1, 3)
    if results["weights"]:
        _draw_noise(noise, results["weights"]["caps"])
        _draw_loss(loss, results)
    if results["extraction"] and results["extraction"]["runs"]:
        _draw_told(told, results["extraction"]["runs"])
    for axes in (noise, loss, told):
        grid(axes)


def _draw_noise(axes: Axes, caps: Sequence[Row]) -> None:
    axes.plot([100 * row["kept"] for row in caps], [row["noise_multiplier"] for row in caps], "o-", color=BLUE)
    axes.set(xscale="log", ylim=(0, None), xlabel="weight kept, %", ylabel="noise multiplier that every secret needs")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("What holding records back saves", loc="left", weight="bold")


def _draw_loss(axes: Axes, results: Row) -> None:
    for key, runs in trained(results):
        losses = [row["test_loss"] for row in runs]
        kept = [100 * row["kept"] for row in runs]
        if key == PLAIN:
            axes.axhline(mean(losses), color=INK, linewidth=1.2, label="plain training")
        elif key == UNIFORM:
            axes.plot(kept, losses, "s", color=RED, label="DP-SGD at the noise of no cap", markerfacecolor="white")
        else:
            axes.plot(kept, losses, "o", color=BLUE, label="by a plan" if key == "none" else None)
    axes.set(xlabel="weight kept, %", ylabel="test loss, nats a hidden token")
    axes.set_title("What it does to the model", loc="left", weight="bold")
    axes.legend(frameon=False)


def _draw_told(axes: Axes, runs: Sequence[Row]) -> None:
    rows = sorted(runs, key=lambda row: row["noise_multiplier"])
    noises = sorted({row["noise_multiplier"] for row in rows})
    at = {noise: i for i, noise in enumerate(noises)}
    for name, label, colour, marker, shift in (
        ("told", "told first", BLUE, "o", -0.06),
        ("greedy", "written greedily", GREEN, "^", 0.06),
    ):
        middle = [row[name][0] for row in rows]
        ends = [[row[name][0] - row[name][1] for row in rows], [row[name][2] - row[name][0] for row in rows]]
        places = [at[row["noise_multiplier"]] + shift for row in rows]
        axes.errorbar(places, middle, yerr=ends, fmt=marker, color=colour, label=label, elinewidth=0.9)
    by_noise = grouped(rows, _noise)
    for name, label, line in (("curve", "bound, trade-off curve", "-"), ("fano", "bound, Fano", "--")):
        bound = [by_noise[noise][0][name] for noise in noises]
        axes.plot(range(len(noises)), bound, line, color=INK, linewidth=1.2, label=label)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set(xlabel="noise multiplier; 0: plain training", ylabel="share of planted numbers")
    axes.set_title("What noise leaves of secrets", loc="left", weight="bold")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
