"""The page as a document: well-formed, named, ordered, readable, and closed to whatever a report holds."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise, product
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import pytest

from privctl.domain.evidence import Evidence
from privctl.domain.guarantee import AssumptionState, Risk, RiskMeasure, Status
from privctl.domain.verdict import Outcome, Verdict
from privctl.show.html.page import page
from privctl.show.html.render import TEMPLATES, source, templates
from privctl.show.html.training import training_figures
from privctl.show.html.values import colour
from privctl.show.html.words import risk, setting_table
from privctl.show.page_data import JudgedSubject, PageData, ReportSource
from privctl.show.plain import clean
from privctl.show.svg.shapes import el
from privctl.show.text.guarantee import guarantee_text
from tests.gate.made import PROVED
from tests.show.made import DIGEST, HOSTILE, page_data, trained
from tests.work import ends
from verify.audits.terms import MEMBERSHIP

ROOT = Path(__file__).resolve().parents[2]


def tree(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


@pytest.fixture(scope="module")
def made() -> str:
    return page(page_data())


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(page_data(HOSTILE))


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


def test_a_bound_on_an_attacker_is_rounded_up_as_in_the_terminal() -> None:
    stated = Risk(measure=RiskMeasure.ADVANTAGE, bound=0.53271134)
    assert risk(stated).endswith(": 0.5328")
    assert "rate) 0.5328:" in guarantee_text(replace(PROVED, risks=(stated,)), named=False, verbose=False)


def test_text_is_cut_where_it_is_absurdly_long() -> None:
    assert len(clean("x" * 10**6)) == 600
    assert clean("naïve – ε ≤ 1") == "naïve – ε ≤ 1"
    assert clean("a\u200bb") == "a\\u200bb"


def test_a_shape_s_text_and_attributes_are_escaped_where_it_is_made() -> None:
    shape = el("text", "<b>\u202e", el("tspan", "&"), class_='a"b', data_tip=HOSTILE, x=1.25, y=2.0, title=None)
    read = ElementTree.fromstring(str(shape))
    assert shape.__html__() == str(shape)
    assert read.attrib == {"class": 'a"b', "data-tip": clean(HOSTILE), "x": "1.2", "y": "2"}
    assert ["".join(read.itertext()), len(read)] == ["<b>\\u202e&", 1]


TEMPLATE_FILES = [file for file in TEMPLATES.iterdir() if file.name.endswith(".html")]


@pytest.mark.parametrize("file", TEMPLATE_FILES, ids=lambda file: file.name)
def test_no_template_turns_escaping_off(file: Traversable) -> None:
    text = file.read_text(encoding="utf-8")
    for expression in re.findall(r"{[{%](.*?)[%}]}", text, re.DOTALL):
        assert not re.search(r"\b(safe|autoescape|Markup|xmlattr|tojson|urlize)\b", expression), expression
    # A value within a tag stands between double quotes, where escaping holds it.
    for tag in re.findall(r"<[a-z][^>]*>", re.sub(r"{%.*?%}|{#.*?#}", "", text, flags=re.DOTALL)):
        assert "{{" not in re.sub(r'"[^"]*"', "", re.sub(r"{{.*?}}", "{{}}", tag)), tag


def test_nothing_but_shapes_claims_to_be_markup() -> None:
    claims = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "privctl").rglob("*.py")
        if re.search(r"def __html__|markupsafe|Markup\(", path.read_text(encoding="utf-8"))
    }
    assert claims == {"privctl/show/svg/shapes.py"}


def test_a_value_in_a_template_is_cleaned_then_escaped_and_an_unknown_name_is_an_error() -> None:
    environment = templates()
    assert environment.from_string("{{ a }}").render(a="<i>\u202e\"'") == "&lt;i&gt;\\u202e&#34;&#39;"
    assert environment.from_string("{{ a }}").render(a=el("g", "<i>")) == "<g>&lt;i&gt;</g>"
    assert len(environment.from_string("{{ a }}").render(a="x" * 10**6)) == 600
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ b }}").render()


def test_every_file_of_the_page_is_package_data() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["privctl"]
    names = sorted(file.name for file in TEMPLATES.iterdir())
    assert {"page.html", "page.css", "page.js", "macros.html", "chain.html"} <= set(names)
    for name in names:
        assert resources.files("privctl.show.html").joinpath("templates", name).is_file()
        assert any(fnmatch(f"show/html/templates/{name}", pattern) for pattern in data)
    sections = set(re.findall(r'^  \("([a-z]+)", "', source("page.html"), re.MULTILINE))
    others = {"page.html", "macros.html", "notebook.html", "page.css", "page.js"}
    assert {f"{name}.html" for name in sections} | others == set(names)


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


STYLE = source("page.css")
#: What text may be written in.
TEXT = ("ink", "muted", "good", "fair", "weak", "bad", "void", "none", "lead", "second", "third", "fourth")


def colours(beginning: str) -> dict[str, str]:
    """The colours by name that the style's rule of this selector sets."""
    (body,) = re.findall(re.escape(beginning) + r" \{([^}]*)\}", STYLE)
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", body))


LIGHT = colours("\n:root")
DARK = colours(':root[data-theme="dark"]')


