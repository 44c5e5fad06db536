"""Chains of lines: whatever is changed, left out or moved is noticed, and half a line is no line."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from privctl.domain.errors import CommandError, FileSystemError
from privctl.storage.hash_chain import BrokenChainError, Chain, LogFile, log_file

CHAIN = Chain(root="0" * 32, prefix=b" ")
JSON = Chain(root="1" * 64, prefix=b',"digest":"', suffix=b'"}')


def written(chain: Chain, *bodies: bytes) -> bytes:
    head, found = chain.root, b""
    for body in bodies:
        line, head = chain.line(head, body)
        found += line
    return found


@pytest.mark.parametrize("chain", [CHAIN, JSON])
def test_lines_come_back_with_their_digests(chain: Chain) -> None:
    links, rest = chain.read(written(chain, b"a", b'{"b":1', b"") + b"half")
    assert [link.body for link in links] == [b"a", b'{"b":1', b""]
    assert rest == b"half"
    # The rule, by hand.
    first = blake3(chain.root.encode() + b" a").hexdigest()[: len(chain.root)]
    assert links[0].digest == first
    assert links[1].digest == blake3(first.encode() + b' {"b":1').hexdigest()[: len(chain.root)]
    assert chain.read(b"") == ((), b"")


@pytest.mark.parametrize("chain", [CHAIN, JSON])
def test_every_changed_byte_is_noticed(chain: Chain) -> None:
    """All but a change of the last newline, which leaves half a line, and a digit in what comes after it."""
    content = written(chain, b"one", b"two", b"three")
    source = random.Random(0)
    for at in range(len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= source.randrange(1, 256)
        with pytest.raises(BrokenChainError):
            chain.read(bytes(changed))
    lines = content.splitlines(keepends=True)
    for kept in ((1, 2), (0, 2), (1, 0, 2), (0, 1, 1, 2), (2,)):
        with pytest.raises(BrokenChainError):
            chain.read(b"".join(lines[i] for i in kept))
    assert len(chain.read(b"".join(lines[:2]))[0]) == 2, "a tail cut off leaves a chain that is whole"


def test_a_new_log_is_its_owner_s_and_others_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log_file(path) as file:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        file.add(b"x\n")
        with pytest.raises(BlockingIOError):
            LogFile(path, create=False, wait=False)
    LogFile(path, create=False, wait=False).close()


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o640, 0o600), (0o664, 0o660), (0o600, 0o600)])
def test_a_log_that_was_copied_or_checked_out_is_its_owner_s_again(tmp_path: Path, before: int, after: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x\n")
    path.chmod(before)
    with log_file(path) as file:
        assert stat.S_IMODE(path.stat().st_mode) == before, "it may be another file, named by mistake"
        file.add(b"y\n")
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_many_processes_add_whole_lines(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from privctl.reports.audit_log import begin; "
        "[begin(Path(sys.argv[1]), (), {}) for _ in range(20)]"
    )
    path = tmp_path / "log"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    from privctl.reports.audit_log import read_log

    assert [entry.number for entry in read_log(path).entries] == list(range(1, 62))


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) <= 3:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[:3])

    with log_file(tmp_path / "log") as file:
        file.add(b"first\n")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(FileSystemError, match="does not fit"):
            file.add(b"second\n")
        assert file.content() == b"first\n"


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    with pytest.raises((CommandError, FileSystemError)), log_file(path):
        pass
