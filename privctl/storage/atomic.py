"""Atomic writes: a temporary name in the same folder, fsync, rename.

A killed process leaves at most a hidden ``.NAME.*.partial``; the next write of the same name removes it. Files are
readable by their owner only, unless they are meant for release. A symbolic link is followed and stays; a device
or a pipe is written to, never replaced.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import itertools
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from privctl.domain.errors import CommandError, FileSystemError
from privctl.storage.journal import recover, sync_folder
from privctl.storage.turns import FolderHeldError

#: Names of the process's own output, which may be a redirected file: written in place, not replaced.
_OWN_DESCRIPTOR = re.compile(r"-|/dev/(stdout|stderr|(fd)/([0-9]{1,4}))")
#: How much may lie in the page cache before the kernel is asked to start writing it out.
_WRITEBACK_STRIDE = 64 << 20
#: Random bytes in the name of a temporary.
_RANDOM = 6


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing ``path`` into an error of one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise FileSystemError(
                f"{path} does not fit: {error.strerror}; free some space or choose another folder"
            ) from None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise FileSystemError(
                f"{path} cannot be written: {error.strerror}; name fewer files at once, or raise ulimit -n"
            ) from None
        if error.errno == errno.ENOTEMPTY:
            raise FileSystemError(
                f"{path} cannot be written: the folder in its place is not empty, and another command may be using it; "
                "let that end, or choose another folder"
            ) from None
        do = "let it end, or " if isinstance(error, FolderHeldError) else ""
        raise FileSystemError(f"{path} cannot be written: {error.strerror}; {do}choose another folder") from None


class PendingFile:
    """A file being written under a temporary name; ``commit`` gives it its own, leaving the block otherwise removes it.

    Writes go by position, so threads may share it.
    """

    def __init__(self, path: Path, size: int = 0, *, public: bool = False) -> None:
        """Create the temporary beside ``path`` with room for ``size`` bytes, so that a full disk shows at once.

        The file is its owner's alone (mode 0600); one that is ``public`` gets the mode that the umask gives, but none
        wider than that of the file it replaces. Raises CommandError where ``path`` is a device, a pipe or a socket.
        """
        self.path = path
        self.place = _link_target(path)
        self._public = public
        self._hinted = 0
        if _kind(self.place) not in (None, stat.S_IFREG, stat.S_IFDIR):
            raise CommandError(f"{path} is not a regular file, so it cannot be replaced; name another file")
        with writing(path):
            _sweep(self.place)
            self.temporary, self._fd = _claim(self.place, _new_file)
            try:
                if size:
                    os.posix_fallocate(self._fd, 0, size)
            except BaseException:
                self._discard()
                raise

    def write_at(self, position: int, data: memoryview | bytes) -> None:
        """Write all of ``data`` at byte ``position``."""
        view = memoryview(data)
        with writing(self.path):
            while view:
                done = os.pwrite(self._fd, view, position)
                view, position = view[done:], position + done
            self._hint_writeback(position)

    def _hint_writeback(self, position: int) -> None:
        """Ask the kernel to start writing out earlier data, so that the final fsync is short."""
        ready = position // _WRITEBACK_STRIDE - 1
        if ready > self._hinted:
            self._hinted, start = ready, self._hinted * _WRITEBACK_STRIDE
            os.posix_fadvise(self._fd, start, (ready * _WRITEBACK_STRIDE) - start, os.POSIX_FADV_DONTNEED)

    def commit(self, *, replace: bool = True) -> None:
        """Make the bytes durable, then give them their final name.

        Without ``replace`` a file that was created there since is kept, and CommandError is raised.
        """
        self.flush()
        self.rename(replace=replace)
        with writing(self.path):
            sync_folder(self.place.parent)

    def flush(self) -> None:
        """Make the bytes durable, under the temporary name and with the final mode."""
        with writing(self.path):
            if self._public:
                os.fchmod(self._fd, _public_mode(self.place))
            os.fsync(self._fd)

    def rename(self, *, replace: bool) -> None:
        """Give the flushed file its final name; the folder is yet to be synced."""
        if _kind(self.place) not in (None, stat.S_IFREG, stat.S_IFDIR):
            raise CommandError(f"{self.path} has become something other than a regular file and was kept")
        with writing(self.path):
            if replace:
                os.replace(self.temporary, self.place)
            else:
                _link(self.temporary, self.place)
            os.close(self._fd)
            self._fd = -1

    def _discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._discard()


class PendingFolder:
    """A folder being filled under a temporary name; ``commit`` renames it, and the final name must not exist yet.

    One that ``replaces`` may take the place of a folder, but only in ``commit_together``; its maker has checked that
    nothing is lost with the old one.
    """

    def __init__(self, path: Path, *, public: bool = False, replaces: bool = False) -> None:
        """Create the temporary beside ``path``: its owner's alone, or with the mode of the umask where ``public``."""
        self.path = self.place = path
        self.replaces = replaces
        self._public = public
        with writing(path):
            _sweep(path)
            self.temporary, self._fd = _claim(path, _new_folder)

    def commit(self) -> None:
        """Give the filled folder its final name; its files must have been committed before."""
        self.flush()
        self.rename()
        with writing(self.path):
            sync_folder(self.place.parent)

    def flush(self) -> None:
        """Make its list of files durable, under the temporary name and with the final mode."""
        with writing(self.path):
            if self._public:
                os.fchmod(self._fd, 0o777 & ~_umask())
            os.fsync(self._fd)

    def rename(self, *, replace: bool = False) -> None:
        """Give the flushed folder its final name; the parent is yet to be synced. A folder in its place was moved."""
        with writing(self.path):
            os.rename(self.temporary, self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)
        shutil.rmtree(self.temporary, ignore_errors=True)


