"""An audit of a split, for all files."""

from __future__ import annotations

from pathlib import Path

import pytest

from privctl.cli import run
from tests.audits.split.test_split import drawn
from tests.audits.split.users import drawn_users
from tests.audits.tiny import sentences


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """The report of an audit of a model that was trained on nothing."""
    folder = tmp_path_factory.mktemp("audited")
    split = drawn(folder, sentences(60, 3))
    report = folder / "r.report.json"
    words = ["--claim", "8,1e-5", "-o", str(report), "--log", str(folder / "log"), "-q"]
    assert run(["audit", str(llama), "--split", str(split), *words]) == 0
    return report


@pytest.fixture(scope="session")
def audited_users(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """Of a model that was trained on nothing, whose users share some texts."""
    place = tmp_path_factory.mktemp("audited_users")
    folder = drawn_users(place, 63, [*sentences(250, 3), "w1 w2 w3"], records=45)
    words = ["--attack", "loss", "--claim", "8,1e-5", "-o", str(place / "a.report.json"), "--log", str(place / "log")]
    assert run(["audit", "membership", str(llama), "--split", str(folder), *words, "--device", "cpu", "-q"]) == 0
    return place / "a.report.json"
