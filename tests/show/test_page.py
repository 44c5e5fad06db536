"""The page as a document: well-formed, named, ordered, readable, and closed to whatever a report holds."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from xml.etree import ElementTree

import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.dossier import JudgedSubject, PageData, ReportSource
from privctl.show.html.markup import clean, el
from privctl.show.html.style import COLOURS, TEXT
from privctl.show.html.write import page
from tests.show.made import DIGEST, HOSTILE, dossier, trained


def tree(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


@pytest.fixture(scope="module")
def made() -> str:
    return page(dossier())


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(dossier(HOSTILE))


@pytest.fixture(params=["made", "hostile"])
def root(request: pytest.FixtureRequest) -> ElementTree.Element:
    return tree(request.getfixturevalue(request.param))


def test_ids_are_unique_and_every_reference_has_one(root: ElementTree.Element) -> None:
    ids = Counter(element.get("id") for element in root.iter() if element.get("id"))
    assert max(ids.values()) == 1
    named = [name for e in root.iter() for name in (e.get("aria-labelledby") or "").split()]
    links = [e.get("href", "") for e in root.iter("a")]
    assert len(named) > 10
    assert set(named) <= set(ids)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert all(link.startswith("#") for link in links)


def test_headings_go_down_one_at_a_time(root: ElementTree.Element) -> None:
    levels = [int(e.tag[1]) for e in root.iter() if re.fullmatch("h[1-6]", e.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_every_picture_says_what_it_shows_and_has_its_numbers_beside_it(root: ElementTree.Element) -> None:
    figures = list(root.iter("figure"))
    assert len(figures) >= 11
    for figure in figures:
        (svg,) = figure.iter("svg")
        assert svg.get("role") == "img"
        assert svg.findtext("title")
        assert len(svg.findtext("desc") or "") > 10
        assert figure.find("details//table") is not None
    decorations = [e for e in root.iter("svg") if e.get("role") != "img"]
    assert all(e.get("aria-hidden") == "true" for e in decorations)


def test_every_place_of_every_shape_is_a_finite_number_inside_its_picture(root: ElementTree.Element) -> None:
    for svg in (svg for figure in root.iter("figure") for svg in figure.iter("svg")):
        _, _, width, height = map(float, svg.get("viewBox", "").split())
        for shape in svg.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert -1 <= float(shape.get(name, 0)) <= width + 1
            for name in ("y", "y1", "y2", "cy"):
                assert -1 <= float(shape.get(name, 0)) <= height + 1
            assert "nan" not in shape.get("d", "")
            assert "inf" not in shape.get("d", "")


def test_the_page_asks_nothing_of_the_network_and_allows_only_its_own_style_and_script(made: str) -> None:
    root = tree(made)
    assert not [e for e in root.iter() if e.get("src") or e.tag in ("link", "iframe", "img", "object")]
    assert not [e for e in root.iter() if e.get("style") or any(name.startswith("on") for name in e.attrib)]
    policy = next(e.get("content", "") for e in root.iter("meta") if e.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (element,) = root.iter(tag)
        digest = hashlib.sha256((element.text or "").encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "unsafe" not in policy


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.names: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.names.update(name for name, _ in attrs)


def elements(text: str) -> _Elements:
    parser = _Elements()
    parser.feed(text)
    return parser


def test_hostile_text_stays_text_wherever_it_stands(made: str, hostile: str) -> None:
    assert elements(hostile).tags.keys() == elements(made).tags.keys()
    assert elements(hostile).tags["script"] == 1
    assert elements(hostile).names.keys() <= elements(made).names.keys()
    assert "&lt;/script&gt;" in hostile
    for letter in "\u202e\u2066\x00":
        assert letter not in hostile
    assert "\\u202e" in hostile
    assert "<img" not in hostile


def test_the_check_of_hostile_text_notices_markup_that_gets_through(made: str) -> None:
    broken = made.replace("batches are Poisson", "<img src=x>")
    assert elements(broken).tags.keys() != elements(made).tags.keys()


def test_text_is_cut_where_it_is_absurdly_long() -> None:
    assert len(clean("x" * 10**6)) == 600
    assert clean("naïve – ε ≤ 1") == "naïve – ε ≤ 1"
    assert clean("a\u200bb") == "a\\u200bb"
    assert (
        str(el("p", "<b>", class_='a"b', hidden=True, title=None))
        == '<p class="a&quot;b" hidden="hidden">&lt;b&gt;</p>\n'
    )


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)  # WebAIM's checker says 4.48


@pytest.mark.parametrize(("name", "theme", "ground"), [*product(COLOURS, (0, 1), ("page", "card"))])
def test_text_and_lines_stand_out_from_their_ground(name: str, theme: int, ground: str) -> None:
    if name in ("page", "card", "line"):
        pytest.skip("a ground, or a line that tells nothing")
    least = 4.5 if name in TEXT else 3.0
    assert contrast(COLOURS[name][theme], COLOURS[ground][theme]) >= least


def sections(text: str) -> set[str]:
    return {e.get("id", "") for e in tree(text).iter("section")}


def test_sections_without_data_are_left_out_and_what_nobody_checked_is_said(made: str) -> None:
    everything = {
        "verdict",
        "chain",
        "guarantees",
        "attacks",
        "noise",
        "training",
        "plan",
        "accounting",
        "verification",
    }
    assert everything <= sections(made)
    source = ReportSource(key="r1", name="m", digest=DIGEST, report=replace(trained(), parameters={}, guarantees=()))
    bare = page(PageData(title="t", version="0", sources=(source,), subjects=(JudgedSubject(source=source),)))
    assert sections(bare) == {"verdict", "chain", "limits", "appendix"}
    for said in ("No guarantee", "No audit", "No verification"):
        assert said in bare
    assert "No audit" not in page(replace(dossier(), subjects=dossier().subjects[:1]))


def test_the_verdict_on_top_has_the_violation_and_the_bound(made: str) -> None:
    root = tree(made)
    card = next(e for e in root.iter("article") if "verdict" in e.get("class", ""))
    said = " ".join(" ".join(card.itertext()).split())
    assert "bad" in card.get("class", "").split()
    assert "ε ≤ 2 at δ = 10⁻⁵" in said
    assert "Violated: “nothing is remembered”" in said


def test_a_report_of_absurd_size_makes_a_page_of_a_usual_one() -> None:
    many = replace(
        trained(),
        evidence=tuple(
            Evidence(method=f"m{i}", quantity="AUC", estimate=0.5, lower=0.1, upper=0.9) for i in range(50_000)
        ),
        verdicts=tuple(Verdict(subject=f"s{i}", outcome=Outcome.PROVED, reason="r" * 1000) for i in range(50_000)),
        warnings=("w" * 10**6, *(f"w{i}" for i in range(50_000))),
        parameters={f"p{i}": i for i in range(50_000)} | {"history": [{str(i): 1.0 for i in range(50_000)}] * 3},
    )
    source = ReportSource(key="r1", name="m", digest=DIGEST, report=many)
    began = time.perf_counter()
    text = page(
        PageData(title="t", version="0", sources=(source,), subjects=(JudgedSubject(source=source, audits=(source,)),))
    )
    assert time.perf_counter() - began < 15  # linear takes one; anything worse takes minutes
    assert len(text) < 2_000_000
    assert "49800 more rows are in the report" in text
