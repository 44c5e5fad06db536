"""Two processes that write the same set of files: each set is whole, whoever comes first and whoever is killed."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError, FileSystemError
from privctl.storage import commit, journal, turns
from privctl.storage.atomic import PendingFile, PendingFolder
from privctl.storage.commit import commit_together
from privctl.storage.journal import recover
from privctl.storage.turns import Claim, turn

NAMES = ("model", "report")


@contextmanager
def staged(folder: Path, version: str) -> Iterator[list[PendingFile | PendingFolder]]:
    """Two files and a folder, as noise and training write them."""
    with ExitStack() as stack:
        pending: list[PendingFile | PendingFolder] = []
        for name in NAMES:
            file = stack.enter_context(PendingFile(folder / name))
            file.write_at(0, version.encode())
            pending.append(file)
        pending_folder = stack.enter_context(PendingFolder(folder / "made", replaces=True))
        (pending_folder.temporary / "x").write_text(version)
        yield [pending[0], pending_folder, pending[1]]


def found(folder: Path) -> set[str]:
    return {(folder / name).read_text() for name in (*NAMES, "made/x")}


def written(folder: Path, version: str) -> None:
    with staged(folder, version) as pending:
        commit_together(pending)


def overtaken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What is there once a set was written while another was in the midst of its renames."""
    written(folder, "old")
    rename, second = PendingFile.rename, threading.Thread(target=written, args=(folder, "second"))

    def slow(self: PendingFile, *, replace: bool) -> None:
        rename(self, replace=replace)
        if self.path.name == NAMES[0] and threading.current_thread() is not second:
            second.start()
            second.join(0.5)  # as far as it gets

    monkeypatch.setattr(PendingFile, "rename", slow)
    written(folder, "first")
    second.join()
    return found(folder)


def test_a_set_waits_for_the_set_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert overtaken(tmp_path, monkeypatch) == {"second"}


def test_without_turns_the_sets_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "turn", lambda folders: nullcontext())
    assert len(overtaken(tmp_path, monkeypatch)) > 1


def killed_in_its_renames(folder: Path, version: str) -> None:
    child = os.fork()
    if child == 0:
        rename = PendingFile.rename

        def dies(self: PendingFile, *, replace: bool) -> None:
            rename(self, replace=replace)
            os.kill(os.getpid(), 9)

        PendingFile.rename = dies  # type: ignore[method-assign]
        written(folder, version)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9


@pytest.mark.parametrize("others", [True, False])
def test_what_a_killed_process_left_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """It died after the other had looked for such things, and its renames must not come after the other's."""
    if not others:
        monkeypatch.setattr(commit, "recover", lambda folder: None)
    written(tmp_path, "old")
    with staged(tmp_path, "later") as pending:
        killed_in_its_renames(tmp_path, "killed")
        assert len(found(tmp_path)) > 1
        commit_together(pending)
    recover(tmp_path)
    assert (found(tmp_path) == {"later"}) is others
    assert not journal.unfinished(tmp_path)


def test_what_is_nobodys_journal_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / ".privctl.0123456789ab.commit").mkdir()
    written(tmp_path, "new")
    assert found(tmp_path) == {"new"}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A lock that is never let go, as of ``flock FOLDER privctl ...``, or of anyone who may read the folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def test_a_folder_that_is_not_let_go_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.1)
    written(tmp_path, "old")
    with held(tmp_path), pytest.raises(FileSystemError, match="another process keeps a lock on .*; let it end, or"):
        written(tmp_path, "new")
    assert found(tmp_path) == {"old"}
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "made"}
    written(tmp_path, "new")
    assert found(tmp_path) == {"new"}


def test_a_reader_goes_on_where_a_folder_is_not_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PATIENCE", 0.1)
    written(tmp_path, "old")
    killed_in_its_renames(tmp_path, "killed")
    with held(tmp_path):
        recover(tmp_path)
        assert journal.unfinished(tmp_path)
    recover(tmp_path)
    assert found(tmp_path) == {"killed"}


def test_folders_are_locked_in_one_order_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    places = [tmp_path / "b", tmp_path, tmp_path / "a"]
    # The maker of a folder that is being filled holds its lock.
    with turn(places), PendingFolder(tmp_path / "c") as pending, turn([pending.temporary]):
        pass


def test_a_claim_is_one_process_s_until_it_is_closed(tmp_path: Path) -> None:
    claim = Claim(tmp_path, "run")
    with pytest.raises(CommandError, match="another process goes on with the run in .*; wait for it, or stop it"):
        Claim(tmp_path, "run")
    claim.remove()
    assert not list(tmp_path.iterdir())
    claim = Claim(tmp_path, "run")
    (tmp_path / ".lock").unlink()  # as its holder's rmtree does before the lock is given back
    Claim(tmp_path, "run").close()
    claim.close()
    with pytest.raises(FileNotFoundError):
        Claim(tmp_path / "gone", "run")


def test_two_that_hold_a_claim_in_turn_never_share_it(tmp_path: Path) -> None:
    """A lock on a file that its holder has removed is none."""
    opened, flock = [], turns.fcntl.flock

    def late(fd: int, operation: int) -> None:
        flock(fd, operation)
        if not opened:
            opened.append(fd)
            (tmp_path / ".lock").unlink()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("privctl.storage.turns.fcntl.flock", late)
        claim = Claim(tmp_path, "run")
    with pytest.raises(CommandError):
        Claim(tmp_path, "run")
    claim.close()
