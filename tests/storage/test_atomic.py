"""Writes are whole or absent: killed, out of space, refused, or interrupted, the old file stays as it was."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import CommandError, FileSystemError
from privctl.storage.atomic import PendingFile, PendingFolder, require_absent, write_bytes

MIB = 1 << 20


def partials(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(".partial"))


def python(root: Path, code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A process that runs ``code`` on the checkout."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *map(str, arguments)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"one", b"", b"x" * (3 * MIB + 1)):
        write_bytes(path, data)
        assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_nothing_shows_before_commit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with PendingFile(path, 6) as pending:
        pending.write_at(3, b"def")
        pending.write_at(0, b"abc")
        assert not path.exists()
        pending.commit()
        assert path.read_bytes() == b"abcdef"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_large_files_pass_the_writeback_hint(tmp_path: Path) -> None:
    """Past 128 MiB the kernel is told to start writing out; what is written must not change by it."""
    path, block = tmp_path / "f", random.Random(0).randbytes(MIB)
    with PendingFile(path) as pending:
        for position in range(200):
            pending.write_at(position * MIB, block)
        pending.commit()
    with path.open("rb") as stream:
        assert all(stream.read(MIB) == block for _ in range(200))
        assert not stream.read(1)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_error_midway_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "f"
    write_bytes(path, b"old")
    with pytest.raises(error), PendingFile(path) as pending:
        pending.write_at(0, b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_leaving_without_commit_writes_nothing(tmp_path: Path) -> None:
    with PendingFile(tmp_path / "f") as pending:
        pending.write_at(0, b"data")
    assert not list(tmp_path.iterdir())


# Killed.

REWRITER = """
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from privctl.storage.atomic import PendingFile
path, last = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
version = 0
while True:
    version += 1
    with PendingFile(path, 64 * 16384) as pending:
        for i in range(64):
            pending.write_at(i * 16384, version.to_bytes(8, "little") * 2048)
            if (version, i) == (last, 32):
                os.kill(os.getpid(), signal.SIGKILL)
        pending.commit()
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path, root: Path) -> None:
    path, moments = tmp_path / "f", random.Random(11)
    stale = whole = 0
    for trial in range(15):
        # Some kill themselves in the midst of a write, so that a busy machine tests something too.
        itself = trial % 3 == 0
        process = python(root, REWRITER, path, 2 if itself else 0)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if not itself:
            time.sleep(moments.uniform(0, 0.06))
            process.kill()
        process.communicate()
        stale += len(partials(tmp_path))
        if path.exists():
            whole += 1
            data = path.read_bytes()
            assert len(data) == MIB
            assert data == data[:8] * (MIB // 8), "a mixture of two versions"
    assert stale > 3, "no kill hit a write, so nothing was tested"
    assert whole > 3
    write_bytes(path, b"next")
    assert path.read_bytes() == b"next"
    assert not partials(tmp_path), "the next write sweeps what the killed ones left"


def test_a_folder_that_another_writer_sweeps_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock it looks like what a killed writer left."""
    created, make = [], Path.mkdir

    def swept(path: Path, *args: Any, **options: Any) -> None:
        make(path, *args, **options)
        created.append(path)
        if len(created) == 1:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", swept)
    with PendingFolder(tmp_path / "out") as pending:
        assert [path.exists() for path in created] == [False, True]
        assert pending.temporary == created[1]
    with pytest.raises(FileSystemError, match="No such file or directory"), PendingFolder(tmp_path / "none" / "out"):
        pass


HOLDER = """
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from privctl.storage.atomic import PendingFile, PendingFolder
kind = {"file": PendingFile, "folder": PendingFolder}[sys.argv[2]]
with kind(Path(sys.argv[1])) as pending:
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "file":
        pending.write_at(0, b"from the holder")
    else:
        (pending.temporary / "x").write_text("from the holder")
    pending.commit()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_live_writer_is_not_swept(tmp_path: Path, root: Path, kind: str) -> None:
    path = tmp_path / "out"
    holder = python(root, HOLDER, path, kind)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    assert len(partials(tmp_path)) == 1
    with PendingFile(path) as mine:
        assert len(partials(tmp_path)) == 2
        mine.write_at(0, b"mine")
    assert len(partials(tmp_path)) == 1
    output, _ = holder.communicate("go\n", timeout=300)
    assert holder.returncode == 0, output
    assert (path if kind == "file" else path / "x").read_text() == "from the holder"
    assert not partials(tmp_path)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_dead_writer_is_swept(tmp_path: Path, root: Path, kind: str) -> None:
    path = tmp_path / "out"
    holder = python(root, HOLDER, path, kind)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    holder.kill()
    holder.communicate()
    assert len(partials(tmp_path)) == 1
    write_bytes(path, b"mine")
    assert not partials(tmp_path)


def test_other_names_are_not_swept(tmp_path: Path) -> None:
    """Names that glob characters would also match, and a stale temporary of another file."""
    others = [".f1.0123456789ab.partial", ".g.0123456789ab.partial", "f.0123456789ab.partial", ".f[1].notes"]
    others += [".f[1].my notes.partial", ".f[1].0123456789AB.partial", ".f[1].tokens.0123456789ab.partial"]
    for name in others:
        (tmp_path / name).write_text("mine")
    stale = tmp_path / ".f[1].0123456789ab.partial"
    stale.write_text("stale")
    write_bytes(tmp_path / "f[1]", b"data")
    assert not stale.exists()
    assert all((tmp_path / name).exists() for name in others)


def test_writers_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Sweeping must not take the temporary of a writer that has just made it."""
    path, failures = tmp_path / "f", []

    def write(worker: int) -> None:
        try:
            for _ in range(100):
                write_bytes(path, bytes([worker]) * 5000)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    data = path.read_bytes()
    assert data == data[:1] * 5000
    assert not partials(tmp_path)


# Refused by the system.

LIMITED = """
import resource, sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from privctl.domain.errors import FileSystemError
from privctl.storage.atomic import PendingFile
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
path, hint = Path(sys.argv[1]), int(sys.argv[2])
try:
    with PendingFile(path, hint) as pending:
        print("open", flush=True)
        for i in range(64):
            pending.write_at(i * 16384, b"x" * 16384)
        pending.commit()
except FileSystemError as fault:
    print("fault:", fault)
print("left:", sorted(p.name for p in path.parent.iterdir()), path.read_bytes() if path.exists() else None)
"""


@pytest.mark.parametrize("hint", [0, MIB])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, root: Path, hint: int) -> None:
    """A limit on file size stands for a disk that fills up; with a size given, it shows before the first byte."""
    (tmp_path / "f").write_bytes(b"old")
    output, _ = python(root, LIMITED, tmp_path / "f", hint, "limit").communicate(timeout=300)
    assert f"fault: {tmp_path / 'f'} does not fit: " in output
    assert "left: ['f'] b'old'" in output
    assert ("open\n" in output) == (hint == 0)


def mounted(options: str, then: str = "true") -> tuple[str, ...]:
    """A prefix that runs a command with a small tmpfs in ``$TINY``, in a mount namespace of its own."""
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = f'mount -t tmpfs -o {options} none "$TINY" && printf old > "$TINY/f" && {then} && exec "$@"'
    probe = f'mount -t tmpfs -o {options} none "$TINY" && {then}'
    if subprocess.run([*namespace, "sh", "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    return (*namespace, "sh", "-c", script, "sh")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    monkeypatch.setenv("TINY", str(folder))
    return folder


@pytest.mark.parametrize("hint", [0, MIB])
def test_a_really_full_file_system_leaves_the_old_file(tiny: Path, root: Path, hint: int) -> None:
    prefix = mounted("size=256k")
    output, _ = python(root, LIMITED, tiny / "f", hint, "disk", prefix=prefix).communicate(timeout=300)
    assert f"fault: {tiny / 'f'} does not fit: No space left" in output
    assert "left: ['f'] b'old'" in output


def test_a_read_only_file_system_is_one_sentence(tiny: Path, root: Path) -> None:
    prefix = mounted("size=256k", then='mount -o remount,ro "$TINY"')
    output, _ = python(root, LIMITED, tiny / "f", 0, "disk", prefix=prefix).communicate(timeout=300)
    assert f"fault: {tiny / 'f'} cannot be written: Read-only file system; choose another folder" in output
    assert "left: ['f'] b'old'" in output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(FileSystemError, match="cannot be written: Permission denied"):
            write_bytes(tmp_path / "f", b"data")
    finally:
        tmp_path.chmod(0o755)


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileSystemError, match=r"absent/f cannot be written: No such file or directory"):
        write_bytes(tmp_path / "absent" / "f", b"data")
    with pytest.raises(FileSystemError, match="cannot be written"):
        PendingFolder(tmp_path / "absent" / "f")


def test_a_folder_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "kept").touch()
    with pytest.raises(FileSystemError, match="f cannot be written"):
        write_bytes(tmp_path / "f", b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_descriptors_are_released(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        write_bytes(tmp_path / "f", b"data")
        with contextlib.suppress(RuntimeError), PendingFile(tmp_path / "f"):
            raise RuntimeError
        with contextlib.suppress(FileSystemError):
            PendingFile(tmp_path / "absent" / "f")
        with PendingFolder(tmp_path / "d"):
            pass
    assert len(os.listdir("/proc/self/fd")) == len(before)


# Folders.


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "d") as pending:
        write_bytes(pending.temporary / "a", b"1")
        assert not (tmp_path / "d").exists()
        pending.commit()
    assert (tmp_path / "d" / "a").read_bytes() == b"1"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), PendingFolder(tmp_path / "d") as pending:
        write_bytes(pending.temporary / "a", b"1")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_folder_never_replaces_one_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "kept").touch()
    with pytest.raises(FileSystemError, match="d cannot be written"), PendingFolder(tmp_path / "d") as pending:
        pending.commit()
    assert (tmp_path / "d" / "kept").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_what_exists_needs_force(tmp_path: Path) -> None:
    require_absent(tmp_path / "f", force=False)
    (tmp_path / "f").touch()
    with pytest.raises(CommandError, match="--force"):
        require_absent(tmp_path / "f", force=False)
    require_absent(tmp_path / "f", force=True)
    (tmp_path / "d").mkdir()
    for force in (False, True):
        with pytest.raises(CommandError, match="is a folder"):
            require_absent(tmp_path / "d", force=force)


def test_planted_temporaries_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes").touch()
    (tmp_path / ".f.0123456789ab.partial").symlink_to(kept)
    os.mkfifo(tmp_path / ".f.ba9876543210.partial")
    writer = threading.Thread(target=write_bytes, args=(tmp_path / "f", b"1"), daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
    assert (kept / "notes").exists()
