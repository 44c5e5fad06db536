"""What TensorBoard is given."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from privctl.train.logs.writers import TensorBoardLog

if TYPE_CHECKING:
    import pytest


class Writer:
    """What ``torch.utils.tensorboard.SummaryWriter`` was called with."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.written, self.closed = settings, list[tuple[str, float, int]](), 0

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))

    def close(self) -> None:
        self.closed += 1


def test_tensorboard_gets_each_measure_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[Writer] = []

    def writer(**settings: Any) -> Writer:
        writers.append(Writer(**settings))
        return writers[-1]

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    folder = tmp_path / "out.tensorboard"
    folder.mkdir(mode=0o755)
    log = TensorBoardLog(folder, 3)
    log.write(4, {"training_loss": 2.5, "learning_rate": 0.1})
    log.close()
    (found,) = writers
    assert found.settings == {"log_dir": str(folder), "purge_step": 4}
    assert found.written == [("training_loss", 2.5, 4), ("learning_rate", 0.1, 4)]
    assert found.closed == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
