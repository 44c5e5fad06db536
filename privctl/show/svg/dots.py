"""Dot plots: rows with a name, a dot and its interval on a common axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.show.plain import clean
from privctl.show.svg.axes import RIGHT, WIDTH, Scale, linear, logarithmic, tick_label
from privctl.show.svg.shapes import Node, el

_LEFT, _ROW, _TOP, _BELOW = 10.0, 34.0, 8.0, 42.0
#: The height of the dot in its row, and how far a mark extends above and below it.
_DOT, _HALF = 24.0, 9.0
#: The height of the marks' names above the rows.
_MARKED = 14.0
_LETTER = 7.4
#: Most rows of one figure.
MOST = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class DotRow:
    """One row: a dot at ``value``, ``text`` at the right, ``tip`` on hovering, and a ring at ``hollow``."""

    name: str
    value: float | None
    text: str
    lower: float | None = None
    upper: float | None = None
    hollow: float | None = None
    colour: str = "ink"
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLine:
    """A mark in all rows at ``value``, such as chance, with its name above them."""

    value: float
    name: str


def height(rows: Sequence[DotRow], *, marked: bool = False) -> float:
    """The height of the figure of ``rows``; ``marked``: it has reference lines."""
    return _TOP + _MARKED * marked + _ROW * min(len(rows), MOST) + _BELOW


def dots(
    rows: Sequence[DotRow], name: str, *, marks: Sequence[ReferenceLine] = (), log: bool = False
) -> Iterator[Node]:
    """The shapes of the figure; ``name`` is that of the axis; with ``log`` all values must be positive."""
    shown = rows[:MOST]
    values = [v for row in shown for v in (row.value, row.lower, row.upper, row.hollow) if v is not None]
    values += [mark.value for mark in marks]
    scale = (logarithmic if log else linear)(values or [1.0], _LEFT, WIDTH - RIGHT)
    top = _TOP + _MARKED * bool(marks)
    foot = top + _ROW * len(shown)
    yield from _axis(scale, name, top, foot)
    for mark in marks:
        position = scale.at(mark.value)
        # Only next to the dots: a line through whole rows would cross the names.
        for index in range(len(shown)):
            middle = top + _ROW * index + _DOT
            yield el("line", class_="mark", x1=position, x2=position, y1=middle - _HALF, y2=middle + _HALF)
        side = "end" if position > WIDTH * 0.6 else "start"
        yield el("text", mark.name, class_=f"tick marked {side}", x=position + (-4 if side == "end" else 4), y=top - 6)
    for index, row in enumerate(shown):
        yield _row(row, scale, top + _ROW * index)


def _axis(scale: Scale, name: str, top: float, foot: float) -> Iterator[Node]:
    for value in scale.ticks():
        position = scale.at(value)
        yield el("line", class_="grid", x1=position, x2=position, y1=top, y2=foot)
        side = "end" if position > WIDTH - 30 else "start" if position < 20 else "mid"
        yield el("text", tick_label(value), class_=f"tick {side}", x=position, y=foot + 15)
    yield el("text", name, class_="name mid", x=WIDTH / 2, y=foot + 34)


def _row(row: DotRow, scale: Scale, top: float) -> Node:
    middle = top + _DOT
    room = int((WIDTH - RIGHT - _LEFT - len(row.text) * _LETTER - 12) / _LETTER)
    shapes = [
        el("text", clean(row.name, max(8, room)), class_="label", x=_LEFT, y=top + 13),
        el("text", row.text, class_="label strong end", x=WIDTH - RIGHT, y=top + 13),
        el("line", class_="track", x1=_LEFT, x2=WIDTH - RIGHT, y1=middle, y2=middle),
    ]
    if row.lower is not None and row.upper is not None:
        shapes.append(
            el(
                "line",
                class_=f"range {row.colour}",
                x1=scale.at(row.lower),
                x2=scale.at(row.upper),
                y1=middle,
                y2=middle,
            )
        )
    if row.hollow is not None:
        if row.value is not None:
            places = scale.at(row.hollow), scale.at(row.value)
            shapes.append(el("line", class_=f"link {row.colour}", x1=places[0], x2=places[1], y1=middle, y2=middle))
        shapes.append(el("circle", class_=f"hollow {row.colour}", cx=scale.at(row.hollow), cy=middle, r=4.5))
    if row.value is not None:
        shapes.append(el("circle", class_=f"dot {row.colour}", cx=scale.at(row.value), cy=middle, r=5))
    return el("g", shapes, data_tip=row.tip or f"{row.name}: {row.text}")
