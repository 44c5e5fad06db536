"""Figures of training curves, and of a protection plan by cap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from privctl.reports.parameters import (
    ProtectionParameters,
    TrainingParameters,
    TriedCap,
    readable,
)
from privctl.show.html.values import Figure, figure, table
from privctl.show.page_data import ReportSource
from privctl.show.svg.axes import BOTTOM, LEFT, TOP, WIDTH, Scale, frame, linear, polyline
from privctl.show.svg.dots import DotRow, dots
from privctl.show.svg.dots import height as dots_height
from privctl.show.svg.shapes import Node, el
from privctl.show.text.style import number

_HEIGHT = 250.0
#: The width reserved for the names at the curves' ends.
_NAMES = 92.0
#: Panels: title, name of the y axis, and the measures in it with their labels.
_PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Loss", "loss, nats", {"training_loss": "training", "held_out_loss": "held out", "public_loss": "public"}),
    (
        "Accuracy and clipping",
        "share",
        {
            "held_out_accuracy": "accuracy",
            "clipped_fraction": "clipped",
            "clipped_derivatives": "clipped",
            "zeroed_fraction": "zeroed",
        },
    ),
)
_KINDS = ("lead", "second", "third", "fourth")
_MOST = 2000
_MOST_COLUMNS = 16
_MOST_CAPS = 200


def training_figures(source: ReportSource) -> Iterator[Figure]:
    """A figure for each kind of measure in the history of epochs; the table of all measures is below the first."""
    parameters = readable(TrainingParameters, source.report)
    history = () if parameters is None else parameters.history[:_MOST]
    keys = sorted({key for entry in history for key in entry})[:_MOST_COLUMNS]
    body = [(str(i), *(_cell(entry.get(key)) for key in keys)) for i, entry in enumerate(history, start=1)]
    tables = [table(f"Every epoch, {source.name}", ("epoch", *(k.replace("_", " ") for k in keys)), body)]
    for index, (title, axis, measures) in enumerate(_PANELS):
        series = [(name, _series(history, key)) for key, name in measures.items()]
        series = [(name, points) for name, points in series if points]
        if series:
            yield figure(
                f"{source.key}-training-{index}",
                f"{title} while training: {source.name}",
                f"{', '.join(name for name, _ in series).capitalize()} after each epoch.",
                _HEIGHT,
                _curves(series, axis),
                tables=tables,
            )
            tables = []


def _cell(value: float | None) -> str:
    """A measure of an epoch as text; large whole numbers are not rounded."""
    return f"{value:,.0f}" if value is not None and value == value // 1 and value >= 1000 else number(value, 4)


def _is_drawable(value: float) -> bool:
    """Whether ``value`` can be drawn."""
    return abs(value) < 1e300


def _series(history: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [
        (float(i), entry[key]) for i, entry in enumerate(history, start=1) if key in entry and _is_drawable(entry[key])
    ]


def _curves(series: Sequence[tuple[str, list[tuple[float, float]]]], axis: str) -> Iterator[Node]:
    values = [value for _, points in series for _, value in points]
    last = max(a for _, points in series for a, _ in points)
    x = Scale(min(1.0, last - 1), max(last, 2.0), LEFT, WIDTH - _NAMES)
    y = linear(values, _HEIGHT - BOTTOM, TOP)
    yield from frame(x, y, "epoch", axis)
    taken: list[float] = []
    for (name, points), kind in zip(series, _KINDS, strict=False):
        if len(points) > 1:
            yield el("path", class_=f"curve {kind}", d=polyline(x, y, points), data_tip=name)
        if len(points) <= 40:
            for a, b in points:
                tip = f"{name}, epoch {a:.0f}: {number(b, 4)}"
                yield el("circle", class_=f"dot {kind}", cx=x.at(a), cy=y.at(b), r=2.5, data_tip=tip)
        end = y.at(points[-1][1])
        while any(abs(end - other) < 15 for other in taken):
            end += 15 if end < _HEIGHT - BOTTOM - 20 else -31
        taken.append(end)
        yield el("text", f"{name} {number(points[-1][1], 3)}", class_=f"label {kind}", x=x.end + 8, y=end + 4)


def plan_figures(source: ReportSource) -> Iterator[Figure]:
    """Figures of a protection plan: data kept against noise, by cap, and the distribution of secrets' bounds."""
    parameters = readable(ProtectionParameters, source.report)
    caps = list(_caps_table(() if parameters is None else parameters.caps[:_MOST_CAPS]))
    if caps:
        yield figure(
            f"{source.key}-caps",
            f"Data kept against noise: {source.name}",
            "Each dot is one cap: the share of the records' weight that is kept, and the noise that is then needed.",
            _HEIGHT,
            _kept_shapes(caps),
            tables=[table("Caps tried", ("cap", "kept", "noise multiplier"), [
                (name, f"{100 * kept:.4g} %", number(noise)) for name, kept, noise in caps
            ])],
        )  # fmt: skip
    spread = [item for item in source.report.evidence if "quantile 0.5" in item.details]
    for index, item in enumerate(spread):
        quantiles = {name.removeprefix("quantile "): value for name, value in item.details.items()}
        rows = [
            DotRow(name=f"{_ordinal(name)} of secrets", value=value, text=number(value, 4), colour="lead")
            for name, value in quantiles.items()
        ]
        yield figure(
            f"{source.key}-spread-{index}",
            f"{item.quantity.capitalize()}: {source.name}",
            f"Quantiles over {sum(item.samples.values()):,} secrets.",
            dots_height(rows),
            dots(rows, item.quantity),
            tables=[table(item.quantity, ("quantile", "value"), [(n, number(v)) for n, v in quantiles.items()])],
        )


def _ordinal(name: str) -> str:
    return {"0": "least", "0.5": "median", "1": "most"}.get(name, f"quantile {name}")


def _caps_table(caps: Sequence[TriedCap]) -> Iterator[tuple[str, float, float]]:
    for entry in caps:
        if _is_drawable(entry.kept) and _is_drawable(entry.noise_multiplier):
            yield "none" if entry.cap is None else f"{entry.cap:.4g}", entry.kept, entry.noise_multiplier


def _kept_shapes(caps: Sequence[tuple[str, float, float]]) -> Iterator[Node]:
    x = linear([noise for _, _, noise in caps], LEFT, WIDTH - 40)
    y = Scale(0.0, 100.0, _HEIGHT - BOTTOM, TOP)
    yield from frame(x, y, "noise multiplier", "weight kept, %")
    places = sorted((x.at(noise), y.at(100 * kept), name, kept, noise) for name, kept, noise in caps)
    yield el("path", class_="curve second", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b, *_ in places))
    before = (-math.inf, -math.inf)
    for a, b, name, kept, noise in places:
        tip = f"cap {name}: {100 * kept:.4g} % kept, noise multiplier {number(noise, 4)}"
        yield el("circle", class_="dot lead", cx=a, cy=b, r=4.5, data_tip=tip)
        if math.hypot(a - before[0], b - before[1]) > 26:
            above = b > 30
            yield el("text", f"cap {name}", class_="tick mid", x=a, y=b - 9 if above else b + 18)
            before = (a, b)
