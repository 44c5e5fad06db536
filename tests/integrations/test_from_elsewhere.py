"""``privctl inspect --write-report``: a first report of another program's model, and what builds on it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import privctl
from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.reports.files import read_report
from tests.audits.record_scores.test_audit_of_scores import drawn, table

FACTS = ["--epochs", "1", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "10", "--batch-size", "5"]


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    weights = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    write_model(tmp_path / "m" / "model.safetensors", {"w": weights})
    return tmp_path / "m"


def test_what_the_report_says(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = model.with_name("m.report.json")
    assert run(["inspect", str(model), "--write-report"]) == 0  # and is verified: tests/reports_verified.py
    out, err = capsys.readouterr()
    assert "no privacy guarantee" in out
    assert "wrote " in err
    assert f"{report_path.name}: digests of the model's files, and no privacy guarantee" in err
    report = read_report(report_path)
    assert {file.path for file in report.outputs} == {"m/model.safetensors", "m/config.json"}
    assert report.guarantees == ()
    assert report.warnings[0].startswith("no privacy guarantee: how this model was trained is not known here")
    assert report_path.stat().st_mode & 0o777 == 0o600
    assert run(["gate", str(model), "--max-epsilon", "9000"]) == 1
    assert "no guarantee counts: the reports state none" in " ".join(capsys.readouterr().out.split())
    (model / "config.json").write_text('{"a": 1}')
    assert run(["verify", str(report_path), "-q"]) == 1


def test_noise_and_audits_build_on_it(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    weights = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    model = write_model(tmp_path / "m.safetensors", {"w": weights})
    privctl.from_elsewhere(model)
    assert run(["noise", str(model), "-q", "-o", str(tmp_path / "n.safetensors"), *FACTS]) == 0
    report_path = tmp_path / "a.report.json"
    scores = table(tmp_path / "s.csv", *drawn(200, 0.0))
    assert run(["audit", "scores", str(scores), "--model", str(model), "-q", "-o", str(report_path)]) == 0
    for built in (tmp_path / "n.report.json", report_path):
        assert [parent.path for parent in read_report(built).parents] == ["m.report.json"]


def test_a_model_with_a_report_or_another_file_in_its_place_is_refused(
    model: Path, tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    privctl.from_elsewhere(model)
    before = model.with_name("m.report.json").read_bytes()
    with pytest.raises(CommandError, match="has a report already"):
        privctl.from_elsewhere(model)
    write_model(model / "model.safetensors", {"w": np.zeros(3, np.float32)})
    with pytest.raises(CommandError, match="exists and is no report of this model"):
        privctl.from_elsewhere(model)
    assert model.with_name("m.report.json").read_bytes() == before
    named = write_model(tmp_path / "n.safetensors", {"w": np.zeros(3, np.float32)}, {"privctl.report": "gone.json"})
    with pytest.raises(CommandError, match="names its report, .*gone.json"):
        privctl.from_elsewhere(named)
    assert not (tmp_path / "n.report.json").exists()


def test_options_that_do_not_go_together(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(model), "--write-report", "--report", "m.report.json"]) == 2
    assert "remove it, or --report" in capsys.readouterr().err
    assert run(["inspect", "m.audits.jsonl", "--write-report"]) == 2
    assert "does not apply to a log of audits" in capsys.readouterr().err


@pytest.mark.forged("changes a report")
@pytest.mark.parametrize("change", ["epochs", "program", "warning"])
def test_changed_reports_are_refuted(model: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    privctl.from_elsewhere(model)
    report_path = model.with_name("m.report.json")
    report = json.loads(report_path.read_text())
    if change == "warning":
        report["warnings"] = []
    else:
        report["parameters"] |= {"epochs": {"epochs": 3.0}, "program": {"program": "opacus"}}[change]
    report_path.write_text(json.dumps(report))
    assert run(["verify", str(report_path), "-q"]) == 1