def write_bytes(path: Path, data: bytes, *, replace: bool = True, public: bool = False) -> None:
    """Write ``data`` to ``path``, whole or not at all; into a pipe or a character device, as it stands.

    Raises FileSystemError, or CommandError as ``PendingFile`` does.
    """
    if takes_a_stream(path):
        with writing(path), _stream(path) as stream:
            stream.write(data)
        return
    with PendingFile(path, public=public) as pending:
        pending.write_at(0, data)
        pending.commit(replace=replace)


def takes_a_stream(path: Path) -> bool:
    """Whether ``path`` is a pipe, a character device or one of the process's own descriptors."""
    return bool(_OWN_DESCRIPTOR.fullmatch(str(path))) or _kind(path) in (stat.S_IFIFO, stat.S_IFCHR)


def _stream(path: Path) -> BinaryIO:
    """A stream to a path that ``takes_a_stream``."""
    if match := _OWN_DESCRIPTOR.fullmatch(str(path)):
        number = int(match[3] or {"/dev/stderr": 2}.get(match[0], 1))
        return open(number, "wb", closefd=False)
    return open(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")


def _kind(path: Path) -> int | None:
    """The file type behind ``path``, links followed; None where there is nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return None


def _link_target(path: Path) -> Path:
    """The path that a write to ``path`` affects, symbolic links resolved."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _public_mode(place: Path) -> int:
    """What the umask gives, but nothing that the file to be replaced did not allow."""
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
    except OSError:
        mode = 0o666
    return 0o666 & ~_umask() & mode


def _link(temporary: Path, path: Path) -> None:
    """Rename without replacing: a hard link fails where the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise CommandError(f"{path} was created meanwhile and was kept; move it away and try again") from None
    temporary.unlink()


def new_folder(path: Path) -> None:
    """Create ``path``, or accept it where it is empty; raises CommandError where something is in it, or no parent."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if os.path.lexists(path):
        raise CommandError(f"{path} exists and is not an empty folder; remove it or choose another --output")
    _require_parent(path)
    with writing(path):
        path.mkdir()


def fresh_folder(path: Path) -> Path:
    """``path``, or where something is there already the first of ``path-2``, ``path-3``, ... that is free."""
    candidates = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


def require_folder(path: Path) -> None:
    """Raise CommandError where ``path`` is no folder and none can be made there."""
    if not path.is_dir() and os.path.lexists(path):
        raise CommandError(f"{path} exists and is no folder; choose another --output")
    _require_parent(path)


def require_no_folder(path: Path) -> None:
    """Raise CommandError if a folder cannot be made at ``path``: nothing that exists is replaced by one."""
    recover(path.absolute().parent)  # a commit that was interrupted may still create or remove the file
    _require_parent(path)
    if os.path.lexists(path):
        what = "a folder, which no file replaces" if path.is_dir() else "no folder"
        raise CommandError(f"{path} exists and is {what}; choose another --output")


def require_absent(path: Path, force: bool, *, option: str = "--output", forced_by: str = "--force") -> None:
    """Raise CommandError if ``path`` exists and may not be replaced by a file, or has no folder.

    ``option`` chooses the path; "" where none does. ``forced_by`` allows replacing it.
    """
    recover(path.absolute().parent)  # a commit that was interrupted may still create or remove the file
    _require_parent(path)
    other = f"choose another {option}" if option else "move it away"
    if path.is_dir():
        raise CommandError(f"{path} exists and is a folder, which no file replaces; remove it or {other}")
    if _kind(path) == stat.S_IFREG and not force and not _OWN_DESCRIPTOR.fullmatch(str(path)):
        raise CommandError(f"{path} exists; give {forced_by} to replace it, or {other}")


def require_name(path: Path) -> None:
    """Raise CommandError where ``path`` has no name, as ``.`` and ``/``, and nothing can be written beside it."""
    if not path.name:
        raise CommandError(
            f"--output {path} is a folder without a name of its own; name what to write, such as {path / 'out'}"
        )


def require_regular(path: Path, *, option: str = "--output") -> None:
    """Raise CommandError where ``path`` is a device, a pipe or a socket: no place for a file that others go with."""
    if takes_a_stream(path) or _kind(path) not in (None, stat.S_IFREG, stat.S_IFDIR):
        raise CommandError(
            f"{path} is not a regular file, so nothing can be kept there or written beside it; choose another {option}"
        )


def _require_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise CommandError(f"{parent} is not a folder to write {path.name} into; make it first")


def _claim(path: Path, create: Callable[[Path], int | None]) -> tuple[Path, int]:
    """A new temporary of ``path``, locked; created again if another writer removed it before the lock."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM)}.partial")
        fd = create(temporary)
        if fd is None:
            continue
        if _lock(fd) and temporary.exists():
            return temporary, fd
        os.close(fd)


def _new_file(temporary: Path) -> int:
    return os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _new_folder(temporary: Path) -> int | None:
    """Its descriptor; None where another writer swept it before it was open."""
    temporary.mkdir(mode=0o700)
    try:
        return os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _lock(fd: int) -> bool:
    """Whether nobody else held the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove what a killed writer of ``path`` left: a temporary whose lock nobody holds any more."""
    recover(path.parent)
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{2 * _RANDOM}}}\.partial")
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if not ours.fullmatch(stale.name):
            continue  # somebody else's
        try:
            # A link or a pipe was not made by a writer; opening the latter would wait for one.
            fd = os.open(stale, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if not _lock(fd):
                continue  # its writer is alive
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)
        finally:
            os.close(fd)
