"""Presidio itself: ours calls it as it is, and finds what it finds. Its language model is a small one made here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.reports.files import read_report
from privctl.secrets.table import read_secrets

pytestmark = pytest.mark.slow
NAME = "en_core_web_lg"
TEXTS = ("Ann Lee has the card 4111 1111 1111 1111", "mail ann@example.org, or Ann  Lee", "order 12345678", "nobody")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Presidio, with a package in its model's place that knows one person."""
    pytest.importorskip("presidio_analyzer")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
    spacy = pytest.importorskip("spacy")
    if importlib.util.find_spec(NAME) is None:
        site = tmp_path / "site"
        (site / f"{NAME}-0.dist-info").mkdir(parents=True)
        (site / f"{NAME}-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
        language = spacy.blank("en")
        ruler = language.add_pipe("entity_ruler")
        ruler.add_patterns(
            [{"label": "PERSON", "pattern": [{"LOWER": "ann"}, {"IS_SPACE": True, "OP": "?"}, {"LOWER": "lee"}]}]
        )
        language.to_disk(site / NAME)
        (site / NAME / "__init__.py").write_text(
            "from pathlib import Path\nfrom spacy.util import load_model_from_path\n\n\n"
            "def load(**given):\n    return load_model_from_path(Path(__file__).parent, **given)\n"
        )
        monkeypatch.syspath_prepend(site)
        importlib.invalidate_caches()
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("installed")
def test_what_presidio_finds_is_in_the_book(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    output = tmp_path / "secrets.jsonl"
    assert run(["secrets", "scan", str(data), "--presidio", "--kinds", "none", "-o", str(output)]) == 0
    captured = capsys.readouterr()
    found = {(each.kind, each.value): each.records.tolist() for each in read_secrets(output)}
    assert found["presidio-person", "Ann Lee"] == [0, 1]
    assert found["presidio-credit-card", "4111 1111 1111 1111"] == [0]
    assert found["presidio-email-address", "ann@example.org"] == [1]
    assert not any(value == "12345678" for _, value in found), "a guess with a score of 0.05"
    assert "names of people" not in captured.out
    assert {"presidio-person", "presidio-us-ssn"} <= {
        *read_report(tmp_path / "secrets.report.json").parameters["kinds"]
    }
    assert all(line.startswith("privctl: wrote ") for line in captured.err.splitlines()), (
        "its log is none of our messages"
    )
