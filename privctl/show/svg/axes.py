"""Axes of figures: scales, ticks and frames in the units of the drawing.

Every figure of the page is WIDTH units wide, so that its text is readable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from privctl.show.svg.shapes import Node, coordinate, el
from privctl.show.text.style import with_exponent

WIDTH = 420.0
#: Margins for the numbers and names of the axes.
LEFT, RIGHT, TOP, BOTTOM = 60.0, 16.0, 14.0, 46.0
_MOST_TICKS = 6
#: Larger values are drawn here; on a logarithmic scale, values below its inverse too.
_BEYOND = 1e30


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from ``low`` to ``high`` to coordinates from ``start`` to ``end``, linearly or in logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The coordinate of ``value``; a value beyond the axis is placed at its end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = (math.log(inside) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """At most about six round values."""
        return _powers(self.low, self.high) if self.log else _rounds(self.low, self.high)


def linear(values: Sequence[float], start: float, end: float) -> Scale:
    """A linear scale over 0 and ``values``, with a margin of 6 % except at 0."""
    low, high = (min(max(value, -_BEYOND), _BEYOND) for value in (min(values), max(values)))
    low = min(0.0, low)
    if not high > low:
        low, high = low - 0.5, low + 0.5 if low else 1.0
    room = (high - low) * 0.06
    return Scale(low if low == 0 else low - room, high + room, start, end)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale over the positive ``values``, extended to whole powers of ten."""
    positive = [min(max(value, 1 / _BEYOND), _BEYOND) for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive)) + 1e-9), math.ceil(math.log10(max(positive)) - 1e-9)
    high = max(high, low + 1)
    return Scale(10.0**low, 10.0**high, start, end, log=True)


def tick_label(value: float) -> str:
    """The label of a tick: 0.001, 10, 2·10⁵."""
    return f"{value:.6g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else with_exponent(value, 3)


def frame(
    x: Scale, y: Scale, x_name: str, y_axis_name: str, *,
    x_label: Callable[[float], str] = tick_label, y_label: Callable[[float], str] = tick_label,
) -> Iterator[Node]:  # fmt: skip
    """The grid lines, numbers and names of both axes."""
    for value in y.ticks():
        position = y.at(value)
        yield el("line", class_="grid", x1=x.start, x2=x.end, y1=position, y2=position)
        yield el("text", y_label(value), class_="tick end", x=x.start - 7, y=position + 4)
    for value in x.ticks():
        position = x.at(value)
        yield el("line", class_="grid", x1=position, x2=position, y1=y.start, y2=y.end)
        yield el("text", x_label(value), class_="tick mid", x=position, y=y.start + 17)
    yield el("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start)
    yield el("text", x_name, class_="name mid", x=(x.start + x.end) / 2, y=y.start + 36)
    aside, middle = coordinate(x.start - 48), coordinate((y.start + y.end) / 2)
    yield el("text", y_axis_name, class_="name mid", transform=f"translate({aside} {middle}) rotate(-90)")


def polyline(x: Scale, y: Scale, points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` attribute of a path through ``points``, pairs of values."""
    places = [f"{coordinate(x.at(a))} {coordinate(y.at(b))}" for a, b in points]
    return "M" + "L".join(places)


def step_path(x: Scale, y: Scale, points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` attribute of a step function through ``points``, as an empirical ROC curve is."""
    parts = []
    for index, (a, b) in enumerate(points):
        right, up = coordinate(x.at(a)), coordinate(y.at(b))
        parts.append(f"M{right} {up}" if index == 0 else f"H{right}V{up}")
    return "".join(parts)


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / _MOST_TICKS))
    return [10.0**power for power in range(first, last + 1, step)]


def _rounds(low: float, high: float) -> list[float]:
    rough = (high - low) / (_MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough - 1e-12)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [float(f"{(first + i) * step:.12g}") for i in range(min(count, 2 * _MOST_TICKS))]
