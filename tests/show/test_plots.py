"""A picture as a file: what stands in it, and that both formats are painted from the same shapes."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from privctl.show.plots.losses import LossPicture, draw
from privctl.show.plots.picture import COLOURS, marker, picture_bytes
from privctl.show.svg.axes import Scale, frame, tick_label
from privctl.show.svg.dots import DotRow, ReferenceLine, dots
from privctl.show.svg.shapes import el

WIDTH, HEIGHT = 90.0, 72.0
SHAPES = [
    el("path", d="M10 10H30V30H10Z", fill="#FF0000"),
    el("path", d="M40 10L60 10L60 30L40 30Z", fill="#0000FF", opacity="0.5"),
    el("circle", cx=20.0, cy=50.0, r=8.0, fill="#00FF00", stroke="#000000", stroke_width=2.0),
    el("line", x1=40.0, x2=80.0, y1=50.0, y2=50.0, stroke="#123456", stroke_width=4.0),
    el("line", x1=40.0, x2=80.0, y1=60.0, y2=60.0, stroke="#123456", stroke_width=4.0, stroke_dasharray="8 8"),
]


def painted(shapes: list, width: float = WIDTH, height: float = HEIGHT) -> np.ndarray:
    """Pixels, shape (rows, columns, 3)."""
    with Image.open(io.BytesIO(picture_bytes(shapes, width, height, "png"))) as image:
        return np.asarray(image.convert("RGB"))


def at(pixels: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    return tuple(int(part) for part in pixels[round(y * 160 / 72), round(x * 160 / 72)])


def test_a_png_has_every_shape_at_its_place_in_its_colour() -> None:
    pixels = painted(SHAPES)
    assert pixels.shape == (160, 200, 3)
    assert at(pixels, 20, 20) == (255, 0, 0)
    assert at(pixels, 50, 20) == pytest.approx((127, 127, 255), abs=1)
    assert at(pixels, 20, 50) == (0, 255, 0)
    assert at(pixels, 20, 58) == (0, 0, 0)
    assert at(pixels, 60, 50) == (0x12, 0x34, 0x56)
    # Dashes and gaps of 8 points each: from 40 to 48, from 56 to 64, from 72 to 80.
    assert [at(pixels, x, 60) == (255, 255, 255) for x in (44, 52, 60, 68, 76)] == [False, True, False, True, False]
    assert at(pixels, 5, 5) == at(pixels, 35, 20) == (255, 255, 255)


def test_text_is_painted_where_it_stands_and_upwards_where_it_is_turned() -> None:
    def ink(shape) -> tuple[float, float, float, float]:
        rows, columns = np.nonzero(painted([shape]).min(axis=2) < 128)
        return tuple(float(side) * 72 / 160 for side in (columns.min(), columns.max(), rows.min(), rows.max()))

    left, right, _, bottom = ink(el("text", "HHHH", class_="tick end", x=60.0, y=40.0))
    assert right == pytest.approx(60, abs=2.5)  # as fonts and their rendering go
    assert bottom == pytest.approx(40, abs=1)
    assert 20 < right - left < 40
    left, right, top, bottom = ink(el("text", "HHHH", class_="name mid", transform="translate(30 40) rotate(-90)"))
    assert (top + bottom) / 2 == pytest.approx(40, abs=1.5)
    assert right == pytest.approx(30, abs=1)
    assert right - left < 10


def test_an_svg_says_everything_itself_and_escapes_its_texts() -> None:
    shape = el("text", "<b>&\u202e", class_="name mid", x=1.0, y=2.0)
    root = ElementTree.fromstring(picture_bytes([shape], WIDTH, HEIGHT, "svg"))
    assert (root.get("viewBox"), root.get("width")) == ("0 0 90 72", "90pt")
    (text,) = root.iter("{http://www.w3.org/2000/svg}text")
    assert text.text == "<b>&\\u202e"
    assert text.attrib == {"fill": "#222222", "font-size": "9.5", "text-anchor": "middle", "x": "1", "y": "2"}
    assert not [e for e in root.iter() if e.get("class")]


def test_a_class_that_stands_for_nothing_is_an_error() -> None:
    with pytest.raises(KeyError, match="unheard-of"):
        picture_bytes([el("line", class_="unheard-of")], WIDTH, HEIGHT, "svg")


def test_every_curve_has_a_marker_of_its_own() -> None:
    shapes = [str(marker(i, 10.0, 10.0, COLOURS[0])) for i in range(6)]
    assert len(set(shapes)) == 6
    assert str(marker(6, 10.0, 10.0, COLOURS[0])) == shapes[0]


def test_ticks_of_a_tiny_scale_differ() -> None:
    ticks = Scale(0.0, 1e-12, 0.0, 100.0).ticks()
    assert len(set(ticks)) == len(ticks) > 3


def test_a_frame_labels_its_ticks_as_asked() -> None:
    x, y = Scale(0.0, 1.0, 60.0, 300.0), Scale(0.0, 1.0, 200.0, 20.0)
    usual = [str(node) for node in frame(x, y, "x", "y")]
    assert any("translate(12 110)" in node for node in usual)
    assert [str(node) for node in frame(x, y, "x", "y", x_label=tick_label)] == usual
    assert sum("100 %" in str(node) for node in frame(x, y, "x", "y", y_label=lambda value: f"{100 * value:g} %")) == 1


def law(shift: float) -> LossPicture:
    """A Gaussian mechanism's law with a mean loss of ``shift``: its variance is twice that."""
    losses = np.linspace(shift - 8, shift + 8, 400)
    density = np.exp(-((losses - shift) ** 2) / (4 * shift)) / math.sqrt(4 * math.pi * shift)
    epsilons = np.linspace(0, 6, 50)
    share = np.maximum(-np.expm1(np.minimum(epsilons[:, None] - losses, 0.0)), 0.0)
    deltas = (share * density).sum(axis=1) * (losses[1] - losses[0])
    return LossPicture(
        name="<law>", losses=losses, density=density, epsilons=epsilons, deltas=deltas, epsilon=2.0, delta=1e-3
    )


