"""Tests for a GPU; skipped without one. ``PRIVCTL_TEST_DEVICE=cpu`` runs them without, to see that they work.

``PRIVCTL_TEST_OUTCOMES`` names a file to write, after each test, how all so far ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

_outcomes: list[dict[str, Any]] = []


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where to compute what is then compared with a processor's."""
    named = os.environ.get("PRIVCTL_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "")
    if not named:
        pytest.skip("there is no GPU")
    return torch.device(named)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is for a GPU."""
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what ended a test: its call, or a fixture that failed or skipped it."""
    place = os.environ.get("PRIVCTL_TEST_OUTCOMES")
    if not place or (report.when != "call" and report.outcome == "passed"):
        return
    failure = "" if report.outcome == "passed" else report.longreprtext[-2000:]
    name = report.nodeid.partition("::")[2]
    _outcomes.append({"test": name, "outcome": report.outcome, "seconds": round(report.duration, 3), "said": failure})
    found = {"device": os.environ.get("PRIVCTL_TEST_DEVICE", ""), "tests": _outcomes}
    Path(place).write_text(json.dumps(found, indent=2) + "\n")
