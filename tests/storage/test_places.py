"""Where writes go: through links and into pipes, never over a device; and who may read what was written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from privctl.domain.errors import CommandError
from privctl.storage.atomic import PendingFile, PendingFolder, require_absent, write_bytes


@pytest.mark.parametrize("public", [True, False])
def test_a_link_is_followed_and_stays(tmp_path: Path, public: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "f", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_bytes(link, b"new", public=public)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [p.name for p in target.parent.iterdir()] == ["f"]


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("there")
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "there").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path, received = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write_bytes(path, b"data")
    reader.join(10)
    assert received == [b"data"]
    assert path.is_fifo()


def test_a_device_is_written_to_and_stays() -> None:
    require_absent(Path("/dev/null"), force=False)
    write_bytes(Path("/dev/null"), b"data")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.mknod(path, 0o140600)], ids=["pipe", "socket"])
def test_no_model_is_streamed_into_what_is_not_a_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "f")
    with pytest.raises(CommandError, match="is not a regular file"), PendingFile(tmp_path / "f", 10):
        pass
    assert not (tmp_path / "f").is_file()
    assert len(list(tmp_path.iterdir())) == 1


def test_what_becomes_a_pipe_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with PendingFile(path) as pending:
        os.mkfifo(path)
        with pytest.raises(CommandError, match="other than a regular file"):
            pending.commit()
    assert path.is_fifo()


def test_the_standard_output_is_written_on(tmp_path: Path, root: Path) -> None:
    """Also where it is a file that holds something already."""
    code = (
        "import sys; from pathlib import Path; from privctl.storage.atomic import write_bytes\n"
        "print('before', flush=True); write_bytes(Path('/dev/stdout'), b'data\\n'); print('after')"
    )
    for target in (subprocess.PIPE, (tmp_path / "out").open("w")):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)}, stdout=target)
        text = (tmp_path / "out").read_text() if done.stdout is None else done.stdout.decode()
        assert text == "before\ndata\nafter\n"


@pytest.mark.parametrize(
    ("umask", "before", "public", "mode"),
    [
        (0o022, None, False, 0o600),
        (0o022, None, True, 0o644),
        (0o077, None, True, 0o600),
        (0o002, None, True, 0o664),
        (0o022, 0o644, False, 0o600),
        (0o022, 0o600, True, 0o600),
        (0o022, 0o640, True, 0o640),
    ],
)
def test_only_what_is_public_may_be_read_by_others(
    tmp_path: Path, umask: int, before: int | None, public: bool, mode: int
) -> None:
    path = tmp_path / "f"
    if before is not None:
        path.touch()
        path.chmod(before)
    old = os.umask(umask)
    try:
        with PendingFile(path, public=public) as pending:
            assert stat.S_IMODE(pending.temporary.stat().st_mode) == 0o600
            pending.commit()
        with PendingFolder(tmp_path / "d", public=public) as folder:
            assert stat.S_IMODE(folder.temporary.stat().st_mode) == 0o700
            folder.commit()
        assert os.umask(umask) == umask
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == (0o777 & ~umask if public else 0o700)
