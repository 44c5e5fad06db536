"""Every format of a judgement: what a reader of it takes, and nothing that a hostile name could do there."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.gate import FileLine, Finding, GateJudgement, PolicySetting
from privctl.gate.checks import RULES
from privctl.show.formats import gate_json, github, junit, sarif
from privctl.show.markdown import gate as gate_markdown
from privctl.show.plain import plain
from privctl.show.text import gate as gate_text
from privctl.show.text.style import plain as without_colour
from tests.gate.made import FAIL, INCONCLUSIVE, PASS

RENDERERS: dict[str, Callable[[GateJudgement], str]] = {
    "text": lambda judged: without_colour(gate_text.render(judged)),
    "json": gate_json.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
    "markdown": gate_markdown.render,
}
HOSTILE = [
    "x\n::error file=a::gotcha",
    "x\r\n::set-output name=a::b",
    "x%0A::error::y",
    "::stop-commands::token",
    "##[error]gotcha",
    "##[add-mask]a",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a | b | c",
    "a\\|b",
    "](javascript:alert(1))",
    "![x](http://evil.example/pixel)",
    "http://evil.example www.evil.example",
    "@everyone and #1 and GH-1",
    "`code` ``` fence",
    "</details></summary>",
    "]]>&amp;<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eevil\u2066",
    "\x00\x08\ufffe\U000e0001",
    "\u2028next\u2029\x85\x0b\x0c",
    "\udcff",
    '" onmouseover="x',
    "a" * 100_000,
]


def finding(text: str, outcome: Any = FAIL, rule: str = "max_auc", **more: Any) -> Finding:
    place = FileLine(path=text.replace("\0", "") or "x", line=7)
    return replace(
        Finding(rule=rule, outcome=outcome, subject=text, message=f"m {text}", fix=f"f {text}", place=place), **more
    )


def judgement(text: str) -> GateJudgement:
    found = (
        finding(text),
        finding(text, INCONCLUSIVE),
        finding(text, PASS),
        finding(text, FAIL, "max_tpr", waiver=text, waived_because=text),
    )
    return GateJudgement(
        findings=found,
        notes=(f"n {text}",),
        settings=(PolicySetting(key="max_auc", value=text, source=text),),
        models=(text, "other"),
        rules=tuple(RULES.values()),
    )


SIMPLE = judgement("release/model")


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:30])
def test_no_name_reaches_a_terminal_or_a_log_as_a_command(form: str, text: str) -> None:
    rendered = RENDERERS[form](judgement(text))
    rendered.encode()  # half a surrogate pair would stop here
    allowed = {"github": ("::error ", "::warning ", "::notice ")}.get(form, ())
    for line in rendered.split("\n"):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0001]", line)
        stripped = line.lstrip()
        assert not stripped.startswith("::") or stripped.startswith(allowed or "\0"), line
        assert "##[" not in line
    assert len(rendered) < 100_000 or form in ("json", "sarif")  # which hold paths, and JSON everything, as they are
    own = [sum(bool(line) and not (form == "text" and line[0] == " ") for line in rendering.split("\n"))
           for rendering in (rendered, RENDERERS[form](SIMPLE))]  # fmt: skip
    assert own[0] == own[1], "a name made a line of its own"


def test_the_check_notices_a_command() -> None:
    """What would be printed without ``plain``."""
    assert "\n::error" in f"  rule: {HOSTILE[0]}"
    assert "\n" not in plain(HOSTILE[0])


# Text.


def test_text_says_first_what_failed_and_what_would_fix_it() -> None:
    lines = RENDERERS["text"](SIMPLE).splitlines()
    assert lines[0] == "gate: FAIL (1 failed, 1 inconclusive, 1 passed, 1 waived)"
    order = [lines.index(title) for title in ("FAILED", "INCONCLUSIVE", "waived", "passed", "policy")]
    assert order == sorted(order)
    assert lines[order[0] + 1 : order[0] + 4] == [
        "  max_auc: release/model: m release/model",
        "    to fix: f release/model",
        "    at release/model:7",
    ]


# GitHub.


def test_github_annotates_each_finding_at_its_line() -> None:
    lines = github.render(SIMPLE).splitlines()
    assert lines[0] == (
        "::error file=release/model,line=7,title=privctl max_auc::release/model: m release/model (f release/model)"
    )
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice", "gate:"]


def test_github_escapes_as_the_runner_reads() -> None:
    """The runner takes properties apart at commas and colons, and then turns these escapes back."""
    (line, *_) = github.render(judgement("a,b:c%0A%25::d")).splitlines()
    match = re.fullmatch(r"::error file=([^,:]*),line=7,title=([^,:]*)::(.*)", line)
    assert match is not None
    back = match[1].replace("%2C", ",").replace("%3A", ":").replace("%25", "%")
    assert back == "a,b:c%0A%25::d"
    assert "%0A" not in match[3].replace("%250A", "")


# Markdown.


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:30])
def test_markdown_holds_no_html_link_mention_or_cell(text: str) -> None:
    rendered = gate_markdown.render(judgement(text))
    assert set(re.findall(r"<[^>]*>", rendered)) == {"<details>", "<summary>", "</summary>", "</details>"}
    assert not re.search(r"(?<!\\)\]\(|(?<!\\)!\[|@\w|#\d|://|www\.", rendered)
    for row in re.findall(r"^\|.*$", rendered, re.MULTILINE):
        cells = len(re.findall(r"(?<!\\)(?:\\\\)*\|", row))
        assert cells in (5, 6)


# JUnit.


@pytest.mark.parametrize("text", ["release/model", *HOSTILE], ids=lambda text: ascii(text)[:30])
def test_junit_parses_and_counts(text: str) -> None:
    root = ET.fromstring(junit.render(judgement(text)))
    (suite,) = root.findall("testsuite")
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 4, "failures": 1, "errors": 1, "skipped": 1}
    assert [len(root.findall(f".//testcase/{tag}")) for tag in ("failure", "error", "skipped")] == [1, 1, 1]
    case = suite.findall("testcase")[0]
    assert case.attrib["classname"] == "privctl.gate.max_auc"
    if text == "release/model":
        assert (case.attrib["file"], case.attrib["line"]) == ("release/model", "7")


# SARIF: what the schema of 2.1.0 and GitHub's page of supported properties demand of what is written here.


@pytest.mark.parametrize("text", ["release/model", *HOSTILE], ids=lambda text: ascii(text)[:30])
def test_sarif_has_the_required_members(text: str) -> None:
    log = json.loads(sarif.render(judgement(text)))
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert set(run) == {"tool", "invocations", "columnKind", "results", "properties"}
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == len(RULES)
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    assert len(run["results"]) == 3  # what passed is no result
    for result in run["results"]:
        assert set(result) <= {
            *("ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints", "properties"),
            "suppressions",
        }
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["region"]["startLine"] == 7
        uri = physical["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9%/._~-]+", uri)
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
    (suppressed,) = [result for result in run["results"] if "suppressions" in result]
    assert suppressed["suppressions"][0]["kind"] in ("inSource", "external")
    assert suppressed["suppressions"][0]["status"] == "accepted"


def test_every_sarif_rule_is_described_in_full() -> None:
    (run,) = json.loads(sarif.render(judgement("x")))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len(rules) > 10
    for rule in rules:
        short, full = rule["shortDescription"]["text"], rule["fullDescription"]["text"]
        assert short in full
        assert len(short) < len(full) <= 1000
    descriptions = {rule["id"]: rule["fullDescription"]["text"] for rule in rules}
    assert "No waiver can accept" in descriptions["model"]
    assert "may accept a finding" in descriptions["max_auc"]


def test_sarif_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sarif.uri_of(str(tmp_path / "a b" / "é.json")) == "a%20b/%C3%A9.json"
    assert sarif.uri_of("/etc/x y") == "file:///etc/x%20y"
    assert sarif.uri_of("c:x/y") == "c%3Ax/y"
    assert sarif.uri_of("../m.json") == "../m.json"


def test_fingerprints_tell_findings_apart() -> None:
    results = json.loads(sarif.render(SIMPLE))["runs"][0]["results"]
    prints = [result["partialFingerprints"]["privctlFinding/v1"] for result in results]
    assert prints[0] == prints[1] != prints[2]  # one rule, subject and file; another rule
    assert json.loads(sarif.render(SIMPLE)) == json.loads(sarif.render(SIMPLE))


# JSON.


def test_json_holds_everything() -> None:
    data = json.loads(gate_json.render(SIMPLE))
    assert (data["gate_version"], data["outcome"]) == (1, "fail")
    assert [finding["outcome"] for finding in data["findings"]] == ["fail", "inconclusive", "pass", "fail"]
    assert data["findings"][3]["waiver"] == "release/model"
    assert data["findings"][0]["line"] == 7
    for text in HOSTILE:
        assert json.loads(gate_json.render(judgement(text)))["findings"][0]["subject"] == text


def test_a_gate_that_looked_at_nothing_has_not_passed() -> None:
    assert GateJudgement(findings=()).outcome is INCONCLUSIVE
    assert "nothing was checked" in gate_text.render(GateJudgement(findings=()))


def test_text_gives_a_remedy_once_for_attacks_with_one_conclusion() -> None:
    above = "even the lower bound is above 0.7"
    found = [
        finding("r.json", subject=f"{attack} AUC", message=f"0.8 (0.7{i} to 0.9): {above}", fix="make it safer")
        for i, attack in enumerate(("loss", "zlib", "min-k"), start=1)
    ]
    other = finding("r.json", subject="lira AUC", message="0.6 (0.5 to 0.8): the upper bound is above 0.7", fix="more")
    text = " ".join(without_colour(gate_text.render(GateJudgement(findings=(*found, other)))).split())
    assert f"{above}: loss AUC 0.8 (0.71 to 0.9), zlib AUC 0.8 (0.72 to 0.9), min-k AUC 0.8 (0.73 to 0.9)" in text
    assert text.count("to fix: make it safer") == 1
    assert "at r.json:7, 7, 7" in text
    assert "max_auc: lira AUC: 0.6 (0.5 to 0.8): the upper bound is above 0.7 to fix: more" in text
    assert "4 failed" in text
