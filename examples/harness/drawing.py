"""Plots as SVG files, with the same bytes for the same results."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Dark and light greys, and the colours of Okabe and Ito, which colour-blind readers can distinguish.
INK, FAINT, GRID = "#222222", "#666666", "#E4E4E4"
BLUE, SKY, GREEN, ORANGE, RED, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"


def svg(draw: Callable[[Figure], None], size: tuple[float, float], *, layout: Any = None) -> bytes:
    """The SVG of what ``draw`` draws on a figure of ``size`` inches."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "privctl", "font.size": 9.5, "axes.edgecolor": "#999999"})
        figure = Figure(figsize=size, layout=layout)
        draw(figure)
        canvas: Any = FigureCanvasSVG(figure)  # its methods have no type hints
        canvas.print_svg(file, metadata={"Date": None, "Creator": "privctl"})
    return file.getvalue()


def grid(axes: Axes, *, axis: Any = "both") -> None:
    """Draw a light grid behind the data."""
    axes.grid(axis=axis, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
