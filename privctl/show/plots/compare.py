"""The comparison of models as a file: utility, epsilon and attack success of each, with a legend."""

from __future__ import annotations

import textwrap
from typing import Literal

from privctl.show.comparison import Comparison
from privctl.show.plots.picture import picture_bytes
from privctl.show.svg.axes import WIDTH
from privctl.show.svg.compare import MARKS, TITLE, compare_shapes, height
from privctl.show.svg.shapes import el

_LINE, _LETTERS = 13.0, 74


def draw(comparison: Comparison, format: Literal["svg", "png"]) -> bytes:  # noqa: A002 - the name readers expect
    """The plot as the bytes of a file of that format; equal for equal input. Raises ValueError for another format."""
    top = height(comparison) + 8
    lines = [line for note in (MARKS, *comparison.notes) for line in textwrap.wrap(note, _LETTERS)]
    below = [el("text", line, class_="faint", x=10.0, y=top + _LINE * i) for i, line in enumerate(lines)]
    shapes = [*compare_shapes(comparison), *below]
    return picture_bytes(shapes, WIDTH, top + _LINE * len(lines) + 4, format, words=(TITLE, MARKS))
