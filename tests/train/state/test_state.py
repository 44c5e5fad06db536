"""The run folder: whole states only, and a count of steps begun that never goes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privctl.domain.errors import CommandError, FileSystemError, InputError
from privctl.storage.turns import Claim
from privctl.train.state.run_folder import RunFolder
from privctl.train.steps.saved_state import SavedState

FACTS = {"steps": 10, "clip_norm": 1.0, "task": "causal-lm"}


def saved(step: int, spent: int) -> SavedState:
    return SavedState(
        updates=step, steps_begun=spent, tensors={"model.w": torch.full((3,), float(step))}, history=({"a": 1.0},)
    )


def test_a_state_comes_back(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(4)
        folder.save(saved(4, 4))
    again, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun, found.history) == (4, 4, ({"a": 1.0},))
    assert found.tensors["model.w"].tolist() == [4.0, 4.0, 4.0]
    again.remove()
    assert not (tmp_path / "run").exists()


def test_steps_begun_after_the_state_stay_spent(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(4)
        folder.save(saved(4, 4))
        folder.mark(5)
        folder.mark(6)  # killed here
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun) == (4, 6)


def test_a_kill_before_the_first_state_still_counts(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(3)
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun, dict(found.tensors)) == (0, 3, {})


@pytest.mark.parametrize(
    ("error", "steps", "sides", "forgets", "kept"),
    [
        (InputError, 1, 0, True, False),
        (MemoryError, 1, 0, True, False),
        (InputError, 2, 0, True, True),
        (InputError, 1, 1, True, True),
        (InputError, 1, 0, False, True),
        (FileSystemError, 1, 0, True, True),
        (KeyboardInterrupt, 1, 0, True, True),
    ],
)
def test_a_failure_in_the_first_step_leaves_nothing_behind(
    tmp_path: Path, error: type[BaseException], steps: int, sides: int, forgets: bool, kept: bool
) -> None:
    folder = RunFolder.begin(tmp_path / "run", FACTS)
    folder.forgets_failed_start = forgets
    with pytest.raises(error), folder:
        for number in range(1, steps + 1):
            folder.mark(number)
        for number in range(1, sides + 1):
            folder.mark_side_releases(number)
        raise error
    assert (tmp_path / "run").exists() is kept


def test_a_run_that_goes_on_is_not_said_to_be_unfinished(tmp_path: Path) -> None:
    """That message offers to remove its folder."""
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.keep(Claim(tmp_path / "run", "run"))
        with pytest.raises(CommandError, match="another process goes on with the run in .*; wait for it, or stop it"):
            RunFolder.require_new(tmp_path / "run")
    with pytest.raises(CommandError, match="unfinished run; continue it with --resume, or remove it"):
        RunFolder.require_new(tmp_path / "run")


def test_a_key_of_batches_that_is_missing_after_the_first_step_is_not_drawn_anew(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        key = folder.batch_key()
        folder.mark(1)
        assert folder.batch_key() == key
    again, _ = RunFolder.resume(tmp_path / "run", FACTS)
    assert again.batch_key() == key
    (tmp_path / "run" / "batches").unlink()
    with pytest.raises(InputError, match=r"run/batches, the key .* is missing"):
        again.batch_key()
    assert not (tmp_path / "run" / "batches").exists()


@pytest.mark.parametrize("name", ["state-2.safetensors", "batches", "public-seed"])
def test_what_a_state_goes_with_is_what_was_saved(tmp_path: Path, name: str) -> None:
    """Files of another run of the same shapes, a byte that a disk lost, half of a copy."""
    path = tmp_path / "run" / name
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.batch_key()
        (tmp_path / "run" / "public-seed").write_text("ab" * 16)
        folder.mark(2)
        folder.save(saved(2, 2))
    again, _ = RunFolder.resume(tmp_path / "run", FACTS)
    again.require_as_saved()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=f"run/{name} is not what was saved with the run's state"):
        again.require_as_saved()
    path.unlink()
    with pytest.raises(InputError, match=f"run/{name} is missing"):
        again.require_as_saved()


def test_a_state_without_digests_is_of_an_earlier_version(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.save(saved(1, 1))
    path = tmp_path / "run" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in state.items() if key != "digests"}))
    again, found = RunFolder.resume(tmp_path / "run", FACTS)
    again.require_as_saved()
    assert found is not None
    path.write_text(json.dumps({**state, "digests": 1}))
    with pytest.raises(InputError, match="is not the state of a run"):
        again.require_as_saved()


def test_a_state_names_no_tensors_elsewhere(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.save(saved(1, 1))
    path, tensors = tmp_path / "run" / "state.json", tmp_path / "run" / "state-1.safetensors"
    tensors.rename(tmp_path / "elsewhere.safetensors")
    path.write_text(path.read_text().replace(tensors.name, "../elsewhere.safetensors"))
    with pytest.raises(InputError, match="is not the state of a run"):
        RunFolder.resume(tmp_path / "run", FACTS)


def test_a_folder_that_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.begin(tmp_path / "run", FACTS)
    with monkeypatch.context() as patched:
        patched.setattr("privctl.train.preparation.places.shutil.rmtree", lambda *_, **__: None)
        assert "secret noise" in (folder.remove() or "")
    assert folder.remove() is None
    assert not (tmp_path / "run").exists()


def test_only_the_last_state_is_kept(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        for n in (1, 2, 3):
            folder.save(saved(n, n))
    assert [p.name for p in (tmp_path / "run").glob("state-*")] == ["state-3.safetensors"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    RunFolder.begin(tmp_path / "run", FACTS)
    with pytest.raises(CommandError, match=r"begun with --clip-norm 1, not 2"):
        RunFolder.resume(tmp_path / "run", {**FACTS, "clip_norm": 2.0})


def test_what_is_in_the_way_or_missing(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no run to resume"):
        RunFolder.resume(tmp_path / "run", FACTS)
    RunFolder.begin(tmp_path / "run", FACTS)
    with pytest.raises(CommandError, match="--resume"):
        RunFolder.begin(tmp_path / "run", FACTS)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": 1}', '{"step": "x", "spent": 1, "tensors": "a"}'])
def test_a_damaged_state_is_one_sentence(tmp_path: Path, content: str) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.save(saved(1, 1))
    (tmp_path / "run" / "state.json").write_text(content)
    with pytest.raises(InputError) as caught:
        RunFolder.resume(tmp_path / "run", FACTS)
    assert "\n" not in str(caught.value)


def test_a_damaged_count_is_not_guessed(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(3)
    (tmp_path / "run" / "begun").write_bytes(b"many")
    with pytest.raises(InputError, match="ledger"):
        RunFolder.resume(tmp_path / "run", FACTS)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The log of a run whose state was saved after 3 of 5 steps begun."""
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        for step in range(1, 6):
            folder.mark(step)
            if step == 3:
                folder.save(saved(3, 3))
    return tmp_path / "run" / "begun"


