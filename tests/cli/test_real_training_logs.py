"""``retrain --log wandb`` and ``--log mlflow`` with the libraries themselves, which send nothing from here."""

from __future__ import annotations

import getpass
import os
import platform
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from privctl.train.steps import loop
from tests.cli.test_training_logs import EXACT, data, retrain, rows

pytestmark = pytest.mark.slow
__all__ = ["data"]
CALL = ("--noise-multiplier", "2", "--log", "csv")


def stopped_and_resumed(start: Path, data: Path, output: Path, service: str, patch: pytest.MonkeyPatch) -> None:
    """A private training that ends before its ninth step, and then goes on."""
    step = loop.Trainer._step

    def interrupted(self: Any, engine: Any, optimizer: Any, updates: int, *args: Any) -> Any:
        if updates == 8:
            raise MemoryError("killed")
        return step(self, engine, optimizer, updates, *args)

    with patch.context() as patched:
        patched.setattr(loop.Trainer, "_step", interrupted)
        assert retrain("dp-sgd", start, data, output, "--log", service, *CALL) == 4
    assert retrain("dp-sgd", start, data, output, "--log", service, *CALL, "--resume") == 0


def test_mlflow_keeps_one_run_with_what_is_released(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    stopped_and_resumed(start, data, tmp_path / "out", "mlflow", monkeypatch)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("out", "FINISHED")
    assert not EXACT & {*run.data.metrics}
    kept = {(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "epsilon")}
    mine = {(int(row["step"]), float(row["value"])) for row in rows(tmp_path / "out") if row["measure"] == "epsilon"}
    assert mine <= kept
    assert max(kept) == max(mine), "the last epsilon is that of the whole run"


def test_wandb_records_nothing_of_the_machine_and_prints_nothing(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    stopped_and_resumed(start, data, tmp_path / "out", "wandb", monkeypatch)
    assert "wandb" not in capfd.readouterr().err
    folder = tmp_path / "wandb"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    runs = [path.read_bytes() for path in folder.glob("offline-run-*/run-*.wandb")]
    assert runs
    assert len({path.stem for path in folder.glob("offline-run-*/run-*.wandb")}) == 1, "both belong to one run"
    assert any(b"epsilon" in run for run in runs)
    names = {platform.node(), getpass.getuser()}  # one of three letters is found in any file
    for secret in {*EXACT, str(tmp_path), os.getcwd(), sys.executable, *(name for name in names if len(name) > 4)}:
        assert not any(secret.encode() in run for run in runs), secret
    assert not [path for path in folder.rglob("*") if path.name in ("requirements.txt", "wandb-metadata.json")]
