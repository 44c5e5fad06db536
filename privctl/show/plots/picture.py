"""A plot as a file: the shapes of ``privctl.show.svg``, written as SVG or painted as PNG.

Units are points. SVG needs only this package; matplotlib is imported only for PNG, and its settings are not changed.
Equal shapes give equal bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from privctl.show.svg.axes import Scale
from privctl.show.svg.shapes import Node, el

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT, _GRID = "#222222", "#6B6B6B", "#E3E3E3"
#: The colour-blind safe palette of Okabe and Ito without yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
BLUE, RED = COLOURS[:2]
#: The style of each class of shapes; the page has its own style sheet.
_STYLE: Mapping[str, Mapping[str, str]] = {
    "grid": {"stroke": _GRID, "stroke-width": "0.7"},
    "axis": {"stroke": _FAINT, "stroke-width": "0.8"},
    "curve": {"fill": "none", "stroke-width": "1.8"},
    "rule": {"fill": "none", "stroke": _INK, "stroke-width": "1.1"},
    "tick": {"fill": _INK, "font-size": "9.5"},
    "name": {"fill": _INK, "font-size": "9.5"},
    "label": {"fill": _INK, "font-size": "9"},
    "heading": {"fill": _INK, "font-size": "10.5", "font-weight": "bold"},
    "title": {"fill": _INK, "font-size": "14", "font-weight": "bold"},
    "faint": {"fill": _FAINT, "font-size": "9.5"},
    "shade": {"fill": "#F3F3F3"},
    "strong": {"font-weight": "bold"},
    "dot": {"fill": "currentColor"},
    "range": {"stroke": "currentColor", "stroke-width": "2.4", "opacity": "0.65"},
    "guess": {"stroke": _FAINT, "stroke-width": "0.8"},
    "hollow": {"fill": "#FFFFFF", "stroke": _FAINT, "stroke-width": "1.5"},
    "unbounded": {"fill": "#B3211B", "opacity": "0.07"},
    "plate": {"fill": "#FFFFFF"},
    "leader": {"stroke": _FAINT, "stroke-width": "0.8"},
    "good": {"color": "#146C43"},
    "fair": {"color": "#1C5FB0"},
    "weak": {"color": "#8A5300"},
    "bad": {"color": "#B3211B"},
    "void": {"color": "#6D3FA0"},
    "none": {"color": "#5A5F68"},
    "mid": {"text-anchor": "middle"},
    "end": {"text-anchor": "end"},
}
_FONTS = ("DejaVu Sans", "sans-serif")
_DPI = 160
_POINTS = 72
#: The height of a row of the legend, and the length of the line in it.
ROW, _SAMPLE = 14.4, 29.0
_COMMAND = re.compile(r"([MLHVZ])([^MLHVZ]*)")
_TURNED = re.compile(r"translate\((\S+) (\S+)\) rotate\(-90\)")


def picture_bytes(
    shapes: Sequence[Node], width: float, height: float, format: Literal["svg", "png"], *,  # noqa: A002
    words: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """The plot as the bytes of a file of that format. Raises ValueError for another format.

    ``words`` are its title and description, for readers who cannot see it; they are left out of a PNG.
    """
    if format not in ("svg", "png"):
        raise ValueError(f"format is {format!r}; it is svg or png")
    styled = [_style(shape) for shape in shapes]
    return _svg(styled, width, height, words) if format == "svg" else _png(styled, width, height)


def marker(i: int, x: float, y: float, colour: str) -> Node:
    """The marker of the i-th curve; markers differ in shape, not only in colour."""
    edge: dict[str, str | float | None] = {"fill": colour, "stroke": "#FFFFFF", "stroke_width": 0.8}
    corners = _MARKERS[i % len(_MARKERS)]
    if not corners:
        return el("circle", cx=x, cy=y, r=2.8, **edge)
    return el("path", d="M" + "L".join(f"{x + a:.1f} {y + b:.1f}" for a, b in corners) + "Z", **edge)


#: Corners of a circle (none), a square, a triangle, a diamond, an inverted triangle, and a cross.
_MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-2.7, -2.7), (2.7, -2.7), (2.7, 2.7), (-2.7, 2.7)),
    ((0, -3), (3, 2.6), (-3, 2.6)),
    ((0, -3.7), (3.7, 0), (0, 3.7), (-3.7, 0)),
    ((0, 3), (3, -2.6), (-3, -2.6)),
    ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1)),
)


def legend(x: Scale, top: float, entries: Sequence[tuple[Sequence[Node], str]]) -> Iterator[Node]:
    """One row per entry from ``top`` down: the shapes that stand for it, and its label, line by line."""
    for shapes, label in entries:
        yield from shapes
        for line in label.split("\n"):
            yield el("text", line, class_="label", x=x.start + _SAMPLE + 10, y=top)
            top += ROW


def legend_line(x: Scale, top: float) -> tuple[float, float, float]:
    """Start, end and height of the line in a legend's row at ``top``."""
    return x.start, x.start + _SAMPLE, top - 3


