"""The results as Markdown tables and as a plot; both the same for the same results."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from settings import PLAIN, UNIFORM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_INK, _BLUE, _ORANGE, _GREEN, _GRID = "#222222", "#0072B2", "#D55E00", "#009E73", "#E4E4E4"


def grouped(runs: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Runs by ``name``, in the order of first occurrence."""
    found: dict[Any, list[Row]] = {}
    for row in runs:
        found.setdefault(row[name], []).append(row)
    return found


def trained(results: Row) -> list[tuple[str, list[Row]]]:
    """Trainings of the first experiment: plain, uniform, no cap, then caps from the largest down."""

    def order(key: str) -> tuple[int, float]:
        place = {PLAIN: 0, UNIFORM: 1, "none": 2}.get(key, 3)
        return (place, 0.0) if place < 3 else (place, -float(key))

    found = grouped(results["weights"]["runs"], "key")
    return [(key, found[key]) for key in sorted(found, key=order)]


def table(results: Row) -> str:
    """Three tables: every cap's price, the models trained, and extraction by noise."""
    parts: list[str] = []
    if results["weights"]:
        parts += [*_caps(results["weights"]), "", *_models(results), ""]
    if results["extraction"]:
        parts += list(_extraction(results))
    return "\n".join(parts).rstrip("\n") + "\n"


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def _caps(found: Row) -> Iterator[str]:
    yield (
        f"{found['secrets']} rare words in {found['records_with_a_secret']} records, at most {found['largest_secret']} "
        "records each. What each cap keeps of the records' weight, and the noise every word then needs:"
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
    yield from _lines(["cap", "kept", "noise multiplier", "largest sampling probability", "certified gap"], rows)


def _models(results: Row) -> Iterator[str]:
    told = results["settings"]["weights"]
    yield (
        f"Masked language models after {told['steps']} steps of {told['batch_size']} records; every word's chance of "
        f"being named stays below {told['posterior']:g} from {told['prior']:g}, but in the first row:"
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
                _spread(losses),
                _spread(hits),
                "–" if first["epsilon"] is None else f"{first['epsilon']:.3g}",
                str(len(runs)),
            ]
        )
    heads = ["training", "kept", "noise multiplier", "test loss, nats", "test accuracy", "ε of any one record", "runs"]
    yield from _lines(heads, rows)
    deltas = {runs[0]["delta"] for _, runs in trained(results)} - {None}
    yield from ["", f"ε at δ = {', '.join(f'{delta:g}' for delta in sorted(deltas))}."] if deltas else []


def _name(key: str) -> str:
    names = {PLAIN: "plain", UNIFORM: "DP-SGD at the noise of no cap", "none": "plan without a cap"}
    return names[key] if key in names else f"plan of cap {float(key):.4g}"


def _spread(values: Sequence[float]) -> str:
    more = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{mean(values):.4g}{more}"


def _extraction(results: Row) -> Iterator[str]:
    told, found = results["settings"]["extraction"], results["extraction"]
    count = found["runs"][0]["secrets"] if found["runs"] else 0
    yield (
        f"{count} planted numbers of {told['digits']} digits in {told['copies']} records each, among "
        f"{found['records']} records; {told['steps']} steps of {told['batch_size']} records. Told first among "
        f"{told['candidates']} candidates, with the audit's interval; and what no attack can have more of:"
    )
    yield ""
    rows = []
    for noise, runs in sorted(grouped(found["runs"], "noise_multiplier").items()):
        first = runs[0]
        rows.append(
            [
                "0 (plain)" if not noise else f"{noise:g}",
                _interval(runs, "told"),
                _interval(runs, "greedy"),
                _bound(first["curve"]),
                _bound(first["fano"]),
                "–" if first["epsilon"] is None else f"{first['epsilon']:.3g}",
                str(len(runs)),
            ]
        )
    heads = ["noise multiplier", "told first", "written greedily", "bound, trade-off curve", "bound, Fano", "ε of any one record", "runs"]  # fmt: skip # noqa: E501
    yield from _lines(heads, rows)
    yield ""
    before = mean(row["told_before"][0] for row in found["runs"]) if found["runs"] else 0.0
    yield (
        f"Before training {100 * before:.3g} % are told first; chance is {100 / told['candidates']:.3g} %. The noise "
        f"multiplier at which Fano's bound is 0.1 is {found['needed']:.4g}."
    )


