"""Make Markdown tables and a plot from the results, with the same bytes for the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from examples.accountants.settings import KNOWN, PLAIN, SOUGHT, WAYS, Setting
from examples.harness.drawing import BLUE, GREEN, INK, RED, grid, svg
from examples.harness.tables import grouped, mean_and_range, table_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

#: Mean exposure, in bits, of canaries in a model that remembers nothing: 1 / ln 2.
NOTHING = 1.44


def table(results: Row) -> str:
    """Three tables: epsilon for given noise, noise for a given epsilon, and the trainings with that noise."""
    answers = {row["key"]: row["answers"] for row in results["answers"]}
    parts = []
    for settings, said in (
        (KNOWN, "Epsilon that each accountant gives for a noise multiplier:"),
        (SOUGHT, "Noise multiplier that each accountant requires, and the epsilon that follows from that noise:"),
    ):
        there = [setting for setting in settings if setting.key in answers]
        if there:
            parts += [said, "", *_answers(there, answers), ""]
    parts += list(_runs(results))
    return "\n".join(parts).rstrip("\n") + "\n"


def title(setting: Setting) -> str:
    """A short heading for a setting."""
    first = f"noise {setting.noise:g}" if setting.noise is not None else f"ε {setting.epsilon:g}"
    return f"{first}, rate {setting.rate:.3g}, {setting.steps} steps, δ {setting.delta:g}"


def _answers(settings: Sequence[Setting], answers: Mapping[str, Row]) -> Iterator[str]:
    names = list(dict.fromkeys(name for setting in settings for name in answers[setting.key]))
    rows = [[name, _status(name, settings, answers), *(_cell(answers[s.key].get(name), s) for s in settings)]
            for name in names]  # fmt: skip
    yield from table_lines(["accountant", "privctl says", *map(title, settings)], rows)


def _cell(answer: Row | None, setting: Setting) -> str:
    if answer is None or answer["answer"] is None:
        return "–"
    follows = "" if setting.noise is not None or answer["follows"] is None else f" ({answer['follows']:.4g})"
    return f"{answer['answer']:.5g}{follows}"


def _status(name: str, settings: Sequence[Setting], answers: Mapping[str, Row]) -> str:
    """The worst status of an accountant's answers: refuted, claimed, or a bound."""
    found = {answers[setting.key][name]["status"] for setting in settings if name in answers[setting.key]}
    return next((status for status in ("refuted", "claimed") if status in found), "a bound")


def _runs(results: Row) -> Iterator[str]:
    if not results["runs"]:
        return
    told = results["settings"]
    yield (
        f"A GPT-2 of two layers after {told['epochs']} epochs on {results['prepared']['records']} notes, with the "
        f"noise that each accountant requires at ε = {told['epsilon']:g}; canaries of a model that memorized nothing "
        f"have an exposure of {NOTHING} bits on average:"
    )
    yield ""
    rows = []
    for way, runs in _ordered(results):
        first = runs[0]
        rows.append([
            way,
            "0" if way == PLAIN else f"{first['noise_multiplier']:.4g}",
            "–" if first["epsilon"] is None else f"{first['epsilon']:.4g}",
            mean_and_range([row["perplexity"] for row in runs]),
            mean_and_range([row["exposure"] for row in runs]),
            mean_and_range([row["certified"] for row in runs]),
        ])  # fmt: skip
    heads = ["noise by", "noise multiplier", "ε that follows", "held-out perplexity", "mean exposure, bits",
             "ε that the audit certifies, at least"]  # fmt: skip
    yield from table_lines(heads, rows)


def _ordered(results: Row) -> list[tuple[str, list[Row]]]:
    found = grouped(results["runs"], lambda row: row["way"])
    return [(way, found[way]) for way in (PLAIN, *WAYS) if way in found]


def plot(results: Row) -> bytes:
    """Plot the noise of each accountant, and the results of training with it."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2)
        _draw_noise(axes[0], results)
        _draw_runs(axes[1], results)
        for each in axes:
            grid(each)

    return svg(draw, (10.0, 4.8), layout="constrained")


def _draw_noise(axes: Axes, results: Row) -> None:
    answers = {row["key"]: row["answers"] for row in results["answers"]}
    there = [setting for setting in SOUGHT if setting.key in answers]
    names = list(dict.fromkeys(name for setting in there for name in answers[setting.key]))
    for i, setting in enumerate(there):
        least = answers[setting.key]["privacy loss distribution"]["answer"]
        ratios = [(answers[setting.key].get(name) or {"answer": None})["answer"] for name in names]
        kept = [(ratio / least, j) for j, ratio in enumerate(ratios) if ratio is not None]
        axes.plot([x for x, _ in kept], [j for _, j in kept], "os^D"[i % 4], color=BLUE, alpha=0.7, markersize=5,
                  markerfacecolor="none", label=title(setting))  # fmt: skip
    axes.axvline(1.0, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="noise asked for, in that of the privacy loss distribution")
    axes.set_title("Noise for an epsilon; left of the line is too little", loc="left", weight="bold", fontsize=9)
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _draw_runs(axes: Axes, results: Row) -> None:
    for (way, runs), marker in zip(_ordered(results), "o^vsDP", strict=False):
        colour = {PLAIN: RED, "privacy loss distribution": GREEN}.get(way, BLUE)
        x, y = mean(row["perplexity"] for row in runs), mean(row["exposure"] for row in runs)
        axes.plot([x], [y], marker, color=colour, label=way, alpha=0.8)
    axes.axhline(NOTHING, color=INK, linewidth=0.9, linestyle="--", label="nothing remembered")
    axes.margins(x=0.1, y=0.15)
    axes.set(xlabel="held-out perplexity", ylabel="mean exposure of canaries, bits")
    axes.set_title("What that noise does to a model", loc="left", weight="bold", fontsize=9)
    axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
