"""The plot of a privacy loss distribution: its density with epsilon marked, and delta against epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privctl.domain.shown import upward
from privctl.show.plots.picture import BLUE, RED, ROW, legend, legend_line, picture_bytes
from privctl.show.svg.axes import Scale, frame, logarithmic, polyline, tick_label
from privctl.show.svg.shapes import Node, el

_WIDTH, _TOP, _FOOT, _BELOW = 756.0, 44.0, 250.0, 58.0
_LEFT, _RIGHT = (64.0, 366.0), (450.0, 740.0)
#: Most characters of the guarantee's name in the title.
_NAME = 44
#: Deltas are drawn down to this share of the claimed one: smaller ones are rounding, and would flatten the curve.
_DEEP = 1e-4
_DASHED, _DOTTED = "6 3", "1.5 3"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossPicture:
    """``density`` at ``losses``, shape (n,) both; ``deltas`` at ``epsilons``, shape (m,) both; the claim to mark."""

    name: str
    losses: Array
    density: Array
    epsilons: Array
    deltas: Array
    epsilon: float
    delta: float


def draw(picture: LossPicture, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 - the name readers expect
    """The plot as the bytes of a file of that format; equal for equal input. Raises ValueError for another format."""
    claim = f"epsilon {upward(picture.epsilon, 4)}, delta {upward(picture.delta, 3)}"
    name = picture.name if len(picture.name) <= _NAME else f"{picture.name[: _NAME - 1]}…"
    title = el("text", f"{name}: {claim}", class_="title mid", x=_WIDTH / 2, y=26.0)
    return picture_bytes([title, *_density(picture), *_deltas(picture)], _WIDTH, _FOOT + _BELOW + 3 * ROW, format)


def _density(picture: LossPicture) -> Iterator[Node]:
    losses, density = picture.losses, picture.density
    x = _range(losses.tolist(), *_LEFT)
    y = Scale(0.0, 1.05 * float(density.max()) or 1.0, _FOOT, _TOP)
    above = losses >= picture.epsilon
    # Delta weighs each loss above epsilon by 1 - e^(epsilon - loss).
    share = -np.expm1(np.minimum(picture.epsilon - losses, 0.0))
    weighed = _points(losses[above], (density * share)[above])
    if weighed:
        base = [(weighed[-1][0], 0.0), (weighed[0][0], 0.0)]
        yield el("path", d=polyline(x, y, [*weighed, *base]) + "Z", fill=RED, opacity="0.6")
    yield from frame(x, y, "Privacy loss (with the record against without it)", "Density")
    yield el("path", class_="curve", d=polyline(x, y, _points(losses, density)), stroke=BLUE)
    position = x.at(picture.epsilon)
    yield el("line", class_="curve", x1=position, x2=position, y1=_FOOT, y2=_TOP, stroke=RED, stroke_dasharray=_DASHED)
    left, right, height = legend_line(x, _FOOT + _BELOW)
    box = f"M{left:.1f} {height - 4:.1f}H{right:.1f}V{height + 4:.1f}H{left:.1f}Z"
    yield from legend(x, _FOOT + _BELOW, [
        ([el("path", d=box, fill=RED, opacity="0.6")], "delta"),
        ([el("line", class_="curve", x1=left, x2=right, y1=height + ROW, y2=height + ROW, stroke=RED,
             stroke_dasharray=_DASHED)], "epsilon"),
    ])  # fmt: skip


def _deltas(picture: LossPicture) -> Iterator[Node]:
    seen = picture.deltas > _DEEP * picture.delta
    curve = _points(picture.epsilons[seen], picture.deltas[seen])
    x = _range([picture.epsilon, *(epsilon for epsilon, _ in curve)], *_RIGHT)
    y = logarithmic([delta for _, delta in [*curve, (0.0, picture.delta)]], _FOOT, _TOP)
    yield from frame(x, y, "Epsilon", "Delta", y_label=tick_label)
    if curve:
        yield el("path", class_="curve", d=polyline(x, y, curve), stroke=BLUE)
    if picture.delta > 0:
        height = y.at(picture.delta)
        yield el("line", class_="rule", x1=x.start, x2=x.end, y1=height, y2=height, stroke_dasharray=_DOTTED)
        yield el("circle", cx=x.at(picture.epsilon), cy=height, r=3.5, fill=RED)
    left, right, height = legend_line(x, _FOOT + _BELOW)
    yield from legend(x, _FOOT + _BELOW, [
        ([el("line", class_="curve", x1=left, x2=right, y1=height, y2=height, stroke=BLUE)], "what follows, at most"),
        ([el("circle", cx=(left + right) / 2, cy=height + ROW, r=3.5, fill=RED)], "claimed"),
    ])  # fmt: skip


def _range(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale from the smallest value to the largest, widened if they are equal."""
    low, high = min(values), max(values)
    return Scale(low, high if high > low else low + (abs(low) or 1.0), start, end)


def _points(xs: Array, ys: Array) -> list[tuple[float, float]]:
    """The finite points of a curve."""
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if np.isfinite(x) and np.isfinite(y)]