def test_both_themes_have_the_same_names_and_dark_is_the_same_by_either_way() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert set(TEXT) < LIGHT.keys()
    assert colours(':root:not([data-theme="light"])') == DARK
    assert set(re.findall(r"var\(--([a-z]+)", STYLE)) - {"state"} <= LIGHT.keys()


@pytest.mark.parametrize(("name", "theme", "ground"), [*product(LIGHT, (LIGHT, DARK), ("page", "card"))])
def test_text_and_lines_stand_out_from_their_ground(name: str, theme: dict[str, str], ground: str) -> None:
    if name in ("page", "card", "line"):
        pytest.skip("a ground, or a line that tells nothing")
    least = 4.5 if name in TEXT else 3.0
    assert contrast(theme[name], theme[ground]) >= least


def test_every_state_has_its_colour() -> None:
    states = {colour(state) for kind in (Status, Outcome, AssumptionState) for state in kind}
    assert states | {"lead", "second", "third", "fourth", "attack", "other"} == set(
        re.findall(r"\.([a-z]+) \{ --state: var\(--\1\); \}", STYLE)
    )


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
    source_ = ReportSource(key="r1", name="m", digest=DIGEST, report=replace(trained(), parameters={}, guarantees=()))
    bare = page(PageData(title="t", version="0", sources=(source_,), subjects=(JudgedSubject(source=source_),)))
    assert sections(bare) == {"verdict", "chain", "limits", "appendix"}
    for message in ("No guarantee", "No audit", "No verification"):
        assert message in bare
    assert "No audit" not in page(replace(page_data(), subjects=page_data().subjects[:1]))


@pytest.mark.parametrize(("step", "word"), [("audit", "rejected"), ("verify", "refuted")])
def test_the_chain_calls_a_verdict_what_the_verdicts_do(step: str, word: str) -> None:
    """No claim is refuted where members can be told from others."""
    verdict = Verdict(subject=MEMBERSHIP, outcome=Outcome.REFUTED, reason="loss AUC 0.9")
    report = replace(trained(), step=step, guarantees=(), verdicts=(verdict,))
    source_ = ReportSource(key="r1", name="m", digest=DIGEST, report=report)
    text = page(PageData(title="t", version="0", sources=(source_,), subjects=(JudgedSubject(source=source_),)))
    chained = next(e for e in tree(text).iter("p") if e.get("class") == "step")
    assert "".join(chained.itertext()).split()[-1] == word


def test_the_verdict_on_top_has_the_violation_and_the_bound(made: str) -> None:
    root = tree(made)
    card = next(e for e in root.iter("article") if "verdict" in e.get("class", ""))
    text = " ".join(" ".join(card.itertext()).split())
    assert "bad" in card.get("class", "").split()
    assert "ε ≤ 2 at δ = 10⁻⁵" in text
    assert "Attacks Do not release: for a single record, epsilon is at least 1.2, with 95 % confidence, so any" in text


def test_a_report_of_absurd_size_makes_a_page_of_a_usual_one() -> None:
    many = replace(
        trained(),
        evidence=tuple(
            Evidence(method=f"m{i}", quantity="AUC", estimate=0.5, lower=0.1, upper=0.9) for i in range(10_000)
        ),
        verdicts=tuple(Verdict(subject=f"s{i}", outcome=Outcome.PROVED, reason="r" * 1000) for i in range(10_000)),
        warnings=("w" * 10**6, *(f"w{i}" for i in range(10_000))),
        parameters={f"p{i}": i for i in range(10_000)} | {"history": [{str(i): 1.0 for i in range(10_000)}] * 3},
    )
    source_ = ReportSource(key="r1", name="m", digest=DIGEST, report=many)
    with ends():  # linear takes a second; anything worse takes minutes
        text = page(
            PageData(
                title="t", version="0", sources=(source_,), subjects=(JudgedSubject(source=source_, audits=(source_,)),)
            )
        )
    assert len(text) < 2_000_000
    assert "9800 more rows are in the report" in text


def test_an_assumption_that_several_bounds_share_is_stated_once() -> None:
    report = trained()
    first = report.guarantees[0]
    twice = replace(report, guarantees=(first, replace(first, name="another"), *report.guarantees[1:]))
    model = ReportSource(key="r1", name="private", digest=DIGEST, report=twice)
    data = replace(page_data(), sources=(model,), subjects=())
    assert page(data).count("batches are Poisson") == 1
    alone = replace(data, sources=(replace(model, report=report),))
    assert page(alone).count("batches are Poisson") == 1


def test_settings_that_were_not_set_or_fit_no_cell_are_left_out() -> None:
    kept = {"optimizer": "sgd", "nothing": None, "empty": [], "blank": "", "many": list(range(9)), "few": [1, 2]}
    found = setting_table(ReportSource(key="r1", name="m", digest=DIGEST, report=trained(parameters=kept)))
    assert found is not None
    assert [tuple(row) for row in found.rows] == [("optimizer", "sgd"), ("few", "1, 2")]
    assert found.hidden == 0


def test_the_table_of_epochs_stands_below_one_figure() -> None:
    history = [{"training_loss": 3.0, "clipped_fraction": 0.5}, {"training_loss": 2.0, "clipped_fraction": 0.4}]
    report = trained(parameters={"history": history})
    figures = list(training_figures(ReportSource(key="r1", name="m", digest=DIGEST, report=report)))
    assert [len(figure.tables) for figure in figures] == [1, 0]