def _bound(value: float) -> str:
    return f"{value:.3g}" if value < 0.9995 else "1 (says nothing)"


def _interval(runs: Sequence[Row], name: str) -> str:
    low, high = min(row[name][1] for row in runs), max(row[name][2] for row in runs)
    return f"{mean(row[name][0] for row in runs):.3f} ({low:.3f} to {high:.3f})"


def plot(results: Row) -> bytes:
    """Noise and test loss against what a cap keeps, and extraction against noise."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "privctl", "font.size": 9.5, "axes.edgecolor": "#999999"})
        figure = Figure(figsize=(13, 4.6), layout="constrained")
        noise, loss, told = figure.subplots(1, 3)
        if results["weights"]:
            _draw_noise(noise, results["weights"]["caps"])
            _draw_loss(loss, results)
        if results["extraction"] and results["extraction"]["runs"]:
            _draw_told(told, results["extraction"]["runs"])
        for axes in (noise, loss, told):
            axes.grid(color=_GRID, linewidth=0.7)
            axes.set_axisbelow(True)
        canvas: Any = FigureCanvasSVG(figure)  # its methods for writing carry no types
        canvas.print_svg(file, metadata={"Date": None, "Creator": "privctl"})
    return file.getvalue()


def _draw_noise(axes: Axes, caps: Sequence[Row]) -> None:
    axes.plot([100 * row["kept"] for row in caps], [row["noise_multiplier"] for row in caps], "o-", color=_BLUE)
    axes.set(xscale="log", ylim=(0, None), xlabel="weight kept, %", ylabel="noise multiplier that every secret needs")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("What holding records back saves", loc="left", weight="bold")


def _draw_loss(axes: Axes, results: Row) -> None:
    for key, runs in trained(results):
        losses = [row["test_loss"] for row in runs]
        kept = [100 * row["kept"] for row in runs]
        if key == PLAIN:
            axes.axhline(mean(losses), color=_INK, linewidth=1.2, label="plain training")
        elif key == UNIFORM:
            axes.plot(kept, losses, "s", color=_ORANGE, label="DP-SGD at the noise of no cap", markerfacecolor="white")
        else:
            axes.plot(kept, losses, "o", color=_BLUE, label="by a plan" if key == "none" else None)
    axes.set(xlabel="weight kept, %", ylabel="test loss, nats a hidden token")
    axes.set_title("What it does to the model", loc="left", weight="bold")
    axes.legend(frameon=False)


def _draw_told(axes: Axes, runs: Sequence[Row]) -> None:
    rows = sorted(runs, key=lambda row: row["noise_multiplier"])
    noises = sorted({row["noise_multiplier"] for row in rows})
    at = {noise: i for i, noise in enumerate(noises)}
    for name, label, colour, marker, shift in (
        ("told", "told first", _BLUE, "o", -0.06),
        ("greedy", "written greedily", _GREEN, "^", 0.06),
    ):
        middle = [row[name][0] for row in rows]
        ends = [[row[name][0] - row[name][1] for row in rows], [row[name][2] - row[name][0] for row in rows]]
        places = [at[row["noise_multiplier"]] + shift for row in rows]
        axes.errorbar(places, middle, yerr=ends, fmt=marker, color=colour, label=label, elinewidth=0.9)
    by_noise = grouped(rows, "noise_multiplier")
    for name, label, line in (("curve", "bound, trade-off curve", "-"), ("fano", "bound, Fano", "--")):
        bound = [by_noise[noise][0][name] for noise in noises]
        axes.plot(range(len(noises)), bound, line, color=_INK, linewidth=1.2, label=label)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set(xlabel="noise multiplier; 0: plain training", ylabel="share of planted numbers")
    axes.set_title("What noise leaves of secrets", loc="left", weight="bold")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
