"""``privctl inspect``: tensors, digests and the chain."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from privctl.cli import run
from privctl.reports.codec import decode

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_model_without_a_report(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W, "s": np.array(4, np.int64)})
    assert run(["inspect", str(model)]) == 0
    shown = capsys.readouterr().out
    assert blake3(W.tobytes()).hexdigest()[:12] in shown
    assert "2x3" in shown
    assert "24 B" in shown
    assert f"blake3:{blake3(model.read_bytes()).hexdigest()}" in shown
    assert "scalar" in shown
    assert "no report" in shown


def test_json_decodes(tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W})
    assert run(["inspect", str(model), "--json"]) == 0
    report = decode(capsys.readouterr().out, "stdout")
    assert report.step == "inspect"
    assert report.inputs[0].digest == "blake3:" + blake3(model.read_bytes()).hexdigest()
    assert report.inputs[0].tensors[0].digest == "blake3:" + blake3(W.tobytes()).hexdigest()


def test_a_report_that_is_named_but_gone(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W}, {"privctl.report": "gone.report.json"})
    assert run(["inspect", str(model)]) == 3
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_a_report_named_by_the_user_must_be_one(
    tmp_path: Path, write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"w": W})
    (tmp_path / "other.json").write_text("{}")
    for name in ("none.json", "other.json"):
        assert run(["inspect", str(model), "--report", str(tmp_path / name)]) == 3
        assert name in capsys.readouterr().err


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\xff" * 7)
    assert run(["inspect", str(tmp_path / "m.safetensors")]) == 3
    assert "truncated" in capsys.readouterr().err
