"""An account as a picture: epsilon over the steps, and what an attacker can make of the trained model.

Drawn without a display and without any state of the process: the same curves give the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from privctl.domain.shown import upward
from privctl.plan.curves import ENDLESS, AccountCurves, RateCurve, StepCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: Okabe and Ito's palette less its yellow, which white swallows; told apart by the colour-blind.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Told apart without any colour.
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _FAINT, _GRID = "#222222", "#6B6B6B", "#E3E3E3"
_STYLE: Mapping[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "privctl",
    "savefig.facecolor": "white",
    "path.simplify": True,
}
#: All in inches: the page, the margins left of each panel, and the height of its parts from the top down.
_WIDTH, _PANEL, _LEFT, _RIGHT = 11.5, 4.65, 0.85, 6.6
_ABOVE, _HEIGHT, _BELOW, _ROW = 1.15, 3.7, 0.72, 0.2
_DPI = 160
_LEAST_RATE = 1e-4
_LINE = 66
#: The largest epsilon over the smallest, at the curves' ends, from which the axis is logarithmic.
_FAR_APART = 20.0

Array = NDArray[np.float64]


def draw(curves: AccountCurves, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 - the name readers expect
    """The figure as the bytes of a file of that format; the same for the same curves and matplotlib.

    Raises ValueError for another format.
    """
    if format not in ("svg", "png"):
        raise ValueError(f"format is {format!r}; it is svg or png")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box, which is enough
        matplotlib.rcdefaults()  # whatever the reader's own configuration says
        matplotlib.rcParams.update(_STYLE)
        figure = _figure(curves)
        canvas: Any  # their methods for writing carry no types
        if format == "svg":
            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(file, metadata={"Date": None, "Creator": "privctl"})
        else:
            canvas = FigureCanvasAgg(figure)
            canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def _figure(curves: AccountCurves) -> Figure:
    from matplotlib.figure import Figure

    rows = max(
        sum(_step_label(curve).count("\n") + 1 for curve in curves.epsilon_over_steps) + (curves.target is not None),
        sum(_rate_label(curve).count("\n") + 1 for curve in curves.trade_off) + 1,
    )
    title, subtitle = (_wrapped(text, width) for text, width in ((curves.title, 84), (curves.subtitle, 130)))
    lines = title.count("\n") + subtitle.count("\n")
    height = _ABOVE + 0.25 * lines + _HEIGHT + _BELOW + _ROW * rows + 0.2
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    figure.text(0.25 / _WIDTH, 1 - 0.2 / height, title, size=14, weight="bold", va="top")
    below = 0.52 + 0.25 * title.count("\n")
    figure.text(0.25 / _WIDTH, 1 - below / height, subtitle, size=9.5, color=_FAINT, va="top", linespacing=1.35)
    bottom = (_BELOW + _ROW * rows + 0.2) / height
    left, right = (figure.add_axes((x / _WIDTH, bottom, _PANEL / _WIDTH, _HEIGHT / height)) for x in (_LEFT, _RIGHT))
    _draw_steps(left, curves)
    _draw_trade_off(right, curves.trade_off)
    return figure


def _draw_steps(axes: Axes, curves: AccountCurves) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_title("Privacy spent while training", loc="left", size=10.5, weight="bold", pad=9)
    axes.set_xlabel("Training steps")
    axes.set_ylabel("Epsilon (lower is more private)")
    ends = [finite[-1] for curve in curves.epsilon_over_steps if (finite := _finite(curve)[1]).size and finite[-1] > 0]
    seen = [float(_finite(curve)[1].max()) for curve in curves.epsilon_over_steps if _finite(curve)[1].size]
    if curves.target is not None:
        ends, seen = [*ends, curves.target], [*seen, curves.target]
    logarithmic = bool(ends) and min(ends) > 0 and max(ends) / min(ends) > _FAR_APART
    lines, labels = [], []
    for i, curve in enumerate(curves.epsilon_over_steps):
        steps, epsilons = _finite(curve)
        if logarithmic:
            steps, epsilons = steps[epsilons > 0], epsilons[epsilons > 0]
        style = "solid" if curve.sound else (0, (1, 1.6)) if curve.claimed else (0, (5, 2.2))
        lines += axes.plot(steps, epsilons, linestyle=style, **_look(i, len(steps)))
        labels.append(_step_label(curve))
    if curves.target is not None:
        lines.append(axes.axhline(curves.target, color=_INK, linewidth=1.1, linestyle=(0, (8, 2, 1.5, 2)), zorder=1.5))
        labels.append(f"Target: ε = {curves.target:.4g}")
    last = max((curve.steps[-1] for curve in curves.epsilon_over_steps if curve.steps), default=1.0)
    axes.set_xlim(0, 1.02 * max(last, 1e-9))
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.08 * max(seen, default=1.0) or 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _grouped(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _grouped(value)))
    _finish(axes, lines, labels)
    if not curves.epsilon_over_steps:
        _say(axes, "No curve over the steps")


def _draw_trade_off(axes: Axes, curves: Sequence[RateCurve]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_title("What an attacker can find out", loc="left", size=10.5, weight="bold", pad=9)
    axes.set_xlabel("False alarms: others taken for members (false positive rate)")
    axes.set_ylabel("Members found (1 − false negative rate)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(_LEAST_RATE, 1)
    axes.set_ylim(_LEAST_RATE, 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axis.set_minor_formatter(NullFormatter())
    axes.fill_between([_LEAST_RATE, 1], [_LEAST_RATE, 1], _LEAST_RATE, color="#F3F3F3", linewidth=0, zorder=0.5)
    axes.text(
        0.95, 0.06, "worse than guessing", size=8.5, color=_FAINT, ha="right", va="bottom", transform=axes.transAxes
    )
    lines, labels = [], []
    for i, curve in enumerate(curves):
        alarms, found = _seen_rates(curve)
        lines += axes.plot(alarms, found, clip_on=False, **_look(i, len(alarms)))
        labels.append(_rate_label(curve))
    lines += axes.plot([_LEAST_RATE, 1], [_LEAST_RATE, 1], color=_INK, linewidth=1.1, linestyle=(0, (3, 2)))
    labels.append("Blind guessing: as many members found as false alarms")
    _finish(axes, lines, labels)
    if not curves:
        _say(axes, "No trade-off curve")


def _finish(axes: Axes, lines: Sequence[Line2D], labels: Sequence[str]) -> None:
    """Grid behind the data, and the legend under the panel."""
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, width=0.8, pad=4)
    axes.tick_params(which="minor", length=2, width=0.5)
    if lines:
        below = -(_BELOW - 0.12) / _HEIGHT
        legend = axes.legend(
            lines, labels, loc="upper left", bbox_to_anchor=(0, below), frameon=False,
            borderpad=0, borderaxespad=0, handlelength=3.2, handletextpad=1.1, labelspacing=0.42, fontsize=9,
        )  # fmt: skip
        legend.set_in_layout(False)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, color=_FAINT, ha="center", va="center", transform=axes.transAxes)


def _look(i: int, points: int) -> dict[str, Any]:
    """Colour and marker of the i-th curve; few markers, none on another curve's."""
    every = max(1, math.ceil(points / 6))
    return {
        "color": _COLOURS[i % len(_COLOURS)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.8,
        "markevery": ((i * every // 3) % every, every),
        "zorder": 3 - 0.05 * (i % 10),
    }


def _step_label(curve: StepCurve) -> str:
    notes = []
    if curve.claimed:
        notes.append("claimed, not checked")
    elif not curve.sound:
        notes.append("estimate, not a bound")
    epsilons = _finite(curve)[1]
    left_out = len(curve.epsilons) - len(epsilons)
    if not len(epsilons):
        notes.append("infinite, not drawn" if left_out else "no points")
    elif left_out:
        notes.append(f"infinite at {left_out} of {len(curve.epsilons)} points, left out")
    label = curve.label + "".join(f" ({note})" for note in notes)
    if len(epsilons) and curve.epsilons[-1] < ENDLESS:
        label += f": ends at ε = {upward(epsilons[-1], 4)}"
    return _wrapped(label, _LINE)


def _rate_label(curve: RateCurve) -> str:
    alarms = curve.false_positive_rates
    if not alarms:
        return _wrapped(f"{curve.label} (no points)", _LINE)
    if alarms[0] <= 0.001 <= alarms[-1]:
        found = 1 - float(np.interp(0.001, alarms, curve.false_negative_rates))
        return _wrapped(f"{curve.label}: {100 * found:.3g} % at 0.1 % false alarms", _LINE)
    return _wrapped(curve.label, _LINE)


def _finite(curve: StepCurve) -> tuple[Array, Array]:
    """Steps and epsilons without the infinite ones, shape (n,) both."""
    steps, epsilons = np.array(curve.steps, dtype=np.float64), np.array(curve.epsilons, dtype=np.float64)
    kept = epsilons < ENDLESS
    return steps[kept], epsilons[kept]


def _seen_rates(curve: RateCurve) -> tuple[Array, Array]:
    """False alarms and members found on the page, shape (n,) both; dense, as straight lines bend on these axes."""
    alarms, missed = (np.array(side) for side in (curve.false_positive_rates, curve.false_negative_rates))
    if len(alarms) > 1:
        low, high = max(alarms[0], _LEAST_RATE), alarms[-1]
        dense = np.geomspace(low, high, 240) if low < high else alarms
        # Of equal false alarms, as where a curve starts with a step, the last misses least.
        alarms, missed = dense, np.interp(dense, alarms, missed)
    kept = (alarms >= _LEAST_RATE) & (missed <= 1 - _LEAST_RATE)
    return alarms[kept], 1 - missed[kept]


def _grouped(value: float) -> str:
    """A tick's number in plain digits, thousands apart."""
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}".replace(",", "\u2009")
    return f"{value:.4g}"


def _wrapped(text: str, width: int) -> str:
    """Lines of at most ``width`` letters, without characters that a picture cannot show."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return "\n".join(textwrap.wrap(shown, width)) or shown.strip()
