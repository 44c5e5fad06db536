"""Presidio's recognizers beside ours, with a module of its interface in its place: it is no dependency of the tests."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.secrets.table import read_secrets

# As presidio_analyzer 2.2 is called: AnalyzerEngine(supported_languages=), get_supported_entities(language=),
# analyze(text=, language=, entities=, score_threshold=) -> results with entity_type, start, end and score.
FAKE = r"""
import re

class RecognizerResult:
    def __init__(self, entity_type, start, end, score):
        self.entity_type, self.start, self.end, self.score = entity_type, start, end, score

class AnalyzerEngine:
    calls = []

    def __init__(self, *, supported_languages):
        assert supported_languages == ["en"]

    def get_supported_entities(self, language=None):
        assert language == "en"
        return ["PERSON", "EMAIL_ADDRESS", "US_BANK_NUMBER", "DATE_TIME", "URL"]

    def analyze(self, text, language, entities=None, score_threshold=None):
        self.calls.append((text, tuple(entities)))
        found = [("PERSON", m, 0.85) for m in re.finditer(r"Ann Lee|Bo\s+Ek", text)]
        found += [("EMAIL_ADDRESS", m, 1.0) for m in re.finditer(r"\S+@\S+", text)]
        found += [("US_BANK_NUMBER", m, 0.05) for m in re.finditer(r"[0-9]{8}", text)]
        found += [("DATE_TIME", m, 0.85) for m in re.finditer(r"today", text)]
        return [
            RecognizerResult(kind, m.start(), m.end(), score)
            for kind, m, score in found
            if kind in entities and score >= (score_threshold or 0)
        ]
"""
TEXTS = ("Ann Lee, ann@example.org", "Bo  Ek and Ann Lee today", "order 12345678", "nobody")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def scan(data: Path, *more: str) -> int:
    return run(["secrets", "scan", str(data), "-o", str(data.with_name("secrets.jsonl")), *more])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "presidio_analyzer.py").write_text(FAKE.replace("\\\\\\\\", "\\\\"))
    (folder / "en_core_web_lg.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    for name in ("presidio_analyzer", "en_core_web_lg"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder
    for name in ("presidio_analyzer", "en_core_web_lg"):
        sys.modules.pop(name, None)


def test_its_findings_are_kinds_beside_ours(data: Path, installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scan(data, "--presidio") == 0
    stdout = capsys.readouterr().out
    book = {(each.kind, each.value): each.records.tolist() for each in read_secrets(data.with_name("secrets.jsonl"))}
    assert book == {
        ("presidio-person", "Ann Lee"): [0, 1],
        ("presidio-person", "Bo  Ek"): [1],
        ("email", "ann@example.org"): [0],  # ours comes first where both find the same
    }
    assert "names of people" not in stdout
    assert "postal addresses" in stdout
    report = read_report(data.with_name("secrets.report.json"))
    assert "presidio-person" in report.parameters["kinds"]
    assert not {"presidio-date-time", "presidio-url"} & {*report.parameters["kinds"]}
    assert not any("names of people" in line for line in report.warnings)


def test_each_text_is_analysed_once(data: Path, installed: Path) -> None:
    assert scan(data, "--presidio", "--kinds", "none", "-q") == 0
    calls = importlib.import_module("presidio_analyzer").AnalyzerEngine.calls
    assert [text for text, _ in calls] == list(TEXTS)
    assert {entities for _, entities in calls} == {("EMAIL_ADDRESS", "PERSON", "US_BANK_NUMBER")}


def test_a_pattern_cannot_take_the_name_of_its_kind(
    data: Path, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scan(data, "--presidio", "--pattern", "presidio-person=x") == 2
    assert "has the name of another kind of secret" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["presidio_analyzer", "en_core_web_lg"])
def test_what_is_missing_is_said_with_what_to_install(
    missing: str, data: Path, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / f"{missing}.py").unlink()
    importlib.invalidate_caches()
    if importlib.util.find_spec(missing) is not None:
        pytest.skip(f"{missing} is installed here")
    assert scan(data, "--presidio") == 2
    stderr = capsys.readouterr().err
    assert len(stderr.splitlines()) == 1
    name = {"presidio_analyzer": "pip install presidio-analyzer", "en_core_web_lg": "spacy download en_core_web_lg"}
    assert name[missing] in stderr
    assert not data.with_name("secrets.report.json").exists()


def test_it_is_imported_only_when_it_is_asked_for(
    data: Path, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scan(data) == 0
    assert "presidio_analyzer" not in sys.modules
    assert "names of people" in capsys.readouterr().out
