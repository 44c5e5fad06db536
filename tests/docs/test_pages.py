"""The pages hang together: links, anchors, citations from code, made parts, and a strict build where Sphinx is."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.fields import meanings_by_type, schema
from tests.docs.generate import generated
from tests.docs.pages import DOCS, ROOT, anchor, anchors, headings, links, pages, table
from verify.methods import METHODS, expected_of
from verify.texts.assumptions import STATEMENTS

PAGES = pages()
#: How code cites a page.
_CITATION = re.compile(r"docs/([a-z-]+\.md)(#[\w-]+)?")
#: Documents that were never part of the repository.
_ELSEWHERE = re.compile(r"\b(?:THEORY|AUDITS|DESIGN|PERFORMANCE|STYLE)(?:\.md\b|'s\b|:| [A-G]\b| \d)")
_FOLDERS = ("privctl", "audits", "verify", "tests", "examples", "ci")


def broken(name: str, text: str, folder: Path = DOCS) -> Iterator[str]:
    """The links of a page in ``folder`` that lead nowhere."""
    for target in links(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        if path and not (folder / path).exists():
            yield f"{name}: {target}: there is no such file"
        elif fragment and fragment not in anchors((folder / path).read_text(encoding="utf-8") if path else text):
            yield f"{name}: {target}: there is no such section"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    assert list(broken(name, PAGES[name])) == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_from_outside_lead_somewhere(name: str) -> None:
    assert list(broken(name, (ROOT / name).read_text(encoding="utf-8"), ROOT)) == []


def test_a_broken_link_is_noticed() -> None:
    text = "# One\n\n[a](nowhere.md) [b](#two) [c](theory.md#no-such) [d](#one) [e](glossary.md#epsilon) `[f](x.md)`\n"
    assert [line.split(": ")[1] for line in broken("x.md", text)] == ["nowhere.md", "#two", "theory.md#no-such"]


@pytest.mark.parametrize("name", PAGES)
def test_anchors_are_told_apart(name: str) -> None:
    found = [anchor(title) for title in headings(PAGES[name])]
    assert len(set(found)) == len(found)


def test_the_start_page_names_every_page() -> None:
    named = {target for target in links(PAGES["index.md"]) if target.endswith(".md")}
    assert named >= set(PAGES) - {"index.md", "design.md"}


def test_what_is_made_is_current() -> None:
    found = generated()
    assert {path.name for path in found} == {
        "README.md",
        "architectures.md",
        "attack-comparison.md",
        "attack-measurements.md",
        "audit-measurements.md",
        "canaries.md",
        "claims.md",
        "cli.md",
        "demo.svg",
        "extraction.md",
        "performance.md",
        "reports.md",
        "scale.md",
        "utility.md",
    }
    stale = [path.name for path, wanted in found.items() if path.read_text(encoding="utf-8") != wanted]
    assert stale == [], "run: python -m tests.docs.generate"


def test_every_field_of_the_schema_is_explained() -> None:
    """And nothing that the schema does not have."""
    types = {name: set(kind["properties"]) for name, kind in schema().items()}
    assert {name: set(fields) for name, fields in meanings_by_type().items()} == types
    assert all(
        meaning.endswith(".") and checks for each in meanings_by_type().values() for meaning, checks in each.values()
    )


def test_the_checks_that_are_named_exist() -> None:
    from privctl.gate.checks import RULES

    named = {
        word
        for each in meanings_by_type().values()
        for _, checks in each.values()
        for word in re.findall(r"`(\w+)`", checks)
    }
    assert named <= {*RULES, "verify", "inspect", "min_confidence", "reason"}
    rows = table(PAGES["reports.md"], "What checks a report")
    assert {row["rule"].strip("`"): row["waiver"] == "yes" for row in rows} == {
        name: rule.waivable for name, rule in RULES.items()
    }


def test_every_assumption_is_explained() -> None:
    rows = table(PAGES["reports.md"], "Assumptions")
    of_methods = {name for method in map(expected_of, METHODS) if method is not None for name in method.statements}
    assert sorted(row["assumption"].strip("`") for row in rows) == sorted(STATEMENTS.keys() | of_methods)


def test_exit_codes_are_explained() -> None:
    from privctl.domain.errors import ExitCode

    assert [int(row["code"]) for row in table(PAGES["reports.md"], "Exit codes")] == [code.value for code in ExitCode]


@cache
def cited() -> list[tuple[Path, int, str]]:
    """Every line of code and scripts that may name a page or what lies elsewhere."""
    return [each for each in _lines() if _CITATION.search(each[2]) or _ELSEWHERE.search(each[2])]


def _lines() -> Iterator[tuple[Path, int, str]]:
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".sh", ".md", ".yml", ".toml") and path.is_file():
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    yield path.relative_to(ROOT), number, line


def test_cited_sections_exist() -> None:
    own = Path(__file__).name
    found, wrong = 0, []
    for path, number, line in cited():
        for name, fragment in _CITATION.findall(line):
            found += bool(fragment)
            known = name in PAGES and (not fragment or fragment[1:] in anchors(PAGES[name]))
            if not known and path.name != own:
                wrong.append(f"{path}:{number}: {name}{fragment}")
    assert wrong == []
    assert found


def test_nothing_outside_the_repository_is_cited() -> None:
    own = Path(__file__).name
    found = [f"{path}:{number}: {line}" for path, number, line in cited() if _ELSEWHERE.search(line)]
    assert [line for line in found if own not in line.split(":")[0]] == []


@pytest.mark.parametrize("line", ["(THEORY B.5)", "THEORY's pair", "see AUDITS.md", "AUDITS 2.0", "DESIGN: codes"])
def test_a_citation_from_outside_is_noticed(line: str) -> None:
    assert _ELSEWHERE.search(line)
    assert not _ELSEWHERE.search("DESIGNED, AUDITS = 1, 2  # docs/theory.md")


def test_what_builds_the_site_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=!~ ]", want)[0] for want in project["optional-dependencies"]["docs"]}
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned


# Links, citations and command lines of the pages are looked at above, in quick tests.
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs pip install -e '.[docs]'")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-nWq", "--keep-going", DOCS, tmp_path / "site"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {f"{Path(name).stem}.html" for name in PAGES} <= {path.name for path in (tmp_path / "site").iterdir()}
