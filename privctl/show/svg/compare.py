"""The comparison of models: one numbered dot per model, with a legend below.

The y axis is utility and the x axis epsilon; a dot's size and colour show what attacks found. Models without a useful
epsilon are in a separate band. The numbers next to the dots avoid each other, the dots and the frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privctl.show.comparison import ComparedModel, Comparison, attack_words, epsilon_words
from privctl.show.plain import clean
from privctl.show.svg.axes import LEFT, RIGHT, TOP, WIDTH, Scale, frame, linear, logarithmic
from privctl.show.svg.shapes import Node, el
from privctl.show.text.style import number

TITLE = "Utility, epsilon and attack success"
MARKS = (
    "One dot per model. Height is utility; left to right is the epsilon that follows; models without a useful one are "
    "in the shaded band. Larger dots: more successful attacks. The legend shows each attack's AUC with its interval; "
    "the dashed line is guessing. Red: attacks found a leak. Brown: a small or uncertain one. Blue: they found "
    "nothing. Hollow: not attacked."
)
#: Most models of one figure.
MOST = 20
#: Models with a larger epsilon are drawn in the band of models without a useful one.
LARGEST = 1000.0
_FOOT, _BAND, _GAP = 250.0, 96.0, 10.0
_KEY, _ROW, _INDENT, _AREA = 62.0, 34.0, 28.0, 120.0
#: The width of a character, and the height of a line, on a phone, where text is larger.
LETTER, LINE = 8.6, 15.0
_LEAST_DOT, _LARGEST_DOT = 4.0, 11.0
#: The ratio of utilities above which their axis is logarithmic.
_FAR_APART = 20.0
_DIRECTIONS = tuple(math.pi * k / 8 for k in (0, 8, 12, 4, 14, 10, 2, 6, 15, 1, 9, 7, 13, 11, 3, 5))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two rectangles overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@dataclass(frozen=True, slots=True)
class Dot:
    """The dot of one model: its centre and radius."""

    x: float
    y: float
    radius: float

    @property
    def box(self) -> Box:
        """The rectangle around the dot, with a margin of 1."""
        reach = self.radius + 1
        return Box(self.x - reach, self.y - reach, self.x + reach, self.y + reach)


def height(comparison: Comparison) -> float:
    """The height of the whole figure."""
    return _FOOT + _KEY + _ROW * min(len(comparison.models), MOST) + 4


def compare_shapes(comparison: Comparison) -> Iterator[Node]:
    """The shapes of the figure, WIDTH wide."""
    models = comparison.models[:MOST]
    heights = [_height_of(model, comparison) for model in models]
    x, band = _epsilon_scale(models), Scale(0.0, 1.0, WIDTH - RIGHT - _BAND, WIDTH - RIGHT)
    y = _utility_scale([value for value in heights if value is not None], comparison.quantity)
    yield el("path", class_="unbounded", d=f"M{band.start:.1f} {_FOOT:.1f}H{band.end:.1f}V{TOP:.1f}H{band.start:.1f}Z")
    yield from frame(x, y, "ε that follows (log scale)", y_axis_name(comparison))
    for line, words in enumerate(("no useful ε:", f"none, or > {LARGEST:g}")):
        yield el("text", words, class_="tick mid", x=(band.start + band.end) / 2, y=_FOOT + 33 + LINE * line)
    placed = _dots(models, heights, x, band, y)
    boxes = label_boxes(placed)
    for i, dot in sorted(placed.items(), key=lambda item: -item[1].radius):
        yield _dot(i, dot, models[i])
    for i, dot in placed.items():
        yield from _label(i, dot, boxes[i], plain=boxes[i].left >= band.start)
    yield from _legend(models)


def y_axis_name(comparison: Comparison) -> str:
    """The name of the y axis, and which direction is better."""
    if comparison.quantity is None:
        return "attack, AUC (lower is better)"
    better = "higher" if "accuracy" in comparison.quantity else "lower"
    return f"{comparison.quantity} ({better} is better)"


def label_boxes(dots: dict[int, Dot]) -> dict[int, Box]:
    """The box of each dot's number: near the dot and, if possible, free of other dots and numbers."""
    taken = [dot.box for dot in dots.values()]
    inside = Box(LEFT, TOP, WIDTH - RIGHT, _FOOT)
    boxes: dict[int, Box] = {}
    for i, dot in dots.items():
        wide = LETTER * len(str(i + 1)) + 2
        boxes[i] = _free_box(dot, wide, inside, [*taken, *boxes.values()])
    return boxes


def _free_box(dot: Dot, wide: float, inside: Box, taken: Sequence[Box]) -> Box:
    """The nearest free box, tried at growing distances; to the right of the dot if none is free."""
    first = None
    for step in range(40):
        away = dot.radius + 3 + 4 * step
        for angle in _DIRECTIONS:
            x = dot.x + math.cos(angle) * (away + wide / 2)
            y = dot.y - math.sin(angle) * (away + LINE / 2)
            box = Box(x - wide / 2, y - LINE / 2, x + wide / 2, y + LINE / 2)
            first = first or box
            within = inside.left <= box.left and box.right <= inside.right
            within = within and inside.top <= box.top and box.bottom <= inside.bottom
            if within and not any(box.meets(other) for other in taken):
                return box
    assert first is not None
    return first


def _height_of(model: ComparedModel, comparison: Comparison) -> float | None:
    """The model's value on the y axis; None if it has none."""
    if comparison.quantity is None:
        return None if model.attack is None else model.attack.estimate
    return model.utility