def test_the_law_of_a_loss_is_drawn_with_its_claim() -> None:
    root = ElementTree.fromstring(draw(law(0.5), "svg"))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("<law>: epsilon 2, delta 0.001", "delta", "epsilon", "what follows, at most", "claimed", "Density"):
        assert label in texts
    fills = [e.get("fill") for e in root.iter("{http://www.w3.org/2000/svg}path")]
    assert fills.count("#D55E00") == 2  # delta's area, and its sample below
    assert draw(law(0.5), "png").startswith(b"\x89PNG")


def test_a_claim_beyond_all_losses_is_drawn_without_an_area() -> None:
    beyond = replace(law(0.5), epsilon=50.0, delta=0.0, deltas=np.zeros(50))
    fills = [e.get("fill") for e in ElementTree.fromstring(draw(beyond, "svg")).iter()]
    assert fills.count("#D55E00") == 2  # the samples alone


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_loss_of_one_value_and_an_endless_curve_are_drawn(kind: str) -> None:
    one, endless = np.full(1, 0.7), np.full(3, np.inf)
    picture = replace(law(0.5), losses=one, density=one, epsilons=endless, deltas=np.full(3, 0.1))
    drawn = draw(picture, kind)  # type: ignore[arg-type]
    assert b"nan" not in drawn or kind == "png"
    assert b'"inf' not in drawn


def test_no_mark_strikes_out_a_name() -> None:
    """The line that marks the noise is drawn beside the dots, below the names of the rows."""
    rows = [DotRow(name=f"a tensor of some name {i}", value=0.1 * (i + 1), text="10 % noise") for i in range(4)]
    marks = [ReferenceLine(value=0.2, name="noise")]
    shapes = [dict(node.attributes) for node in dots(rows, "root mean square", marks=marks)]
    drawn = [shape for shape in shapes if shape.get("class") == "mark"]
    assert len(drawn) == 4
    for index, each in enumerate(drawn):
        name = 8.0 + 14.0 + 34.0 * index + 13  # the foot of the row's name
        assert name < float(each["y1"]) < float(each["y2"]) < name + 34 - 8


def test_the_plot_s_axis_name_stands_clear_of_its_numbers_and_the_title_fits() -> None:
    deltas = np.array([0.02, 1e-3, 1e-5, 1e-8, 1e-22])
    picture = LossPicture(
        name="a guarantee of a very long name that no title has room for",
        losses=np.linspace(-1, 1, 9),
        density=np.ones(9),
        epsilons=np.linspace(0, 2, 5),
        deltas=deltas,
        epsilon=1.0,
        delta=1e-5,
    )
    nodes = [node for node in ElementTree.fromstring(draw(picture, "svg")).iter() if node.tag.endswith("text")]
    (title,) = [node.text or "" for node in nodes if node.get("font-size") == "14"]
    assert len(title) * 9 < 756
    assert "10⁻²²" not in {node.text for node in nodes}, "what is far below the claim is not drawn"
    # A turned name is 10 points wide about its line; a letter of a number takes 5.6.
    places = [float(node.get("transform", "").split("(")[1].split()[0]) for node in nodes if node.get("transform")]
    numbers = [(float(node.get("x", "")), node.text or "") for node in nodes if node.get("text-anchor") == "end"]
    assert len(places) == 2
    assert len(numbers) > 6
    for end, label in numbers:
        nearest = max(place for place in places if place < end)
        assert nearest + 5 < end - 5.6 * len(label), label
