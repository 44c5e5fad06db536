from __future__ import annotations

import math
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from privctl.plan.curves import AccountCurves, RateCurve, StepCurve
from privctl.show.plots.curves import draw
from tests.few import few

TIGHT = StepCurve(label="Tight", sound=True, steps=(1, 10, 100, 1000), epsilons=(0.2, 0.4, 0.7, 1.8))
CLT = StepCurve(label="Limit theorem", sound=False, steps=(1, 1000), epsilons=(0.1, 1.6))
PAPER = StepCurve(label="Paper, table 2", sound=False, claimed=True, steps=(1000,), epsilons=(1.0,))
RATES = RateCurve(
    label="Any attack", false_positive_rates=(0.0, 0.0, 0.2, 1.0), false_negative_rates=(1.0, 0.99, 0.59, 0.0)
)
CURVES = AccountCurves(
    title="run.json: ε ≤ 1.8 at δ = 1e-5",
    subtitle="1000 steps, Poisson batches",
    epsilon_over_steps=(TIGHT, CLT, PAPER),
    target=2.0,
    trade_off=(RATES,),
)


def text_of(curves: AccountCurves) -> list[str]:
    """Every piece of text of the SVG, which must be valid XML."""
    root = ElementTree.fromstring(draw(curves, "svg"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_label_can_be_searched_for() -> None:
    texts = text_of(CURVES)
    for expected in (
        CURVES.title,
        CURVES.subtitle,
        "Tight: ends at ε = 1.8",
        "Limit theorem (estimate, not a bound): ends at ε = 1.6",
        "Paper, table 2 (claimed, not checked): ends at ε = 1",
        "Target: ε = 2",
        "Any attack: 1.2 % of members at 0.1 % false alarms",
        "Training steps",
        "Epsilon (lower is more private)",
        "Members found (true positive rate)",
        "0.1 %",
    ):
        assert expected in texts


def test_only_a_bound_is_drawn_solid() -> None:
    def dashes(curve: StepCurve) -> int:
        picture = replace(CURVES, epsilon_over_steps=(curve,), target=None, trade_off=())
        return draw(picture, "svg").count(b"stroke-dasharray")

    plain = dashes(replace(TIGHT, steps=(1, 1000), epsilons=(0.1, 1.6)))
    assert dashes(CLT) == plain + 2  # the curve and its line in the legend
    assert dashes(replace(CLT, claimed=True)) == plain + 2
    assert draw(replace(CURVES, epsilon_over_steps=(CLT,)), "svg") != draw(
        replace(CURVES, epsilon_over_steps=(replace(CLT, claimed=True),)), "svg"
    )


def test_a_png_has_its_signature_and_its_size() -> None:
    data = draw(CURVES, "png")
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1840
    assert 900 < height < 1300


@pytest.mark.slow
def test_more_curves_make_a_taller_page_not_a_fuller_one() -> None:
    many = replace(CURVES, epsilon_over_steps=tuple(replace(TIGHT, label=f"curve {i}") for i in range(12)))
    (few_height,), (many_height,) = (struct.unpack(">I", draw(c, "png")[20:24]) for c in (CURVES, many))
    assert many_height > few_height + 8 * 30


@pytest.mark.parametrize("format_", few(["svg", "png"], 0))
def test_the_same_curves_give_the_same_bytes(format_: str) -> None:
    assert draw(CURVES, format_) == draw(CURVES, format_)  # type: ignore[arg-type]


def test_another_process_with_other_settings_gives_the_same_bytes(tmp_path: Path, root: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\ntext.usetex: True\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])\n"
        "from test_curves import CURVES; from privctl.show.plots.curves import draw\n"
        "sys.stdout.buffer.write(draw(CURVES, 'svg'))\n"
        "assert 'matplotlib' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(root), str(Path(__file__).parent)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert found.stdout == draw(CURVES, "svg")


def test_nothing_of_the_process_is_changed() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(CURVES, "svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("format_", ["svg", "png"])
def test_curves_of_one_point_are_drawn(format_: str) -> None:
    one = RateCurve(label="One attack", false_positive_rates=(0.01,), false_negative_rates=(0.9,))
    assert draw(replace(CURVES, epsilon_over_steps=(PAPER,), trade_off=(one,)), format_)  # type: ignore[arg-type]


def test_infinities_are_left_out_and_said() -> None:
    partly = StepCurve(label="Naive", sound=True, steps=(1, 2, 3), epsilons=(1.0, math.inf, math.inf))
    wholly = StepCurve(label="None", sound=True, steps=(1, 2), epsilons=(math.inf, math.inf))
    texts = text_of(replace(CURVES, epsilon_over_steps=(partly, wholly)))
    assert "Naive (infinite at 2 of 3 points, left out)" in texts
    assert "None (infinite, not drawn)" in texts


def test_without_curves_the_panels_say_so() -> None:
    texts = text_of(replace(CURVES, epsilon_over_steps=(), target=None, trade_off=()))
    assert "No curve over the steps" in texts
    assert "No trade-off curve" in texts


def test_curves_far_apart_get_a_logarithmic_axis() -> None:
    far = replace(TIGHT, label="Naive", epsilons=(0.9, 9.0, 90.0, 900.0))
    assert "1\u2009000" in text_of(replace(CURVES, epsilon_over_steps=(TIGHT, far)))
    assert "10" not in text_of(CURVES)
    assert "10" in text_of(replace(CURVES, epsilon_over_steps=(TIGHT, far)))


@pytest.mark.parametrize("label", ["$\\frac{", "_hidden", "<b>&amp;", "a\x00\x1b[31mb", "", "差分", "w" * 500])
def test_hostile_labels_stay_text(label: str) -> None:
    curves = replace(
        CURVES, title=label, epsilon_over_steps=(replace(TIGHT, label=label),), trade_off=(replace(RATES, label=label),)
    )
    assert any("ends at ε" in text for text in text_of(curves))
    if 0 < len(label) < 10 and label.isprintable():
        assert f"{label}: ends at ε = 1.8" in text_of(curves)


@pytest.mark.parametrize("epsilons", few([(0.0, 0.0), (5e-324, 1e299), (0.0, 1e-12), (1e300, 1.7e308)], 1, whole=True))
def test_extreme_values_are_drawn(epsilons: tuple[float, ...]) -> None:
    extreme = StepCurve(label="Extreme", sound=True, steps=(0, 1e15), epsilons=epsilons)
    assert draw(replace(CURVES, epsilon_over_steps=(extreme,), target=None), "png")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(TIGHT, steps=(1,)), "1 steps and 4 epsilons"),
        (lambda: replace(TIGHT, steps=(1, 3, 2, 4)), "steps must rise"),
        (lambda: replace(TIGHT, steps=(1, 2, 3, math.inf)), "steps must be finite"),
        (lambda: replace(TIGHT, epsilons=(1, 2, 3, math.nan)), "epsilons must be 0 or more"),
        (lambda: replace(TIGHT, epsilons=(1, 2, 3, -1)), "epsilons must be 0 or more"),
        (lambda: replace(RATES, false_negative_rates=(1, 1, 1, 2)), "between 0 and 1"),
        (lambda: replace(RATES, false_positive_rates=(0, 0.2, 0.1, 1)), "must rise"),
        (lambda: replace(CURVES, target=math.inf), "target is inf"),
        (lambda: draw(CURVES, "pdf"), "format is 'pdf'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_drawn_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
