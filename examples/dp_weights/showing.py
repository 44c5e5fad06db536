"""Make Markdown tables and a plot from the results, with the same bytes for the same results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import mean
from typing import TYPE_CHECKING, Any

from examples.dp_weights.settings import ANY_LOSS, CONVEX, PUBLISHED, UNNOISED
from examples.harness.drawing import BLUE, GREEN, INK, ORANGE, RED, grid, svg
from examples.harness.tables import grouped, interval, table_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

_NAMES = {
    UNNOISED: "no noise",
    PUBLISHED: "the paper's formula",
    CONVEX: "calibrated, for a convex loss",
    ANY_LOSS: "calibrated, for any loss",
}
#: Larger perplexities are drawn at this value.
_BEYOND = 1e4
_COLOURS = {UNNOISED: INK, PUBLISHED: RED, CONVEX: ORANGE, ANY_LOSS: GREEN}


def table(results: Row) -> str:
    """Four tables: the formula's noise, how often its claims fail, the claims one by one, and models with noise."""
    parts = [*_formula(results), "", *_counts(results), "", *_claims(results), "", *_models(results)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _formula(results: Row) -> Iterator[str]:
    told = results["settings"]["formula"]
    yield (
        f"Standard deviation of the formula's noise for {told['examples']} examples at a rate of "
        f"{told['learning_rate']:g}, δ = {1 / told['examples'] ** 2:g}; the ε that follows when one record is "
        "replaced, for a convex loss / for any loss:"
    )
    yield ""
    rows = []
    for row in results["formula"]:
        cells = [f"{a['noise_stddev']:.6g}: {_number(a['convex'])} / {_number(a['nonconvex'])}" for a in row["answers"]]
        rows.append([str(row["epochs"]), str(row["batch_size"]), *cells])
    yield from table_lines(["epochs", "batch", *(f"claimed ε = {claim:g}" for claim in told["claims"])], rows)


def _counts(results: Row) -> Iterator[str]:
    told = results["settings"]["formula"]
    count = len(results["formula"])
    yield f"In how many of these {count} trainings the claimed ε does not follow:"
    yield ""
    rows = [
        [name, *(str(violated(results, regime, i)) for i in range(len(told["claims"])))]
        for regime, name in ((CONVEX, "if the loss is convex"), (ANY_LOSS, "for any loss"))
    ]
    yield from table_lines(["", *(f"claimed ε = {claim:g}" for claim in told["claims"])], rows)


def violated(results: Row, regime: str, claim: int) -> int:
    """The number of trainings whose ``claim``-th claimed epsilon is below the one that follows under ``regime``."""
    answers = [row["answers"][claim] for row in results["formula"]]
    return sum(a[regime] is None or a[regime] > a["claim"] for a in answers)


def _claims(results: Row) -> Iterator[str]:
    yield "The paper's claims, judged (`privctl claims papers --paper dp-weights`):"
    yield ""
    rows = [[each["outcome"].lower(), each["claim"].replace("|", "\\|")] for each in results["claims"]]
    yield from table_lines(["verdict", "claim"], rows)


def _models(results: Row) -> Iterator[str]:
    told = results["settings"]["models"]
    yield (
        f"A GPT-2 of two layers that memorized about {told['notes'] // 2} records, then with noise, at "
        f"δ = {told['delta']:g}:"
    )
    yield ""
    rows = []
    for (kind, epsilon), runs in _ordered(results):
        asked = "–" if kind == UNNOISED else f"{epsilon:g}"
        rows.append([
            _NAMES[kind], asked, f"{mean(row['noise_stddev'] for row in runs):.4g}",
            _number(runs[0]["convex"]), _number(runs[0]["nonconvex"]),
            "infinite" if any(row["perplexity"] is None for row in runs)
            else f"{mean(row['perplexity'] for row in runs):.4g}",
            interval(runs, "auc"),
        ])  # fmt: skip
    heads = ["noise by", "requested ε", "noise stddev", "ε if convex", "ε for any loss", "held-out perplexity",
             "attack AUC"]  # fmt: skip
    yield from table_lines(heads, rows)


def _ordered(results: Row) -> list[tuple[tuple[str, float], list[Row]]]:
    found = grouped(results["models"], lambda row: (row["kind"], row["epsilon"]))
    return sorted(found.items(), key=lambda each: (list(_NAMES).index(each[0][0]), -each[0][1]))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def plot(results: Row) -> bytes:
    """Plot the epsilon that follows against the claimed one, and the attack's AUC against perplexity."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2)
        _draw_follows(axes[0], results)
        _draw_models(axes[1], results)
        for each in axes:
            grid(each)

    return svg(draw, (10.0, 4.2), layout="constrained")


def _draw_follows(axes: Axes, results: Row) -> None:
    for regime, label, colour in ((CONVEX, "if the loss is convex", ORANGE), (ANY_LOSS, "for any loss", GREEN)):
        points = [
            (answer["claim"], answer[regime])
            for row in results["formula"]
            for answer in row["answers"]
            if answer[regime] is not None
        ]
        axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=3.5, alpha=0.6, label=label)
    claims = results["settings"]["formula"]["claims"]
    ends = [min(claims) / 2, max(claims) * 2]
    axes.plot(ends, ends, color=INK, linewidth=0.9, linestyle="--", label="as claimed")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlabel="ε that the paper claims", ylabel="ε that follows")
    axes.set_title("The same noise, claimed and true; below the line holds", loc="left", weight="bold", fontsize=9)
    axes.legend(frameon=False, fontsize=8)


def _draw_models(axes: Axes, results: Row) -> None:
    places: dict[str, int] = {}
    for (kind, epsilon), runs in _ordered(results):
        first = kind not in places
        places[kind] = places.get(kind, -1) + 1
        for row in runs:
            x = min(math.inf if row["perplexity"] is None else row["perplexity"], _BEYOND)
            estimate, lower, upper = row["auc"]
            axes.errorbar([x], [estimate], yerr=[[estimate - lower], [upper - estimate]], fmt="o", color=_COLOURS[kind],
                          label=_NAMES[kind] if first else None, elinewidth=0.9)  # fmt: skip
            first = False
            if kind == PUBLISHED:
                axes.annotate(f"{epsilon:g}", (x, estimate), xytext=(8 if places[kind] % 2 else -24, -3),
                              textcoords="offset points", fontsize=8)  # fmt: skip
    axes.axhline(0.5, color=BLUE, linewidth=0.9, linestyle="--")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set(xlabel=f"held-out perplexity (rightmost: {_BEYOND:g} or more)", ylabel="attack AUC")
    axes.set_title("What noise does to a model; numbers are ε claimed", loc="left", weight="bold", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
