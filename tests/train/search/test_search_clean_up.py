"""A search that is killed between the release of its model and the end of its clean-up."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from privctl.accounting.runs_law import NumberOfRuns
from privctl.data.recorded import recorded_files
from privctl.domain.errors import CommandError, FileSystemError, InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.files import commit_with_report, digested_artifact, now, versions
from privctl.storage.atomic import writing
from privctl.train.methods import method_named
from privctl.train.methods.dp_sgd import DpSgdSettings
from privctl.train.preparation.places import begun_mark, report_path
from privctl.train.search import folder as search_folder
from privctl.train.search import runs as search_runs
from privctl.train.search.folder import SearchFolder
from privctl.train.search.runs import run_search
from privctl.train.settings.request import DataRequest, ModelRequest, RetrainRequest
from tests.models.tasks.small import architecture

RUNS = NumberOfRuns(mean=3, shape=1.0)


def trained(asked: RetrainRequest) -> PrivacyReport:
    """Instead of a training: a model of two numbers, and its report."""
    asked.output.mkdir()
    save_file({"w": np.ones(2, np.float32)}, asked.output / "model.safetensors")
    place = report_path(asked.output)
    (file,) = recorded_files(asked.output / "model.safetensors")
    report = PrivacyReport(
        step="retrain", created=now(), versions=versions(()), outputs=(digested_artifact("model", file, place),)
    )
    commit_with_report([], place, report, replace=False)
    return report


def again(asked: RetrainRequest) -> PrivacyReport:
    raise AssertionError("a run was made again")


def search(folder: Path, *, resume: bool = False) -> PrivacyReport:
    request = RetrainRequest(
        method=method_named("dp-sgd"),
        settings=DpSgdSettings(search="learning-rate=1e-3,1e-4"),
        model=ModelRequest(path=folder / "start"),
        data=DataRequest(train=folder / "train.jsonl", held_out=folder / "public.jsonl"),
        output=folder / "out",
        resume=resume,
    )
    return run_search(request, RUNS, again if resume else trained, lambda _: None)


@pytest.mark.parametrize("gone", [False, True])
def test_it_is_finished_where_the_output_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """With ``gone`` the kill came in the midst of it, when the run that was chosen had been deleted."""

    def killed(folder: SearchFolder) -> None:
        if gone:
            shutil.rmtree(folder.path / "run-1")
        raise KeyboardInterrupt

    architecture(tmp_path / "start", "gpt2", n_layer=1)
    for name in ("train", "public"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: 1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SearchFolder, "remove", killed)
        search(tmp_path)
    released, weights = report_path(tmp_path / "out").read_bytes(), tmp_path / "out" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(b"other")
    with pytest.raises(CommandError, match="--force"):
        search(tmp_path, resume=True)
    weights.write_bytes(kept)
    if gone:
        with monkeypatch.context() as patched, pytest.raises(InputError, match="the search had released its model"):
            patched.setattr(SearchFolder, "remove", lambda folder: None)
            (tmp_path / "out").rename(tmp_path / "away")
            report_path(tmp_path / "out").rename(tmp_path / "away.json")
            search(tmp_path, resume=True)
        (tmp_path / "away").rename(tmp_path / "out")
        (tmp_path / "away.json").rename(report_path(tmp_path / "out"))
    search(tmp_path, resume=True)
    assert report_path(tmp_path / "out").read_bytes() == released
    assert not (tmp_path / "out.search").exists()


@pytest.mark.parametrize("over", [False, True])
def test_a_run_whose_model_was_deleted_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """``over``: the kill came once the run was scored, else before. A run made twice is one that nobody counts."""
    architecture(tmp_path / "start", "gpt2", n_layer=1)
    for name in ("train", "public"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: 1)

    def killed(*_: object) -> None:
        begun_mark(tmp_path / "out.search" / "run-1" / "out").touch()  # as a training does before its first step
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SearchFolder, "mark_release" if over else "record", killed)
        patched.setattr(search_runs, "score_of", lambda report: 1.0)
        search(tmp_path)
    shutil.move(tmp_path / "out.search" / "run-1", tmp_path / "away")
    for _ in range(2):
        with pytest.raises(InputError, match="run 1 of the search was begun, and neither its model nor its state"):
            search(tmp_path, resume=True)
    shutil.rmtree(tmp_path / "out.search" / "run-1")
    shutil.move(tmp_path / "away", tmp_path / "out.search" / "run-1")
    search(tmp_path, resume=True)
    assert not (tmp_path / "out.search").exists()


def test_a_disk_that_is_full_is_no_reason_for_another_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun elsewhere, it would be a second search, which this guarantee does not count."""
    architecture(tmp_path / "start", "gpt2", n_layer=1)
    for name in ("train", "public"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    monkeypatch.setattr(search_folder.runs_law, "draw", lambda *_: 1)

    def full(*_: object) -> None:
        with writing(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(FileSystemError, match="mend that, then continue with --resu"):
        patched.setattr(SearchFolder, "mark_release", full)
        search(tmp_path)
    search(tmp_path, resume=True)
    assert not (tmp_path / "out.search").exists()