def _epsilon_scale(models: Sequence[ComparedModel]) -> Scale:
    """The scale of epsilon, which always includes 0.1 to 10, so that strong and weak guarantees look different."""
    values = [model.epsilon for model in models if model.epsilon is not None and 0 < model.epsilon <= LARGEST]
    return logarithmic([0.1, 10.0, *(max(value, 1e-3) for value in values)], LEFT, WIDTH - RIGHT - _BAND - _GAP)


def _utility_scale(values: Sequence[float], quantity: str | None) -> Scale:
    finite = [value for value in values if math.isfinite(value)]
    if quantity is not None and "accuracy" in quantity:
        return Scale(0.0, 1.0, _FOOT, TOP + 8)
    if quantity is None:
        return Scale(0.4, 1.0, _FOOT, TOP + 8)
    if finite and min(finite) > 0 and max(finite) / min(finite) > _FAR_APART:
        return logarithmic(finite, _FOOT, TOP + 8)
    # Infinite values are drawn at the end of the axis, apart from the largest finite value.
    above = [1.5 * max(finite)] if finite and len(finite) < len(values) else []
    return linear([*finite, *above] or [1.0], _FOOT, TOP + 8)


def _dots(
    models: Sequence[ComparedModel], heights: Sequence[float | None], x: Scale, band: Scale, y: Scale
) -> dict[int, Dot]:
    """The dots by the index of their model; in the band, overlapping dots are placed side by side."""
    placed: dict[int, Dot] = {}
    for i, (model, value) in enumerate(zip(models, heights, strict=True)):
        if value is None:
            continue
        dot = Dot(x.at(model.epsilon or 1.0), y.at(value), _radius(_auc(model)))
        placed[i] = dot
    unbounded = [i for i in placed if models[i].epsilon is None or (models[i].epsilon or 0) > LARGEST]
    return placed | _side_by_side({i: placed[i] for i in unbounded}, band)


def _side_by_side(dots: dict[int, Dot], band: Scale) -> dict[int, Dot]:
    """The dots of the band, spread horizontally where they would overlap."""
    moved: dict[int, Dot] = {}
    order = sorted(dots, key=lambda i: dots[i].y)
    groups: list[list[int]] = []
    for i in order:
        if groups and dots[i].y - dots[groups[-1][-1]].y < dots[i].radius + dots[groups[-1][-1]].radius + LINE:
            groups[-1].append(i)
        else:
            groups.append([i])
    for group in groups:
        for column, i in enumerate(sorted(group)):
            x = band.start + (band.end - band.start) * (column + 0.5) / len(group)
            moved[i] = Dot(x, dots[i].y, dots[i].radius)
    return moved


def _auc(model: ComparedModel) -> float | None:
    return None if model.attack is None else model.attack.estimate


def _radius(area: float | None) -> float:
    """The radius of the dot for an attack with this AUC: smallest at 0.5 or below, largest at 1."""
    share = 0.0 if area is None else min(max(2 * (area - 0.5), 0.0), 1.0)
    return _LEAST_DOT + (_LARGEST_DOT - _LEAST_DOT) * share


def _dot(i: int, dot: Dot, model: ComparedModel) -> Node:
    tip = f"{i + 1}. {model.name}: ε {epsilon_words(model)}; {attack_words(model)}"
    kind = "hollow none" if model.attack is None else f"dot {model.found}"
    return el("circle", class_=kind, cx=dot.x, cy=dot.y, r=dot.radius, data_tip=tip)


def _label(i: int, dot: Dot, box: Box, *, plain: bool) -> Iterator[Node]:
    """The number on a white background that hides grid lines; ``plain``: without the background."""
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    if math.hypot(x - dot.x, y - dot.y) > dot.radius + 16:  # far from its dot, so connect them
        yield el("line", class_="leader", x1=dot.x, y1=dot.y, x2=x, y2=y)
    plate = f"M{box.left:.1f} {box.top:.1f}H{box.right:.1f}V{box.bottom:.1f}H{box.left:.1f}Z"
    if not plain:
        yield el("path", class_="plate", d=plate)
    yield el("text", str(i + 1), class_="label strong mid", x=x, y=y + 4)


def _legend(models: Sequence[ComparedModel]) -> Iterator[Node]:
    """One row per model: number, name, figures, and the interval of the attack's AUC."""
    area = Scale(0.4, 1.0, WIDTH - RIGHT - _AREA, WIDTH - RIGHT)
    guess = area.at(0.5)
    for i, model in enumerate(models):
        top = _FOOT + _KEY + _ROW * i
        kind = "hollow none" if model.attack is None else f"dot {model.found}"
        attack, room = attack_words(model), WIDTH - RIGHT - _INDENT
        name = clean(f"{i + 1}  {model.name}", int((room - LETTER * len(attack)) / LETTER) - 1)
        yield el("circle", class_=kind, cx=14.0, cy=top + 7, r=4.5)
        yield el("text", name, class_="label strong", x=_INDENT, y=top + 11)
        yield el("text", attack, class_="label end", x=WIDTH - RIGHT, y=top + 11)
        follows = "no ε follows" if model.epsilon is None else f"ε {epsilon_words(model)}"
        label = "; ".join([follows, *([number(model.utility, 4)] if model.utility is not None else [])])
        yield el("text", clean(label, int((room - _AREA) / 7.2)), class_="tick", x=_INDENT, y=top + 26)
        best = model.attack
        if best is not None and best.lower is not None and best.upper is not None:
            yield el("line", class_="guess", x1=guess, x2=guess, y1=top + 17, y2=top + 27, stroke_dasharray="3 2")
            ends = area.at(best.lower), area.at(best.upper)
            yield el("line", class_=f"range {model.found}", x1=ends[0], x2=ends[1], y1=top + 22, y2=top + 22)
            if best.estimate is not None:
                yield el("circle", class_=f"dot {model.found}", cx=area.at(best.estimate), cy=top + 22, r=3.5)
