"""``privctl audit scores`` with the scores of many models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from privctl.cli import run
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report

if TYPE_CHECKING:
    import pytest


def test_scores_from_many_models(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"with": [3.0] * 500, "without": [0.0] * 500}))
    assert run(["audit", "--from-scores", str(path), "--claim", "2,1e-5"]) == 1
    out = capfd.readouterr().out
    assert "REFUTED" in out
    report = read_report(tmp_path / "scores.audit.report.json")
    assert report.verdicts[0].outcome is Outcome.REFUTED
    assert [item.role for item in report.inputs] == ["scores"]
    assert "The exit code" not in out, "the claim's verdict tells"
    assert run(["audit", "--from-scores", str(path), "-f"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert out.startswith("Do not release: for a single record, epsilon is at least ")
    assert "The exit code is 0 nevertheless, because no claim of privacy was refuted." in out
    assert run(["audit", "--from-scores", str(path), "-f", "--json"]) == 0
    assert (
        capfd.readouterr().err.splitlines()[-1].startswith("privctl: Do not release: for a single record, epsilon is")
    )
