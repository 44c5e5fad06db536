"""Utility against epsilon against attack: what is drawn is what reports hold, and nothing covers anything."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from privctl.cli import run
from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import Guarantee, Status
from privctl.domain.report import PrivacyReport
from privctl.domain.strength import Severity
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import write_report
from privctl.show.comparison import ComparedModel, Comparison, compare
from privctl.show.html.page import page
from privctl.show.leaks import MEMBERSHIP
from privctl.show.page_data import JudgedSubject, PageData, ReportSource
from privctl.show.plots.compare import draw
from privctl.show.svg.axes import WIDTH, Scale
from privctl.show.svg.compare import (
    LARGEST,
    LETTER,
    LINE,
    Box,
    _dots,
    _epsilon_scale,
    _utility_scale,
    compare_shapes,
    height,
    label_boxes,
)
from tests.few import few
from tests.show.made import DIGEST, HOSTILE, trained

BOUND: Guarantee = trained().guarantees[0]


def source(key: str, name: str, guarantee: Guarantee | None, utility: float | None, **more: object) -> ReportSource:
    evidence = ()
    if utility is not None:
        estimate = utility if math.isfinite(utility) else None
        evidence = (Evidence(method="m", quantity="held-out perplexity", estimate=estimate, reason="too large"),)
    report = replace(trained(), guarantees=() if guarantee is None else (guarantee,), evidence=evidence)
    return ReportSource(key=key, name=name, digest=DIGEST, report=report, **more)  # type: ignore[arg-type]


def audit(key: str, of: str, area: float, *, rejected: bool) -> ReportSource:
    report = PrivacyReport(
        step="audit",
        created="2026-01-02T00:00:00Z",
        versions={},
        evidence=(
            Evidence(
                method="loss", quantity="AUC", estimate=area, lower=area - 0.04, upper=area + 0.04,
                details={"chance": 0.5},
            ),
            Evidence(method="blind baseline", quantity="AUC", estimate=0.53, lower=0.49, upper=0.57),
        ),
        verdicts=(
            Verdict(
                subject=MEMBERSHIP, outcome=Outcome.REFUTED if rejected else Outcome.INCONCLUSIVE, reason="loss AUC"
            ),
        ),
    )  # fmt: skip
    return ReportSource(key=key, name=f"{of}.audit", digest=DIGEST, report=report, parents=(of,))


def data(*pairs: tuple[ReportSource, ReportSource | None]) -> PageData:
    subjects = tuple(JudgedSubject(source=model, audits=() if a is None else (a,)) for model, a in pairs)
    sources = tuple(each for pair in pairs for each in pair if each is not None)
    return PageData(title="t", version="0", sources=sources, subjects=subjects)


def three() -> PageData:
    weak = replace(BOUND, epsilon=1e8, risks=())
    return data(
        (source("r1", "plain", None, 5.0), audit("a1", "r1", 0.86, rejected=True)),
        (source("r2", "noised", weak, math.inf), audit("a2", "r2", 0.55, rejected=True)),
        (source("r3", "private", BOUND, 16.0), audit("a3", "r3", 0.52, rejected=False)),
    )


def test_every_figure_is_the_report_s() -> None:
    found = compare(three())
    assert found is not None
    assert found.quantity == "held-out perplexity"
    plain, noised, private = found.models
    assert (plain.epsilon, noised.epsilon, private.epsilon) == (None, 1e8, 2.0)
    assert (plain.utility, noised.utility, private.utility) == (5.0, math.inf, 16.0)
    assert [m.found for m in found.models] == [Severity.BAD, Severity.WEAK, Severity.FAIR]
    assert private.attack is not None
    assert private.attack.method == "loss", "a baseline is no attack on the model"
    rows = list(found.rows())
    assert rows[0] == ("plain", "none follows", "-", "5", "AUC 0.86 (0.82–0.90)", "a leak")
    assert rows[2] == ("private", "≤ 2 (conditional)", "-", "16", "AUC 0.52 (0.48–0.56)", "nothing")


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.VOID, Status.REFUTED])
def test_what_does_not_follow_has_no_epsilon(status: Status) -> None:
    found = compare(
        data((source("r1", "a", replace(BOUND, status=status), 5.0), None), (source("r2", "b", BOUND, 5.0), None))
    )
    assert found is not None
    assert [model.epsilon for model in found.models] == [None, 2.0]
    assert {model.found for model in found.models} == {Severity.NONE}


def test_what_a_model_was_made_from_is_before() -> None:
    parent = source("r1", "plain", None, 5.0)
    child = source("r2", "noised", BOUND, 6.0, parents=("r1",))
    page_data = replace(data((parent, None), (child, None)))
    subjects = (page_data.subjects[0], replace(page_data.subjects[1], ancestors=(parent,)))
    found = compare(replace(page_data, subjects=subjects))
    assert found is not None
    assert [model.before for model in found.models] == [None, 5.0]
    (measured,) = child.report.evidence
    own = replace(child, report=replace(child.report, evidence=(replace(measured, details={"before": 7.0}),)))
    found = compare(replace(page_data, subjects=(subjects[0], replace(subjects[1], source=own))))
    assert found is not None
    assert found.models[1].before == 7.0, "what its own report says comes first"


def test_without_a_measure_of_utility_the_attack_is_shown_alone_and_that_is_said() -> None:
    found = compare(data(
        (source("r1", "a", None, None), audit("a1", "r1", 0.8, rejected=True)),
        (source("r2", "b", BOUND, None), audit("a2", "r2", 0.5, rejected=False)),
    ))  # fmt: skip
    assert found is not None
    assert found.quantity is None
    assert any("No report has" in note for note in found.notes)
    text = draw(found, "svg").decode()
    assert "attack, AUC (lower is better)" in text
    assert "No report has" in text


def test_a_model_without_the_measure_is_named() -> None:
    found = compare(data((source("r1", "a", None, None), None), (source("r2", "b", BOUND, 5.0), None)))
    assert found is not None
    assert any(note == "No report has the held-out perplexity of a." for note in found.notes)


def test_one_model_is_not_compared() -> None:
    assert compare(data((source("r1", "a", BOUND, 5.0), None))) is None
    assert 'id="comparison"' not in page(data((source("r1", "a", BOUND, 5.0), None)))


def many(count: int, seed: int) -> Comparison:
    """Models at random, many of them in one place."""
    rng = random.Random(seed)
    models = []
    for i in range(count):
        area = rng.choice([0.5, 0.6, 0.86, 1.0])
        attack = Evidence(method="loss", quantity="AUC", estimate=area, lower=area - 0.1, upper=area)
        models.append(
            ComparedModel(
                name=f"model number {i} of {count}" * rng.choice([1, 3]),
                epsilon=rng.choice([None, 1e8, 1.0, 1.0, 8.0, rng.uniform(0.01, 900)]),
                status=Status.CONDITIONAL,
                utility=rng.choice([5.0, 5.1, 6.0, rng.uniform(4, 40), math.inf]),
                before=None,
                attack=rng.choice([None, attack]),
                found=rng.choice([Severity.BAD, Severity.WEAK, Severity.FAIR]),
            )
        )
    return Comparison(models=tuple(models), quantity="held-out perplexity", deltas=(1e-5,))


def words(shapes: Sequence[ElementTree.Element]) -> list[Box]:
    """The boxes of all texts, as wide as a phone draws them."""
    boxes = []
    for shape in shapes:
        if shape.tag.endswith("text") and shape.get("x"):
            wide = LETTER * 0.86 * len("".join(shape.itertext()))
            anchor = shape.get("class", "").split()
            x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
            left = x - wide if "end" in anchor else x - wide / 2 if "mid" in anchor else x
            boxes.append(Box(left, y - 10, left + wide, y + 3))
    return boxes


def drawn(comparison: Comparison) -> list[ElementTree.Element]:
    svg = ElementTree.fromstring("<svg>" + "".join(map(str, compare_shapes(comparison))) + "</svg>")
    return list(svg.iter())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [2, 7, 20, 40])
def test_no_two_labels_overlap_and_nothing_leaves_the_picture(count: int, seed: int) -> None:
    comparison = many(count, seed)
    shapes = drawn(comparison)
    boxes = words(shapes)
    for one, other in combinations(boxes, 2):
        assert not one.meets(other), (one, other)
    for box in boxes:
        assert box.left >= 0
        assert box.right <= WIDTH
        assert box.top >= 0
        assert box.bottom <= height(comparison)
    for circle in (s for s in shapes if s.tag == "circle"):
        x, y, r = (float(circle.get(name, 0)) for name in ("cx", "cy", "r"))
        assert r <= x <= WIDTH - r
        assert r <= y <= height(comparison) - r


def test_the_test_of_overlap_sees_one() -> None:
    assert Box(0, 0, 10, 10).meets(Box(5, 5, 15, 15))
    assert not Box(0, 0, 10, 10).meets(Box(10, 0, 20, 10))
    here = ElementTree.fromstring('<svg><text x="50" y="20">abc</text><text x="60" y="22">def</text></svg>')
    first, second = words(list(here.iter()))
    assert first.meets(second)


@pytest.mark.parametrize("seed", range(12))
def test_the_numbers_beside_dots_cover_no_dot(seed: int) -> None:
    models = many(20, seed).models
    x, band = _epsilon_scale(models), Scale(0.0, 1.0, 308.0, 404.0)
    y = _utility_scale([m.utility for m in models if m.utility is not None], "held-out perplexity")
    dots = _dots(models, [m.utility for m in models], x, band, y)
    boxes = label_boxes(dots)
    assert len(boxes) == 20
    for box in boxes.values():
        assert box.bottom - box.top == pytest.approx(LINE)
        assert not any(box.meets(dot.box) for dot in dots.values())


def test_models_of_which_nothing_follows_stand_in_the_band() -> None:
    shapes = drawn(compare(three()) or many(2, 0))
    (band,) = (s for s in shapes if s.get("class") == "unbounded")
    left = float(band.get("d", "").removeprefix("M").split()[0])
    tips = {s.get("data-tip", "")[3:].partition(":")[0]: float(s.get("cx", 0)) for s in shapes if s.get("data-tip")}
    assert tips["plain"] > left
    assert tips["noised"] > left, f"beyond {LARGEST}"
    assert tips["private"] < left


@pytest.mark.parametrize("kind", few(["svg", "png"], 0))
def test_the_picture_is_a_file_that_says_what_it_shows(kind: str) -> None:
    comparison = compare(three())
    assert comparison is not None
    content = draw(comparison, kind)  # type: ignore[arg-type]
    assert draw(comparison, kind) == content  # type: ignore[arg-type]
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        return
    root = ElementTree.fromstring(content)
    assert root.get("role") == "img"
    assert "class" not in content.decode()
    assert "currentColor" not in content.decode()
    assert "var(" not in content.decode()
    tags = [child.tag.rpartition("}")[2] for child in root]
    assert tags[:2] == ["title", "desc"]


def test_the_page_shows_it_on_top_with_its_numbers() -> None:
    text = page(three())
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    section = next(e for e in root.iter("section") if e.get("id") == "verdict")
    figure = next(e for e in section.iter("figure") if e.get("id") == "comparison")
    figure_text = " ".join(" ".join(figure.itertext()).split())
    assert "AUC 0.86 (0.82–0.90)" in figure_text
    assert figure.find("details//table") is not None


def test_hostile_names_stay_text() -> None:
    page_data = data((source("r1", HOSTILE, None, 5.0), None), (source("r2", "b" + HOSTILE, BOUND, 5.0), None))
    comparison = compare(page_data)
    assert comparison is not None
    assert "<script>alert" not in page(page_data)
    assert not [e for e in ElementTree.fromstring(draw(comparison, "svg")).iter() if e.tag.endswith(("script", "img"))]


def written(folder: Path, name: str, report: PrivacyReport) -> str:
    write_report(folder / f"{name}.report.json", replace(report, outputs=()))
    return str(folder / f"{name}.report.json")


def test_the_command_draws_and_prints_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        written(tmp_path, source.name, source.report) for source in three().sources if source.report.step != "audit"
    ]
    chart = tmp_path / "chart.svg"
    assert run(["report", *paths, "--plot", str(chart), "-q"]) == 0
    assert chart.read_bytes().startswith(b"<?xml")
    out = capsys.readouterr().out
    assert "none follows" in out
    assert "not attacked" in out
    assert not list(tmp_path.glob("*.html")), "a page was not asked for"
    assert run(["report", *paths, "--plot", str(chart), "-q"]) == 2, "it exists"
    assert run(["report", *paths, "--plot", str(chart), "-q", "-f", "-o", str(tmp_path / "p.html")]) == 0
    assert (tmp_path / "p.html").is_file()


@pytest.mark.parametrize(
    ("count", "plot", "says"),
    [(1, "c.svg", "fewer than two"), (2, "c.pdf", "neither in .svg nor in .png"), (2, "plain.report.json", "neither")],
)
def test_what_cannot_be_drawn_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, plot: str, says: str
) -> None:
    paths = [
        written(tmp_path, source.name, source.report) for source in three().sources if source.report.step != "audit"
    ]
    before = sorted(tmp_path.iterdir())
    assert run(["report", *paths[:count], "--plot", str(tmp_path / plot), "-q"]) == 2
    assert says in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_parents_are_not_models_of_their_own() -> None:
    """A noise run's parent is on the page only as what the noise was added to."""
    parent = source("r1", "plain", None, 5.0)
    child = source("r2", "noised", BOUND, 6.0, parents=("r1",))
    alone = PageData(
        title="t", version="0", sources=(parent, child), subjects=(JudgedSubject(source=child, ancestors=(parent,)),)
    )
    assert compare(alone) is None
