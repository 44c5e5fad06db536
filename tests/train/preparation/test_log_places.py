"""Whose log ``--resume --log csv`` may continue."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.train.preparation.log_places import private_log_warning, require_logs
from privctl.train.settings.choices import LogName


def request(tmp_path: Path, **changes: Any) -> Any:
    (tmp_path / "out.run").mkdir(exist_ok=True)
    (tmp_path / "out.log.csv").write_text("step,measure,value\n1,loss,2.0\n")
    return SimpleNamespace(**{"logs": (LogName.CSV,), "output": tmp_path / "out", "force": False, **changes})


@pytest.mark.parametrize(
    ("kept", "text", "own"),
    [
        ({"begun": ["csv"]}, None, True),
        ({"begun": ["csv"]}, "name,amount\nrent,900\n", False),
        ({"begun": ["wandb"]}, None, False),
        ({"logged": 3}, None, True),  # of a run that an earlier privctl began
        ({}, None, False),
    ],
)
def test_only_the_log_that_the_run_began_is_continued(
    tmp_path: Path, kept: dict[str, Any], text: str | None, own: bool
) -> None:
    resumed = request(tmp_path, resume=True)
    (tmp_path / "out.run" / "logs.json").write_text(json.dumps(kept))
    if text is not None:
        (tmp_path / "out.log.csv").write_text(text)
    if own:
        require_logs(resumed)
    else:
        with pytest.raises(CommandError, match=r"out\.log\.csv exists"):
            require_logs(resumed)
        require_logs(request(tmp_path, resume=True, force=True))


def test_a_new_run_replaces_no_log(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"out\.log\.csv exists"):
        require_logs(request(tmp_path, resume=False))


def test_a_new_run_replaces_no_folder_of_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    asked = request(tmp_path, logs=(LogName.TENSORBOARD,), resume=False)
    require_logs(asked)
    (tmp_path / "out.tensorboard").mkdir()
    with pytest.raises(CommandError, match=r"out\.tensorboard exists; give --force"):
        require_logs(asked)
    for more in ({"resume": True}, {"resume": False, "force": True}):
        require_logs(request(tmp_path, logs=(LogName.TENSORBOARD,), **more))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="needs tensorboard, which is not installed"):
        require_logs(asked)


@pytest.mark.parametrize(
    ("logs", "private", "show_unprotected", "warned"),
    [
        (("csv", "wandb"), True, True, "to wandb;"),
        (("wandb", "mlflow"), True, True, "to wandb and mlflow;"),
        (("csv", "tensorboard"), True, True, None),
        (("mlflow",), True, False, None),
        (("mlflow",), False, True, None),
    ],
)
def test_a_service_that_is_sent_exact_losses_of_private_examples_is_warned_of(
    logs: tuple[str, ...], private: bool, show_unprotected: bool, warned: str | None
) -> None:
    asked: Any = SimpleNamespace(
        logs=tuple(map(LogName, logs)), method=SimpleNamespace(private=private), show_unprotected=show_unprotected
    )
    warning = private_log_warning(asked)
    assert warning is None if warned is None else warned in (warning or "")