def _style(node: Node) -> Node:
    """The node with the style of its classes as attributes; its own attributes take precedence."""
    attributes = dict(node.attributes)
    style: dict[str, str] = {}
    attributes.pop("data-tip", None)  # only for the page's script
    for name in attributes.pop("class", "").split():
        style |= _STYLE[name]
    look = style | attributes
    colour = look.pop("color", None)
    for part in ("fill", "stroke"):
        if colour is not None and look.get(part) == "currentColor":
            look[part] = colour
    children = tuple(_style(child) if isinstance(child, Node) else child for child in node.children)
    return Node(node.tag, tuple(look.items()), children)


def _svg(shapes: Sequence[Node], width: float, height: float, words: Sequence[str]) -> bytes:
    elements = [el(tag, text) for tag, text in zip(("title", "desc"), words, strict=False)]
    whole = el(
        "svg", elements, el("rect", width=width, height=height, fill="#FFFFFF"), shapes, xmlns="http://www.w3.org/2000/svg",
        width=f"{width:.0f}pt", height=f"{height:.0f}pt", viewBox=f"0 0 {width:.0f} {height:.0f}",
        font_family=", ".join(_FONTS), role="img" if elements else None,
    )  # fmt: skip
    return f'<?xml version="1.0" encoding="utf-8"?>\n{whole}\n'.encode()


def _png(shapes: Sequence[Node], width: float, height: float) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character that the font lacks is drawn as a box, which is acceptable
        matplotlib.rcdefaults()  # independent of the user's configuration
        matplotlib.rcParams.update({"font.family": list(_FONTS), "text.parse_math": False, "lines.scale_dashes": False})
        figure = Figure(figsize=(width / _POINTS, height / _POINTS), dpi=_DPI, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(shapes):
            _paint(axes, shape, order)
        canvas: Any = FigureCanvasAgg(figure)  # its methods for writing carry no types
        canvas.print_png(file, metadata={"Software": None})
    return file.getvalue()


def _paint(axes: Axes, shape: Node, order: int) -> None:
    from matplotlib.patches import Circle, PathPatch
    from matplotlib.path import Path

    if shape.tag == "g":
        for child in shape.children:
            if isinstance(child, Node):
                _paint(axes, child, order)
        return
    given = dict(shape.attributes)
    if shape.tag == "text":
        turned = _TURNED.match(given.get("transform", ""))
        x, y = turned.groups() if turned else (given["x"], given["y"])
        axes.text(
            float(x), float(y), "".join(map(str, shape.children)), size=float(given["font-size"]), color=given["fill"],
            weight=given.get("font-weight", "normal"), ha=_ANCHORS[given.get("text-anchor", "start")], va="baseline",
            rotation=90 if turned else 0, rotation_mode="anchor", zorder=order,
        )  # fmt: skip
        return
    dashes = [float(length) for length in given.get("stroke-dasharray", "").split()]
    look: dict[str, Any] = {
        "facecolor": given.get("fill", "none"),
        "edgecolor": given.get("stroke", "none"),
        "linewidth": float(given.get("stroke-width", 1)),
        "linestyle": (0, dashes) if dashes else "solid",
        "alpha": float(given.get("opacity", 1)),
        "zorder": order,
    }
    if shape.tag == "circle":
        axes.add_patch(Circle((float(given["cx"]), float(given["cy"])), float(given["r"]), **look))
    elif shape.tag == "line":
        ends = [(float(given["x1"]), float(given["y1"])), (float(given["x2"]), float(given["y2"]))]
        axes.add_patch(PathPatch(Path(ends), **look))
    else:
        places, codes = _path_points(given["d"])
        axes.add_patch(PathPatch(Path(places, codes), **look))


_ANCHORS: Mapping[str, Literal["left", "center", "right"]] = {"start": "left", "middle": "center", "end": "right"}


def _path_points(d: str) -> tuple[list[tuple[float, float]], list[int]]:
    """The points of a path of straight lines, with matplotlib's code for each."""
    places: list[tuple[float, float]] = []
    codes = []
    for command, text in _COMMAND.findall(d):
        numbers = [float(number) for number in text.split()]
        if command == "Z":
            places.append(places[0])
        elif command in "HV":
            places.append((numbers[0], places[-1][1]) if command == "H" else (places[-1][0], numbers[0]))
        else:
            places.append((numbers[0], numbers[1]))
        codes.append({"M": 1, "Z": 79}.get(command, 2))
    return places, codes
