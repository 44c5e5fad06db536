"""File systems without hard links (exFAT, some network mounts) or without locks (Lustre as mounted by default)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from privctl.domain.errors import CommandError
from privctl.storage import turns
from privctl.storage.atomic import PendingFile, write_bytes
from privctl.storage.hash_chain import log_file
from privctl.storage.turns import Claim, turn


def refusing(number: int) -> object:
    def call(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_a_file_is_still_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", refusing(number))
    write_bytes(tmp_path / "f", b"first", replace=False)
    with pytest.raises(CommandError, match="was created meanwhile and was kept"):
        write_bytes(tmp_path / "f", b"second", replace=False)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"first")]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF])
def test_without_locks_one_command_at_a_time_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(turns.fcntl, "flock", refusing(number))
    stale = tmp_path / ".f.0123456789ab.partial"
    stale.write_bytes(b"of a killed process")
    with turn([tmp_path]):
        write_bytes(tmp_path / "f", b"data")
    with log_file(tmp_path / "log") as log:
        log.add(b"line\n")
    Claim(tmp_path, "run").remove()
    assert {path.name for path in tmp_path.iterdir()} == {"f", "log"}


def test_a_lock_that_is_refused_for_another_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.fcntl, "flock", refusing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        Claim(tmp_path, "run")


def test_only_a_file_opened_for_writing_is_locked_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a lock on a file that was opened for reading would say nothing of its writer."""
    real = turns.fcntl.flock

    def as_nfs(fd: int, operation: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            with open(f"/proc/self/fdinfo/{fd}") as file:
                flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
            if flags & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(turns.fcntl, "flock", as_nfs)
    with PendingFile(tmp_path / "f") as live:
        live.write_at(0, b"of a live process")
        write_bytes(tmp_path / "f", b"data")
        live.commit()
    assert (tmp_path / "f").read_bytes() == b"of a live process"
