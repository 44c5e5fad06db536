"""A run of a search that lost all of its steps in a kill loses, and the search goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.train.search import folder as search_folder
from privctl.train.state.run_folder import RunFolder
from tests.cli.short_runs import dp_sgd, prepared, texts

CALL = ["--batch-size", "6", "--steps", "1", "--device", "cpu", "--delta", "1e-3", "--noise-multiplier", "1"]
SEARCH = ["--search", "learning-rate=1e-3,1e-6", "--expected-runs", "3"]


@pytest.mark.parametrize("runs", [1, 2])
def test_it_loses(
    runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    folder = prepared(tmp_path, 30)
    texts(folder / "public.jsonl", 8, "dog")
    asked = dp_sgd(folder, tmp_path / "out", "--held-out", str(folder / "public.jsonl"), *CALL, *SEARCH)
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: runs)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", killed)
        assert run(asked) == 130
    assert run([*asked, "--resume"]) == (0 if runs == 2 else 3)
    stderr = capsys.readouterr().err
    assert "run 1 loses: all of its steps were begun, and none was saved" in stderr
    assert ("every run of the search diverged or was lost" in stderr) is (runs == 1)
    assert (tmp_path / "out.report.json").exists() is (runs == 2)
    assert not (tmp_path / "out.search").exists()
