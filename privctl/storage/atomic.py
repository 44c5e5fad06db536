"""Atomic writes: a temporary name in the same folder, fsync, rename.

A killed process leaves at most a hidden ``.NAME.*.partial``, which the next write of the same name removes. Files are
readable by their owner only, unless they are meant for release. Symbolic links are followed and kept; devices and pipes
are written to, never replaced.
"""

from __future__ import annotations

import errno
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
from privctl.storage.journal import link, recover, sync_folder
from privctl.storage.turns import FolderHeldError, try_lock

#: Names of the process's own output streams, which may be redirected to files: written in place, not replaced.
_OWN_DESCRIPTOR = re.compile(r"-|/dev/(stdout|stderr|(fd)/([0-9]{1,4}))")
#: Bytes written before the kernel is asked to start writing them to disk.
_WRITEBACK_STRIDE = 64 << 20
#: Random bytes in the name of a temporary file.
_RANDOM = 6


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing ``path`` into a FileSystemError."""
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
        if error.errno == errno.ENAMETOOLONG:
            raise FileSystemError(f"{path} cannot be written: {error.strerror}; choose a shorter one") from None
        do = "let it end, or " if isinstance(error, FolderHeldError) else ""
        raise FileSystemError(f"{path} cannot be written: {error.strerror}; {do}choose another folder") from None


class PendingFile:
    """A file written under a temporary name, which ``commit`` renames; without it, leaving the block removes the file.

    Writes are positional, so threads may share it.
    """

    def __init__(self, path: Path, size: int = 0, *, public: bool = False) -> None:
        """Create the temporary file beside ``path`` and allocate ``size`` bytes, so that a full disk fails at once.

        The mode is 0600; if ``public``, it follows the umask, but allows no more than the file being replaced. Raises
        CommandError if ``path`` is a device, a pipe or a socket.
        """
        self.path = path
        self.place = _link_target(path)
        self._public = public
        self._hinted = 0
        if _file_type(self.place) not in (None, stat.S_IFREG, stat.S_IFDIR):
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
        """Write all of ``data`` at byte offset ``position``."""
        view = memoryview(data)
        with writing(self.path):
            while view:
                done = os.pwrite(self._fd, view, position)
                view, position = view[done:], position + done
            self._hint_writeback(position)

    def _hint_writeback(self, position: int) -> None:
        """Ask the kernel to start writing earlier data to disk, so that the final fsync is short."""
        ready = position // _WRITEBACK_STRIDE - 1
        if ready > self._hinted:
            self._hinted, start = ready, self._hinted * _WRITEBACK_STRIDE
            os.posix_fadvise(self._fd, start, (ready * _WRITEBACK_STRIDE) - start, os.POSIX_FADV_DONTNEED)

    def commit(self, *, replace: bool = True) -> None:
        """Make the file durable, then rename it to its final name.

        Without ``replace``, raises CommandError if a file was created there in the meantime, and keeps that file.
        """
        self.flush()
        self.rename(replace=replace)
        with writing(self.path):
            sync_folder(self.place.parent)

    def flush(self) -> None:
        """Make the file durable under its temporary name, with its final mode."""
        with writing(self.path):
            if self._public:
                os.fchmod(self._fd, _public_mode(self.place))
            os.fsync(self._fd)

    def rename(self, *, replace: bool) -> None:
        """Rename the flushed file to its final name; the caller must still sync the folder."""
        if _file_type(self.place) not in (None, stat.S_IFREG, stat.S_IFDIR):
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
    """A folder filled under a temporary name, which ``commit`` renames; the final name must not exist yet.

    With ``replaces`` it may replace an existing folder, but only in ``commit_together``; the caller has checked that
    nothing is lost with the old folder.
    """

    def __init__(self, path: Path, *, public: bool = False, replaces: bool = False) -> None:
        """Create the temporary folder beside ``path``, with mode 0700, or following the umask if ``public``."""
        self.path = self.place = path
        self.replaces = replaces
        self._public = public
        with writing(path):
            _sweep(path)
            self.temporary, self._fd = _claim(path, _new_folder)

    def commit(self) -> None:
        """Rename the folder to its final name; its files must have been committed before."""
        self.flush()
        self.rename()
        with writing(self.path):
            sync_folder(self.place.parent)

    def flush(self) -> None:
        """Make its directory entries durable under its temporary name, with its final mode."""
        with writing(self.path):
            if self._public:
                os.fchmod(self._fd, 0o777 & ~_umask())
            os.fsync(self._fd)

    def rename(self, *, replace: bool = False) -> None:
        """Rename the flushed folder, after any old one was moved; the caller must still sync the parent."""
        with writing(self.path):
            os.rename(self.temporary, self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)
        shutil.rmtree(self.temporary, ignore_errors=True)


def write_bytes(path: Path, data: bytes, *, replace: bool = True, public: bool = False) -> None:
    """Write ``data`` to ``path`` atomically, or directly if it is a pipe or a character device.

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
    return bool(_OWN_DESCRIPTOR.fullmatch(str(path))) or _file_type(path) in (stat.S_IFIFO, stat.S_IFCHR)


