"""The law of a privacy loss as a picture: its density with epsilon marked, and delta at every epsilon."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privctl.domain.shown import upward

_BLUE, _RED, _GREY = "#0072B2", "#D55E00", "#6B6B6B"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossPicture:
    """``density`` at ``losses``; ``deltas`` at ``epsilons``; the claim to mark."""

    name: str
    losses: Array
    density: Array
    epsilons: Array
    deltas: Array
    epsilon: float
    delta: float


def draw(picture: LossPicture, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 - the name readers expect
    """The figure as the bytes of a file of that format; the same for the same picture and matplotlib."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "privctl", "svg.fonttype": "none", "text.parse_math": False})
        figure = Figure(figsize=(10.5, 4.2), dpi=150, layout="constrained")
        figure.suptitle(f"{picture.name}: epsilon {upward(picture.epsilon, 4)}, delta {upward(picture.delta, 3)}")
        left, right = figure.subplots(1, 2)
        _density(left, picture)
        _deltas(right, picture)
        canvas: Any  # their methods for writing carry no types
        if format == "svg":
            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(file, metadata={"Date": None, "Creator": "privctl"})
        else:
            canvas = FigureCanvasAgg(figure)
            canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def _density(axes: Any, picture: LossPicture) -> None:
    axes.plot(picture.losses, picture.density, color=_BLUE)
    above = picture.losses >= picture.epsilon
    # Delta weighs each loss above epsilon by 1 - e^(epsilon - loss).
    share = -np.expm1(np.minimum(picture.epsilon - picture.losses, 0.0))
    axes.fill_between(picture.losses[above], (picture.density * share)[above], color=_RED, alpha=0.6, label="delta")
    axes.axvline(picture.epsilon, color=_RED, linestyle="dashed", label="epsilon")
    axes.set_xlabel("Privacy loss, with the record against without it")
    axes.set_ylabel("Density")
    axes.set_ylim(bottom=0)
    axes.legend()


def _deltas(axes: Any, picture: LossPicture) -> None:
    from matplotlib.ticker import FuncFormatter

    seen = picture.deltas > 0
    axes.plot(picture.epsilons[seen], picture.deltas[seen], color=_BLUE, label="what follows, at most")
    axes.plot([picture.epsilon], [picture.delta], "o", color=_RED, label="claimed")
    axes.axhline(picture.delta, color=_GREY, linewidth=0.8, linestyle="dotted")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Epsilon")
    axes.set_ylabel("Delta")
    axes.legend()
