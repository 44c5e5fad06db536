"""Tensors that ``noise --include`` and ``--exclude`` leave out: none that was trained is released without noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from privctl.noise import request
from tests.verify.kinds import Kinds
from verify.run import read, verify

EXCLUDED = "transformer.h.0.*"


def noised(kinds: Kinds, output: Path, *more: str) -> int:
    return run([str(each) for each in ("noise", kinds["clipped"].model, *more, "--epsilon", 1, "-q", "-o", output)])


def test_trained_tensors_are_not_left_out(kinds: Kinds, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (("--exclude", EXCLUDED), ("--include", "transformer.wte.*")):
        assert noised(kinds, tmp_path / "out", *more) == ExitCode.BAD_INPUT
        assert "is left out of the noise, but was trained, as" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.forged("the tensors that were left out are said to depend on no record")
def test_a_report_that_leaves_them_out_is_refuted(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "require_untrained", lambda *_: None)
    assert noised(kinds, tmp_path / "out", "--exclude", EXCLUDED) == ExitCode.OK
    report_path = tmp_path / "out.report.json"
    found = verify(report_path, read(report_path))
    assert found.exit_code is ExitCode.REFUTED
    assert any("the training of these weights trained it" in verdict.reason for verdict in found.verdicts)
    assert run(["gate", str(report_path), "--max-epsilon", "3", "--at-delta", "1e-3", "-q"]) == ExitCode.REFUTED
    assert "the training of these weights trained it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.forged("the training is said to have trained other tensors alone")
def test_what_a_training_left_as_it_was_may_be_left_out(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the report of the training, which trained other tensors alone."""
    monkeypatch.setattr(request, "require_untrained", lambda *_: None)
    assert noised(kinds, tmp_path / "out", "--exclude", EXCLUDED) == ExitCode.OK
    monkeypatch.undo()
    model = kinds["clipped"].model
    assert model is not None
    own = kinds["clipped"].path
    report = json.loads(own.read_text())
    report["parameters"]["trained"] = [
        "transformer.wte.*",
        "transformer.h.1.*",
        "transformer.wpe.*",
        "transformer.ln_f.*",
    ]
    kept = own.read_text()
    try:
        own.write_text(json.dumps(report))
        assert noised(kinds, tmp_path / "again", "--exclude", EXCLUDED) == ExitCode.OK
        report_path = tmp_path / "again.report.json"
        verdicts = verify(report_path, read(report_path)).verdicts
        assert not any("trained it" in verdict.reason for verdict in verdicts)
    finally:
        own.write_text(kept)