def _stream(path: Path) -> BinaryIO:
    """Open a path for which ``takes_a_stream`` is true."""
    if match := _OWN_DESCRIPTOR.fullmatch(str(path)):
        number = int(match[3] or {"/dev/stderr": 2}.get(match[0], 1))
        return open(number, "wb", closefd=False)
    return open(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")


def _file_type(path: Path) -> int | None:
    """The file type of ``path``, following links; None if nothing is there."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return None


def _link_target(path: Path) -> Path:
    """The path that a write to ``path`` affects, with symbolic links resolved.

    Raises CommandError for a link that another user placed in a folder like ``/tmp``, as it may lead anywhere.
    """
    if not path.is_symlink():
        return path
    with writing(path):
        link, folder = os.lstat(path), os.stat(path.parent)
    open_to_all = stat.S_ISVTX | stat.S_IWOTH
    if folder.st_mode & open_to_all == open_to_all and link.st_uid not in (os.geteuid(), folder.st_uid):
        raise CommandError(
            f"{path} is a link that another user placed in a folder that everybody may write to; choose another folder"
        )
    return Path(os.path.realpath(path))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _public_mode(place: Path) -> int:
    """The mode that follows the umask, restricted to what the file being replaced allowed."""
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
    except OSError:
        mode = 0o666
    return 0o666 & ~_umask() & mode


def _link(temporary: Path, path: Path) -> None:
    """Rename without replacing: a hard link fails if the name is taken.

    On a file system without hard links, a file that another program makes at the same moment is replaced.
    """
    try:
        if link(temporary, path):
            temporary.unlink()
            return
        if not os.path.lexists(path):
            os.rename(temporary, path)
            return
    except FileExistsError:
        pass
    raise CommandError(f"{path} was created meanwhile and was kept; move it away and try again")


def new_folder(path: Path) -> None:
    """Create the folder ``path``, or accept an empty one; raises CommandError if it is not empty or has no parent."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if os.path.lexists(path):
        raise CommandError(f"{path} exists and is not an empty folder; remove it or choose another --output")
    _require_parent(path)
    with writing(path):
        path.mkdir()


def fresh_folder(path: Path) -> Path:
    """``path`` or, if it exists, the first of ``path-2``, ``path-3``, ... that does not."""
    candidates = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


def require_folder(path: Path) -> None:
    """Raise CommandError unless ``path`` is a folder or one can be made there."""
    if not path.is_dir() and os.path.lexists(path):
        raise CommandError(f"{path} exists and is no folder; choose another --output")
    _require_parent(path)


def require_no_folder(path: Path) -> None:
    """Raise CommandError if ``path`` exists, as nothing is replaced by a new folder, or has no parent folder."""
    recover(path.absolute().parent)  # finishing an interrupted commit may create or remove the file
    _require_parent(path)
    if os.path.lexists(path):
        what = "a folder, which no file replaces" if path.is_dir() else "no folder"
        raise CommandError(f"{path} exists and is {what}; choose another --output")


def require_absent(path: Path, force: bool, *, option: str = "--output", forced_by: str = "--force") -> None:
    """Raise CommandError if ``path`` exists and may not be replaced by a file, or has no parent folder.

    For the message, ``option`` is the option that sets the path, "" if there is none, and ``forced_by`` the one that
    allows replacing it.
    """
    recover(path.absolute().parent)  # finishing an interrupted commit may create or remove the file
    _require_parent(path)
    other = f"choose another {option}" if option else "move it away"
    if path.is_dir():
        raise CommandError(f"{path} exists and is a folder, which no file replaces; remove it or {other}")
    if _file_type(path) == stat.S_IFREG and not force and not _OWN_DESCRIPTOR.fullmatch(str(path)):
        raise CommandError(f"{path} exists; give {forced_by} to replace it, or {other}")


def require_name(path: Path) -> None:
    """Raise CommandError if ``path`` has no name, such as ``.`` or ``/``, so nothing can be written beside it."""
    if not path.name:
        raise CommandError(
            f"--output {path} is a folder without a name of its own; name what to write, such as {path / 'out'}"
        )


def require_regular(path: Path, *, option: str = "--output") -> None:
    """Raise CommandError if ``path`` is a device, a pipe or a socket, beside which no other file can be written."""
    if takes_a_stream(path) or _file_type(path) not in (None, stat.S_IFREG, stat.S_IFDIR):
        raise CommandError(
            f"{path} is not a regular file, so nothing can be kept there or written beside it; choose another {option}"
        )


def _require_parent(path: Path) -> None:
    """Raise CommandError if ``path`` has no parent folder, FileSystemError if nothing can be written into that."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise CommandError(f"{parent} is not a folder to write {path.name} into; make it first")
    written = Path(os.path.realpath(path)).parent
    if not takes_a_stream(path) and not os.access(written, os.W_OK | os.X_OK):
        raise FileSystemError(f"{path} cannot be written: {written} may only be read; choose another folder")


def _claim(path: Path, create: Callable[[Path], int | None]) -> tuple[Path, int]:
    """Create and lock a temporary file or folder for ``path``, again if another writer removed it before the lock."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM)}.partial")
        fd = create(temporary)
        if fd is None:
            continue
        if try_lock(fd) and temporary.exists():
            return temporary, fd
        os.close(fd)


def _new_file(temporary: Path) -> int:
    return os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _new_folder(temporary: Path) -> int | None:
    """Create the folder and return its descriptor; None if another writer removed it before it was opened."""
    temporary.mkdir(mode=0o700)
    try:
        return os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _sweep(path: Path) -> None:
    """Remove what killed writers of ``path`` left: temporaries that no process has locked."""
    recover(path.parent)
    partial_name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{2 * _RANDOM}}}\.partial")
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        if not partial_name.fullmatch(stale.name):
            continue  # somebody else's
        try:
            # Links and pipes are not ours, and opening a pipe would block. NFS locks no file opened for reading.
            access = os.O_RDONLY if stale.is_dir() else os.O_RDWR
            fd = os.open(stale, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if not try_lock(fd):
                continue  # its writer is alive
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)
        finally:
            os.close(fd)
