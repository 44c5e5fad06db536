"""The gate computes an audit's figures again from the ranks that it kept, where these are present."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.gate.genuine import genuine
from tests.gate.made import FAIL, PASS, judged, of


@pytest.fixture
def release(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(genuine(tmp_path_factory) / "release", tmp_path / "release"))


def recomputed(release: Path) -> list[str]:
    reports = [release / "clipped.report.json", release / "clipped.audit.report.json"]
    findings = of(judged(*reports, max_auc="0.99", recompute="true"), "recomputed")
    assert {finding.outcome for finding in findings} <= {FAIL, PASS}
    return [finding.message for finding in findings if finding.outcome is FAIL]


def test_a_changed_p_value_of_the_blind_baseline_is_noticed_by_the_ranks_alone(release: Path) -> None:
    """Planted: records that can be distinguished without the model, which would excuse a leak."""
    assert recomputed(release) == []
    path = release / "clipped.audit.report.json"
    report = json.loads(path.read_text())
    (baseline,) = (item for item in report["evidence"] if item["method"] == "blind baseline")
    baseline["details"]["p_value"] -= 0.05
    path.write_text(json.dumps(report))
    (message,) = recomputed(release)
    assert "blind baseline" in message
    (release / "clipped.audit.scores.safetensors").unlink()
    assert recomputed(release) == []
