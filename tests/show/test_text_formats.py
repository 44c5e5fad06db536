"""Markdown, model card and statement: escaped, replaced in place, and valid for those who read them."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from privctl.domain.errors import InputError
from privctl.show.formats.intoto import PREDICATE, statement
from privctl.show.markdown.model_card import BEGIN, END, insert_summary
from privctl.show.markdown.report import markdown, plain
from tests.show.made import HOSTILE, page_data


def metadata(readme: bytes) -> dict[str, object]:
    text = readme.decode().replace("\r\n", "\n")
    found = yaml.safe_load(text.removeprefix("---\n").split("\n---\n")[0])
    assert isinstance(found, dict)
    return found


def test_markup_and_links_are_taken_away_from_text() -> None:
    assert plain("a|b") == "a\\|b"
    assert plain("[x](javascript:alert(1))") == "\\[x\\](javascript:alert(1))"
    assert plain("<b>&\n\n# no") == "&lt;b&gt;&amp; \\# no"
    assert (
        plain("see https://evil.example and www.evil.example")
        == "see https&#58;//evil.example and www&#46;evil.example"
    )
    assert plain("- one") == "\\- one"
    assert plain("12. twelve") == "12\\. twelve"
    assert plain("@workers \u202eabc") == "&#64;workers \\\\u202eabc"


@pytest.mark.parametrize("written", [markdown, lambda d: insert_summary(None, d, "README.md").decode()])
def test_hostile_names_make_no_markup(written: object) -> None:
    text = written(page_data(HOSTILE))  # type: ignore[operator]
    body = text.replace(BEGIN, "").replace(END, "")
    body = body.split("\n---\n")[-1]
    assert not re.search(r"<[a-zA-Z/!]", body)
    assert "\u202e" not in text
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert rows
    widths = {line.count("|") - line.count("\\|") for line in rows}
    assert widths <= {5, 6}


def test_markdown_has_the_verdict_the_chain_and_what_nobody_checked() -> None:
    text = markdown(page_data())
    assert "**ε ≤ 2 at δ = 10⁻⁵** (conditional)" in text
    assert (
        "- Attacks: Do not release: for a single record, epsilon is at least 1.2, with 95 % confidence, so any" in text
    )
    assert "Not checked: No report of a verification" in text
    assert "| audit | private.audit | private |" in text


@pytest.mark.parametrize(
    "readme",
    [
        b"---\nlicense: mit\n---\n# Title\n\ntext\n",
        b"---\r\nlicense: mit\r\ntags:\r\n- x\r\n---\r\n# Title\r\ntext",
        b"# no metadata\n\ntrailing   \n\n\n",
        b"\xef\xbb\xbf---\nlicense: mit\n---\n# Mark in front\n",
        "---\nlicense: mit\n---\nvertical\x0b tab, \u2028 separator, \x1c too\n".encode(),
        b"",
    ],
)
def test_a_second_run_replaces_the_first_and_leaves_every_other_byte(readme: bytes) -> None:
    first = insert_summary(readme, page_data(), "README.md")
    assert insert_summary(first, page_data(), "README.md") == first
    other = insert_summary(first, page_data("2"), "README.md")
    assert other != first
    assert insert_summary(other, page_data(), "README.md") == first
    newline = b"\r\n" if b"\r\n" in readme else b"\n"
    for begin, end in ((b"# privctl:begin", b"# privctl:end" + newline), (BEGIN.encode(), END.encode())):
        start, stop = first.index(begin), first.index(end) + len(end)
        first = first[:start] + first[stop:]
    if readme.startswith((b"---", b"\xef")):
        assert first.rstrip(b"\r\n") == readme.rstrip(b"\r\n")
        assert first.startswith(readme)
    else:
        assert readme in first


def test_the_metadata_is_yaml_with_numbers_that_are_numbers() -> None:
    found = metadata(insert_summary(b"---\nlicense: mit\n---\nx\n", page_data(), "README.md"))
    assert found["license"] == "mit"
    (first, *_) = found["differential_privacy"]  # type: ignore[misc]
    assert (first["epsilon"], first["delta"], first["status"]) == (2.0, 1e-5, "conditional")
    assert (first["audited"], first["verified"]) == (True, False)


@pytest.mark.parametrize(
    ("readme", "says"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"---\nlicense: mit\n", "no end"),
        (b"x\n<!-- privctl:begin -->\n", "are not one pair"),
        (b"<!-- privctl:end --> <!-- privctl:begin -->", "are not one pair"),
        (b"---\ndifferential_privacy: 1\n---\n", "did not write"),
    ],
)
def test_a_readme_that_is_not_as_it_was_left_is_refused_in_one_sentence(readme: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        insert_summary(readme, page_data(), "README.md")


def test_the_statement_is_as_in_toto_wants_it() -> None:
    found = json.loads(statement(page_data(HOSTILE)))
    assert set(found) == {"_type", "subject", "predicateType", "predicate"}
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == PREDICATE
    assert re.match(r"[a-z][a-z0-9+.-]*:\S+$", PREDICATE), "a TypeURI is a URI with a scheme (RFC 3986)"
    model = found["predicate"]["models"][0]
    assert model["guarantees"][0]["epsilon"] == 2.0
    assert [v["outcome"] for v in model["verdicts"]] == ["REFUTED", "INCONCLUSIVE"]
    assert found["predicate"]["reports"][0]["digest"]["blake3"] == "0" * 64
