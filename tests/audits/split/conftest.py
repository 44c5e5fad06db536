"""An audit of a split, for all files."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.cli import run
from tests.audits.split.test_split import drawn
from tests.audits.tiny import sentences


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """The report of an audit of a model that was trained on nothing."""
    place = tmp_path_factory.mktemp("audited")
    split = drawn(place, sentences(60, 3))
    report = place / "r.report.json"
    words = ["--claim", "8,1e-5", "-o", str(report), "--log", str(place / "log"), "-q"]
    assert run(["audit", str(llama), "--split", str(split), *words]) == 0
    return report
