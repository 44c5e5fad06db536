"""Two processes with the same output: what another one did meanwhile is not taken for one's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privctl.cli import run
from privctl.train.methods.dp_zo import run as dp_zo
from privctl.train.methods.dp_zo.trainer import ZerothOrderTrainer
from privctl.train.state import resuming
from tests.cli.short_runs import prepared

if TYPE_CHECKING:
    import pytest

CALL = ["--steps", "3", "--batch-size", "6", "--delta", "1e-3", "--noise-multiplier", "1", "--device", "cpu", "-q"]


def call(folder: Path) -> list[str]:
    data = ["--data", str(folder / "train.jsonl")]
    return ["retrain", "dp-zo", str(folder / "start"), *data, "-o", str(folder / "out"), *CALL]


def test_a_run_does_not_go_on_with_the_seed_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run whose seed was read is finished, and another one begins before its state is read."""
    asked = call(prepared(tmp_path, 30))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ZerothOrderTrainer, "_epoch_measures", killed)
        assert run(asked) == 130
        shutil.move(tmp_path / "out.run", tmp_path / "first.run")
        assert run(asked) == 130
    shutil.move(tmp_path / "out.run", tmp_path / "second.run")
    shutil.move(tmp_path / "first.run", tmp_path / "out.run")
    tested = dp_zo._tested

    def replaced(*values: Any) -> Any:
        shutil.rmtree(tmp_path / "out.run")
        shutil.copytree(tmp_path / "second.run", tmp_path / "out.run")
        return tested(*values)

    with monkeypatch.context() as patched:
        patched.setattr(dp_zo, "_tested", replaced)
        assert run([*asked, "--resume"]) == 3
    assert "is now that of another run, which began meanwhile" in capsys.readouterr().err
    seed = (tmp_path / "second.run" / "public-seed").read_bytes()
    assert (tmp_path / "out.run" / "public-seed").read_bytes() == seed
    assert run([*asked, "--resume"]) == 0


def test_nothing_is_trained_for_an_output_that_another_process_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = call(prepared(tmp_path, 30))
    begin, steps = resuming.RunFolder.begin, []

    def late(*values: Any) -> Any:
        monkeypatch.setattr(resuming.RunFolder, "begin", begin)
        assert run(asked) == 0
        monkeypatch.setattr(ZerothOrderTrainer, "_step", lambda *_: steps.append(1))
        return begin(*values)

    monkeypatch.setattr(resuming.RunFolder, "begin", late)
    assert run(asked) == 2
    assert "out exists; give --force" in capsys.readouterr().err
    assert not steps
    assert not (tmp_path / "out.run").exists()
