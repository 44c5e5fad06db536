"""The exposure of planted canaries: a histogram for each group, on one axis of bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privctl.show.html.values import Figure, evidence_table, figure, table
from privctl.show.page_data import ExposureGroup, ReportSource
from privctl.show.plain import clean
from privctl.show.svg.axes import RIGHT, WIDTH, Scale, tick_label
from privctl.show.svg.dots import DotRow, ReferenceLine, dots
from privctl.show.svg.dots import height as dots_height
from privctl.show.svg.shapes import Node, el
from privctl.show.text.style import number

_LEFT, _ROW, _TOP, _BELOW = 34.0, 92.0, 8.0, 44.0
_MEDIAN = "median bits, "
#: Most groups that are drawn.
_MOST = 6
_WORDS = (
    "Exposure of planted canaries in bits: how high each ranks among secrets that were never planted. Without "
    "memorization each further bit is half as likely (dashes)."
)


def exposure_figure(source: ReportSource) -> Figure | None:
    """Histograms of exposure if the scores could be read, otherwise medians and maxima; None without canaries."""
    evidence = [item for item in source.report.evidence if item.method.startswith("canary")]
    if not evidence:
        return None
    tables = [evidence_table(f"Canaries, {source.name}", evidence)]
    key, title = f"{source.key}-exposure", f"Exposure of canaries: {source.name}"
    groups = source.exposures[:_MOST]
    if not groups:
        rows = list(_medians(source))
        if not rows:
            return None
        marks = [ReferenceLine(value=1.0, name="no memorization")]
        notes = ["The scores file was not found, so medians (filled) and maxima (rings) are drawn."]
        return figure(
            key,
            title,
            _WORDS,
            dots_height(rows, marked=True),
            dots(rows, "exposure, bits", marks=marks),
            notes=notes,
            tables=tables,
        )
    counts = [(group.name, *(str(count) for count in group.counts)) for group in groups]
    most = max(len(group.counts) for group in groups)
    rows_behind = [(*row, *["0"] * (most + 1 - len(row))) for row in counts]
    tables.append(
        table("Canaries by bits of exposure", ("side", *(f"{i} to {i + 1}" for i in range(most))), rows_behind)
    )
    height = _TOP + _ROW * len(groups) + _BELOW
    return figure(key, title, _WORDS, height, _bars(groups, most), tables=tables)


def _medians(source: ReportSource) -> Iterator[DotRow]:
    for item in source.report.evidence:
        if item.quantity.startswith(_MEDIAN) and item.estimate is not None:
            name = item.quantity.removeprefix(_MEDIAN)
            top = item.details.get("max")
            text = f"median {number(item.estimate, 3)}, most {number(top, 3)}"
            yield DotRow(name=name, value=item.estimate, hollow=top, text=text, colour="lead")


def _bars(groups: Sequence[ExposureGroup], most: int) -> Iterator[Node]:
    x = Scale(0.0, float(max(most, 4)), _LEFT, WIDTH - RIGHT)
    foot = _TOP + _ROW * len(groups)
    for value in (tick for tick in x.ticks() if tick % 1 == 0):
        yield el("line", class_="grid", x1=x.at(value), x2=x.at(value), y1=_TOP, y2=foot)
        yield el("text", tick_label(value), class_="tick mid", x=x.at(value), y=foot + 15)
    yield el("text", "exposure, bits", class_="name mid", x=(_LEFT + WIDTH - RIGHT) / 2, y=foot + 34)
    for index, group in enumerate(groups):
        yield from _side_shapes(group, x, _TOP + _ROW * index, _TOP + _ROW * (index + 1))


def _side_shapes(group: ExposureGroup, x: Scale, top: float, foot: float) -> Iterator[Node]:
    total = sum(group.counts)
    expected = [total * 2.0**-bits / 2 for bits in range(len(group.counts))]
    y = Scale(0.0, max([*group.counts, *expected, 1.0]), foot, top + 26)
    yield el("text", clean(f"{group.name}: {total}", 60), class_="label", x=_LEFT, y=top + 15)
    yield el("line", class_="axis", x1=_LEFT, x2=WIDTH - RIGHT, y1=foot, y2=foot)
    yield el("text", f"{y.high:.0f}", class_="tick end", x=_LEFT - 6, y=y.at(y.high) + 4)
    for bits, count in enumerate(group.counts):
        if count:
            left, right = x.at(bits) + 1, x.at(bits + 1) - 1
            tip = f"{group.name}: {count} of {total} at {bits} to {bits + 1} bits"
            yield el(
                "rect", class_="bar " + ("lead" if group.included else "other"), x=left, width=max(1.0, right - left),
                y=y.at(count), height=foot - y.at(count), data_tip=tip,
            )  # fmt: skip
    steps = [f"M{x.at(0):.1f} {y.at(expected[0]):.1f}" if expected else ""]
    steps += [f"V{y.at(value):.1f}H{x.at(bits + 1):.1f}" for bits, value in enumerate(expected)]
    yield el("path", class_="chance", d="".join(steps), data_tip="without memorization")