def _drop_line(number: int) -> Callable[[Path], object]:
    def drop(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))

    return drop


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(b""), "cut short"),
        (lambda path: os.truncate(path, 2 * 54), "cut short"),
        (_drop_line(0), "was edited"),
        (_drop_line(3), "was edited"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"%020d" % 5, b"%020d" % 4)), "was edited"),
    ],
)
def test_a_log_that_was_tampered_with_is_refused(begun: Path, change: Callable[[Path], object], what: str) -> None:
    """It would make the ledger too small."""
    change(begun)
    with pytest.raises(InputError, match=what):
        RunFolder.resume(begun.parent, FACTS)


def test_a_log_of_another_run_is_refused(begun: Path, tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "other", {**FACTS, "steps": 11}) as folder:
        for step in range(1, 6):
            folder.mark(step)
    begun.write_bytes((tmp_path / "other" / "begun").read_bytes())
    with pytest.raises(InputError, match="was edited"):
        RunFolder.resume(begun.parent, FACTS)


@pytest.mark.parametrize("kept", [1, 19, 20, 53])
def test_a_line_cut_short_by_a_kill_counts_and_the_run_goes_on(begun: Path, kept: int) -> None:
    os.truncate(begun, 4 * 54 + kept)
    folder, found = RunFolder.resume(begun.parent, FACTS)
    assert found is not None
    assert found.steps_begun == 5
    with folder:
        folder.mark(6)
        folder.save(saved(4, 6))
    _, found = RunFolder.resume(begun.parent, FACTS)
    assert found is not None
    assert found.steps_begun == 6


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FileSystemError, match="does not fit"):
        RunFolder.begin(tmp_path / "run", FACTS)
    monkeypatch.setattr(os, "pwrite", real)
    assert not list(tmp_path.iterdir())
    RunFolder.begin(tmp_path / "run", FACTS)


def test_a_full_disk_later_leaves_the_state_before_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(1)
        folder.save(saved(1, 1))
        folder.mark(2)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(FileSystemError, match="does not fit: No space .*; mend that, then continue with --resume"):
            folder.save(saved(2, 2))
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun) == (1, 2)


@pytest.mark.parametrize("mark", [RunFolder.mark, RunFolder.mark_side_releases])
def test_a_disk_that_is_full_as_a_step_begins_is_no_reason_for_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Callable[[RunFolder, int], None]
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with RunFolder.begin(tmp_path / "run", FACTS) as folder, monkeypatch.context() as patched:
        mark(folder, 1)
        patched.setattr(os, "write", full)
        with pytest.raises(FileSystemError, match="No space left on device; mend that, then continue with --resume"):
            mark(folder, 2)
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert found.steps_begun + found.side_releases_begun == 1


def test_only_one_process_goes_on_with_a_run(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark(1)
        other, _ = RunFolder.resume(tmp_path / "run", FACTS)
        with pytest.raises(CommandError, match="another process"):
            other.mark(2)
        assert (tmp_path / "run" / "begun").read_text().splitlines()[-1].startswith(f"{1:020d} ")
    other.mark(2)


def test_releases_beside_the_steps_are_counted_too(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", FACTS) as folder:
        folder.mark_side_releases(1)  # killed here
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun, found.side_releases_begun) == (0, 0, 1)
    with RunFolder.resume(tmp_path / "run", FACTS)[0] as folder:
        folder.mark(2)
        folder.save(SavedState(updates=2, steps_begun=2, tensors={}, side_releases_begun=1))
        folder.mark_side_releases(3)  # and here
    _, found = RunFolder.resume(tmp_path / "run", FACTS)
    assert found is not None
    assert (found.updates, found.steps_begun, found.side_releases_begun) == (2, 2, 3)
    (tmp_path / "run" / "measured").write_text("many")
    with pytest.raises(InputError, match="measured is damaged"):
        RunFolder.resume(tmp_path / "run", FACTS)


def test_a_whole_number_is_the_same_setting_as_a_float(tmp_path: Path) -> None:
    with RunFolder.begin(tmp_path / "run", {"epochs": 2.0}) as folder:
        folder.mark(1)
    again, saved = RunFolder.resume(tmp_path / "run", {"epochs": 2})
    with again:
        assert saved is not None
        assert saved.steps_begun == 1
