"""The plot of an account: epsilon over the steps, and the attacker's best ROC curve on the trained model."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privctl.domain.shown import upward
from privctl.plan.curves import ENDLESS, AccountCurves, RateCurve, StepCurve
from privctl.show.plots.picture import COLOURS, ROW, legend, legend_line, marker, picture_bytes
from privctl.show.svg.axes import Scale, frame, logarithmic, polyline
from privctl.show.svg.shapes import Node, el

#: All in points: width, panel width, left edges of the panels, and the heights of the parts from the top down.
_WIDTH, _PANEL, _LEFT, _RIGHT = 828.0, 334.8, 61.2, 475.2
_ABOVE, _LINE_HEIGHT, _HEIGHT, _BELOW = 82.8, 18.0, 266.4, 60.0
_LEAST_RATE = 1e-4
_LINE = 66
#: The ratio of the largest to the smallest final epsilon above which the axis is logarithmic.
_FAR_APART = 20.0
#: The dashes of an estimate, a claim, a target and guessing; a bound is a solid line.
_ESTIMATE, _CLAIM, _TARGET, _GUESSING = "9 4", "1.8 2.9", "9 2.2 1.7 2.2", "3.3 2.2"
_MARKS = 6

Array = NDArray[np.float64]
Points = list[tuple[float, float]]


def draw(curves: AccountCurves, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 - the name readers expect
    """The plot as the bytes of a file of that format; equal for equal curves. Raises ValueError for another format."""
    title, subtitle = (_wrap(text, width) for text, width in ((curves.title, 84), (curves.subtitle, 130)))
    top = _ABOVE + _LINE_HEIGHT * (title.count("\n") + subtitle.count("\n"))
    foot = top + _HEIGHT
    rows = max(
        sum(_step_label(curve).count("\n") + 1 for curve in curves.epsilon_over_steps) + (curves.target is not None),
        sum(_rate_label(curve).count("\n") + 1 for curve in curves.trade_off) + 1,
    )
    shapes = [
        *_text(title, "title", 27.0),
        *_text(subtitle, "faint", 47.0 + _LINE_HEIGHT * title.count("\n")),
        *_steps(curves, Scale(0.0, 1.0, _LEFT, _LEFT + _PANEL), foot, top),
        *_trade_off(curves.trade_off, foot, top),
    ]
    return picture_bytes(shapes, _WIDTH, foot + _BELOW + ROW * rows + 6, format)


def _text(text: str, kind: str, top: float) -> Iterator[Node]:
    for index, line in enumerate(text.split("\n")):
        yield el("text", line, class_=kind, x=18.0, y=top + _LINE_HEIGHT * index)


def _steps(curves: AccountCurves, panel: Scale, foot: float, top: float) -> Iterator[Node]:
    seen = [(curve, *_finite(curve)) for curve in curves.epsilon_over_steps]
    target = [] if curves.target is None else [curves.target]
    ends = [*(float(epsilons[-1]) for _, _, epsilons in seen if epsilons.size and epsilons[-1] > 0), *target]
    most = max([*(float(epsilons.max()) for _, _, epsilons in seen if epsilons.size), *target], default=1.0)
    last = max((curve.steps[-1] for curve in curves.epsilon_over_steps if curve.steps), default=1.0)
    x = Scale(0.0, 1.02 * max(last, 1e-9), panel.start, panel.end)
    y = Scale(0.0, 1.08 * most or 1.0, foot, top)
    log = bool(ends) and max(ends) / min(ends) > _FAR_APART
    if log:
        y = logarithmic([*(float(e) for _, _, epsilons in seen for e in epsilons), *target], foot, top)
    yield el("text", "Privacy spent while training", class_="heading", x=x.start, y=top - 9)
    yield from frame(x, y, "Training steps", "Epsilon (lower is more private)", x_label=_groups, y_label=_groups)
    for value in target:
        yield el("line", class_="rule", x1=x.start, x2=x.end, y1=y.at(value), y2=y.at(value), stroke_dasharray=_TARGET)
    entries = [(i, _dashes(curve), _step_label(curve)) for i, (curve, _, _) in enumerate(seen)]
    for i, (curve, steps, epsilons) in reversed(list(enumerate(seen))):  # the first on top
        points = [(float(a), float(b)) for a, b in zip(steps, epsilons, strict=True) if b > 0 or not log]
        yield from _curve(i, x, y, points, _dashes(curve))
    if not seen:
        yield _label("No curve over the steps", x, y)
    rules = [(_TARGET, f"Target: ε = {value:.6g}") for value in target]
    yield from _legend(x, foot, entries, rules)


def _trade_off(curves: Sequence[RateCurve], foot: float, top: float) -> Iterator[Node]:
    x = Scale(_LEAST_RATE, 1.0, _RIGHT, _RIGHT + _PANEL, log=True)
    y = Scale(_LEAST_RATE, 1.0, foot, top, log=True)
    yield el("text", "What an attacker can learn", class_="heading", x=x.start, y=top - 9)
    yield el("path", class_="shade", d=f"M{x.start:.1f} {foot:.1f}L{x.end:.1f} {top:.1f}L{x.end:.1f} {foot:.1f}Z")
    yield from frame(
        x, y, "False alarms: non-members taken for members (false positive rate)", "Members found (true positive rate)",
        x_label=_percent, y_label=_percent,
    )  # fmt: skip
    yield el("text", "worse than guessing", class_="faint end", x=x.end - 16, y=foot - 16)
    yield el("line", class_="rule", x1=x.start, y1=foot, x2=x.end, y2=top, stroke_dasharray=_GUESSING)
    for i, curve in reversed(list(enumerate(curves))):  # the first on top
        alarms, detections = _seen_rates(curve)
        yield from _curve(i, x, y, [(float(a), float(b)) for a, b in zip(alarms, detections, strict=True)], None)
    if not curves:
        yield _label("No trade-off curve", x, y)
    entries = [(i, None, _rate_label(curve)) for i, curve in enumerate(curves)]
    yield from _legend(x, foot, entries, [(_GUESSING, "Guessing: members found at the rate of false alarms")])


def _dashes(curve: StepCurve) -> str | None:
    return None if curve.sound else _CLAIM if curve.claimed else _ESTIMATE


def _curve(i: int, x: Scale, y: Scale, points: Points, dashes: str | None) -> Iterator[Node]:
    """The i-th curve with a few markers, placed apart from those of other curves."""
    colour = COLOURS[i % len(COLOURS)]
    if len(points) > 1:
        yield el("path", class_="curve", d=polyline(x, y, points), stroke=colour, stroke_dasharray=dashes)
    every = max(1, math.ceil(len(points) / _MARKS))
    for a, b in points[(i * every // 3) % every :: every]:
        yield marker(i, x.at(a), y.at(b), colour)


def _legend(
    x: Scale, foot: float, curves: Sequence[tuple[int, str | None, str]], rules: Sequence[tuple[str, str]]
) -> Iterator[Node]:
    """The legend of the curves, then of the straight lines."""
    top = foot + _BELOW
    entries: list[tuple[list[Node], str]] = []
    for i, dashes, label in curves:
        left, right, height = legend_line(x, top)
        colour = COLOURS[i % len(COLOURS)]
        line = el(
            "line", class_="curve", x1=left, x2=right, y1=height, y2=height, stroke=colour, stroke_dasharray=dashes
        )
        entries.append(([line, marker(i, (left + right) / 2, height, colour)], label))
        top += ROW * (label.count("\n") + 1)
    for dashes, label in rules:
        left, right, height = legend_line(x, top)
        rule = el("line", class_="rule", x1=left, x2=right, y1=height, y2=height, stroke_dasharray=dashes)
        entries.append(([rule], label))
        top += ROW
    yield from legend(x, foot + _BELOW, entries)


def _label(text: str, x: Scale, y: Scale) -> Node:
    return el("text", text, class_="faint mid", x=(x.start + x.end) / 2, y=(y.start + y.end) / 2)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


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
        label += f": ends at ε = {upward(epsilons[-1])}"
    return _wrap(label, _LINE)


def _rate_label(curve: RateCurve) -> str:
    alarms = curve.false_positive_rates
    if not alarms:
        return _wrap(f"{curve.label} (no points)", _LINE)
    if alarms[0] <= 0.001 <= alarms[-1]:
        detected = 1 - float(np.interp(0.001, alarms, curve.false_negative_rates))
        return _wrap(f"{curve.label}: {100 * detected:.3g} % of members at 0.1 % false alarms", _LINE)
    return _wrap(curve.label, _LINE)


def _finite(curve: StepCurve) -> tuple[Array, Array]:
    """Steps and epsilons without the infinite ones, shape (n,) both."""
    steps, epsilons = np.array(curve.steps, dtype=np.float64), np.array(curve.epsilons, dtype=np.float64)
    kept = epsilons < ENDLESS
    return steps[kept], epsilons[kept]


def _seen_rates(curve: RateCurve) -> tuple[Array, Array]:
    """False and true positive rates within the axes, shape (n,) both; interpolated, as lines bend on log axes."""
    alarms, missed = (np.array(side) for side in (curve.false_positive_rates, curve.false_negative_rates))
    if len(alarms) > 1:
        low, high = max(alarms[0], _LEAST_RATE), alarms[-1]
        dense = np.geomspace(low, high, 240) if low < high else alarms
        # At equal false positive rates, as where a curve begins with a step, the last point is the best.
        alarms, missed = dense, np.interp(dense, alarms, missed)
    kept = (alarms >= _LEAST_RATE) & (missed <= 1 - _LEAST_RATE)
    return alarms[kept], 1 - missed[kept]


def _groups(value: float) -> str:
    """A tick's number in plain digits, with thin spaces between thousands."""
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}".replace(",", "\u2009")
    return f"{value:.4g}"


def _wrap(text: str, width: int) -> str:
    """``text`` in lines of at most ``width`` characters, without characters that a plot cannot show."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return "\n".join(textwrap.wrap(shown, width)) or shown.strip()
