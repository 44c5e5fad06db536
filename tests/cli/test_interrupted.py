"""Ctrl-C that ends a training at once is answered with what there is to go on from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.cli.interrupted import explaining_interrupts
from privctl.domain.errors import RunInterruptedError
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.saved_state import SavedState


def message_after_interrupt(output: Path, *, meanwhile: Path | None = None) -> str:
    """The message about ``output`` where Ctrl-C comes right after ``meanwhile`` was written."""
    with pytest.raises(RunInterruptedError) as raised, explaining_interrupts(output):
        if meanwhile is not None:
            meanwhile.write_text("{}")
        raise KeyboardInterrupt
    assert raised.value.exit_code == 130
    return str(raised.value)


def test_each_moment_has_its_own_sentence(tmp_path: Path) -> None:
    output, report = tmp_path / "out", tmp_path / "out.report.json"
    assert message_after_interrupt(output) == (
        "interrupted before the training began: there is no state to resume, so run the same command again"
    )
    with RunFolder.begin(tmp_path / "out.run", {}) as folder:
        assert message_after_interrupt(output).startswith("interrupted before a state was saved;")
        assert message_after_interrupt(output).endswith(
            "with --resume and the same settings the training starts again from the first step"
        )
        folder.save(SavedState(updates=1, steps_begun=1, tensors={}))
        assert message_after_interrupt(output) == (
            f"interrupted; the state saved last is in {output}.run: continue with --resume and the same settings"
        )
    assert message_after_interrupt(output, meanwhile=report) == (
        f"interrupted after {output} was finished; out.report.json is its report"
    )


def test_what_an_earlier_run_left_is_not_this_one(tmp_path: Path) -> None:
    """With ``--force`` there is a report before the training began."""
    (tmp_path / "out.report.json").write_text("{}")
    assert "there is no state to resume" in message_after_interrupt(tmp_path / "out")
    os.utime(tmp_path / "out.report.json", (1, 1))
    (tmp_path / "out.search").mkdir()
    assert message_after_interrupt(tmp_path / "out").startswith(
        f"interrupted; the search is kept in {tmp_path / 'out.search'}: continue"
    )


def test_the_command_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privctl.api.training.run", interrupted)
    call = ["retrain", "plain", str(tmp_path), "--data", str(tmp_path), "-o", str(tmp_path / "out")]
    assert run(call) == 130
    assert "before the training began: there is no state to resume" in capsys.readouterr().err
    monkeypatch.setattr("privctl.cli.retrain._plan", interrupted)
    assert run([*call, "--dry-run"]) == 130
    assert capsys.readouterr().err.strip() == "privctl: interrupted; every file under its final name is complete"


def test_shadow_models_say_how_many_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shadows"

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privctl.shadow.run.run_shadows", interrupted)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "data.jsonl").touch()
    call = ["shadow", str(tmp_path), "--data", str(tmp_path / "data.jsonl"), "--count", "3", "-o", str(folder)]
    for stored, message in (
        (0, "interrupted before a shadow model was finished: nothing is saved, so run the same command again"),
        (2, f"interrupted; 2 of 3 shadow models are finished, and their scores are in {folder}: run the same command"),
        (3, f"interrupted after all 3 shadow models were finished; {folder / 'shadow.report.json'} lists them"),
    ):
        folder.mkdir(exist_ok=True)
        for index in range(stored):
            (folder / f"shadow-{index:04d}.scores.safetensors").touch()
        assert run([*call, "--task", "causal-lm"]) == 130
        assert message in capsys.readouterr().err
