"""The journal of a set of renames that belong together, and recovery after a crash.

A journal ``.privctl.MARK.commit`` tells the next process that finds it to carry out the renames it lists; renamed to
``.privctl.MARK.undo``, it tells it to undo them. Every other folder with renames in the set holds a note of the same
name that points to the journal. Anyone who can write into a folder can plant a journal there (it may be part of a
download), so renames are carried out only in folders that hold the journal or its note, and undoing hides files instead
of deleting them. The writer holds a lock on the journal and its notes as long as it lives.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privctl.storage.turns import try_lock, turn

_NAME = re.compile(r"\.privctl\.[0-9a-f]{12}\.(commit|undo)")
_DRAFT = re.compile(r"\.privctl\.[0-9a-f]{12}\.draft")
_MOST_BYTES = 1 << 20
#: How long recovery waits for a folder's lock, in seconds; after that a reader goes on without it.
_PATIENCE = 5.0
#: Errors of file systems without hard links, and of systems where only its owner may link a file.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
#: The key under which a note holds the folder of its journal.
_HOME = "home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One output: its ``temporary`` name, its final ``place``, and the name under which a replaced file is ``kept``.

    With ``removes`` it goes the other way: what is at ``place`` is renamed to ``temporary``, to be deleted.
    """

    temporary: Path
    place: Path
    kept: Path
    replaces: bool
    removes: bool = False

    @classmethod
    def to_place(cls, temporary: Path, place: Path, mark: str) -> Rename:
        """The rename of ``temporary`` to ``place``, in the set identified by ``mark`` (12 hexadecimal digits)."""
        folder = Path(os.path.realpath(place.parent))
        return cls(
            temporary=folder / temporary.name,
            place=folder / place.name,
            kept=folder / f".{place.name}.{mark}.kept",
            replaces=place.exists(),
        )

    @classmethod
    def removal(cls, place: Path, mark: str) -> Rename:
        """The removal of ``place``, in the set identified by ``mark``."""
        folder = Path(os.path.realpath(place.parent))
        temporary, kept = (folder / f".{place.name}.{mark}.{end}" for end in ("partial", "kept"))
        return cls(temporary=temporary, place=folder / place.name, kept=kept, replaces=False, removes=True)

    def keep(self) -> None:
        """Keep what will be replaced: link a file to the name ``kept``, or move a folder, or a file without links."""
        if not self.replaces or os.path.lexists(self.kept):
            return
        if not _is_folder(self.temporary) and link(self.place, self.kept):
            return
        if os.path.lexists(self.place):
            os.rename(self.place, self.kept)

    def apply(self) -> None:
        """Carry out the rename unless that has already happened."""
        if self.removes:
            if os.path.lexists(self.place) and not os.path.lexists(self.temporary):
                os.rename(self.place, self.temporary)
            return
        if not os.path.lexists(self.temporary):
            return
        if _is_folder(self.temporary):
            self.keep()
            os.rename(self.temporary, self.place)
            return
        os.replace(self.temporary, self.place)
        self.temporary.unlink(missing_ok=True)  # os.replace leaves it if both were names of one file

    def take_back(self) -> None:
        """Undo the rename, even if only half of it happened: restore the old file, or leave nothing at ``place``."""
        if self.removes:
            if os.path.lexists(self.temporary) and not os.path.lexists(self.place):
                os.rename(self.temporary, self.place)
        elif self.replaces:
            if _is_folder(self.kept):
                if os.path.lexists(self.place):
                    os.rename(self.place, self.temporary)
                os.rename(self.kept, self.place)
            elif self.kept.exists():
                os.replace(self.kept, self.place)
        elif not os.path.lexists(self.temporary):
            with suppress(FileNotFoundError):
                os.rename(self.place, self.temporary)
        elif self.place.is_file() and self.place.samefile(self.temporary):
            self.place.unlink()

    @property
    def replaced(self) -> Path:
        """The name of a replaced folder until it is deleted; the next write to ``place`` deletes what is left."""
        return self.kept.with_suffix(".partial")

    def release(self) -> None:
        """Delete the kept file; a kept folder is only renamed, because a kill may interrupt its deletion."""
        if _is_folder(self.kept):
            os.rename(self.kept, self.replaced)
        else:
            self.kept.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete what is at ``temporary``."""
        if _is_folder(self.temporary):
            shutil.rmtree(self.temporary, ignore_errors=True)
        else:
            self.temporary.unlink(missing_ok=True)


class Journal:
    """A journal on disk and its notes, locked by this process until they are closed."""

    def __init__(self, mark: str, renames: Sequence[Rename]) -> None:
        """Write notes and journal atomically and durably; the journal comes last, in the first rename's folder."""
        self.renames = tuple(renames)
        home, *others = dict.fromkeys(rename.place.parent for rename in renames)
        self.path = home / f".privctl.{mark}.commit"
        self._locks: list[int] = []
        try:
            for folder in others:
                self._locks.append(_write_locked(folder / self.path.name, {_HOME: os.path.relpath(home, folder)}))
            self._locks.append(_write_locked(self.path, [_row(rename, home) for rename in renames]))
        except BaseException:
            _drop_notes(self.path, renames)
            self._release()
            raise

    def undo(self) -> None:
        """Mark the journal as to be undone, undo the renames and delete the new files."""
        undone = self.path.with_suffix(".undo")
        os.rename(self.path, undone)
        self.path = undone
        sync_folder(undone.parent)
        for rename in reversed(self.renames):
            rename.take_back()
            if not rename.removes:
                rename.forget()

    def close(self) -> None:
        """Delete the old files and the journal, after all renames were carried out or undone."""
        for rename in self.renames:
            if rename.removes:
                rename.forget()
        _clear(self.path, self.renames)
        for rename in self.renames:
            shutil.rmtree(rename.replaced, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        while self._locks:
            os.close(self._locks.pop())


def recover(folder: Path) -> None:
    """Finish the commits of killed processes in ``folder``; those of running processes are left to them.

    A folder that is not writable, or that another process keeps locked, is left as it is.
    """
    for path in _journals(folder):
        with suppress(OSError, ValueError):
            if not _is_held(path):
                with turn(_affected_folders(path), _PATIENCE):
                    _finish(path)


def unfinished(folder: Path) -> bool:
    """Whether ``folder`` holds a journal or a note; if this process holds the folder's lock, its writer is dead."""
    return bool(_journals(folder))


def drop_drafts(folder: Path) -> None:
    """Remove unfinished journals in ``folder``; this process must hold the folder's lock, so nobody writes them."""
    for entry in os.scandir(folder):
        if _DRAFT.fullmatch(entry.name):
            with suppress(OSError):
                os.unlink(entry.path)


def _journals(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [folder / entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    return []


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_locked(path: Path, content: Any) -> int:
    """Write a journal or a note; returns the descriptor that holds its lock."""
    draft = path.with_suffix(".draft")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try_lock(fd, wait=True)
        remaining = memoryview(json.dumps(content).encode())
        while remaining:  # a disk that is almost full takes only part of it, and half a journal would be none
            remaining = remaining[os.write(fd, remaining) :]
        os.fsync(fd)
        os.rename(draft, path)
        sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise
    return fd


@contextmanager
def _open_locked(path: Path) -> Iterator[int | None]:
    """Open and lock a journal or a note; None if a running process has locked it, or it is not the user's own file.

    Raises OSError if it does not exist.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # NFS locks none that is only read
    try:
        yield fd if try_lock(fd) and path.exists() and _is_own_file(os.fstat(fd)) else None
    finally:
        os.close(fd)


def _is_held(path: Path) -> bool:
    with _open_locked(path) as fd:
        return fd is None


def _content(fd: int) -> Any:
    try:
        return json.loads(os.pread(fd, _MOST_BYTES, 0))
    except (ValueError, RecursionError):
        return []


def _affected_folders(path: Path) -> set[Path]:
    """The folders in which the journal at ``path``, or the one that a note there points to, renames files."""
    with _open_locked(path) as fd:  # kept locked, so that notes that point to each other end the recursion
        content = [] if fd is None else _content(fd)
        if not isinstance(content, dict):
            return {path.parent, *(rename.place.parent for rename in _read_renames(path, content))}
        journal = _journal_of(path, content)
        return {path.parent} if journal is None else {path.parent, *_affected_folders(journal)}


def _finish(path: Path) -> None:
    """Carry out or undo a dead writer's renames; journals that belong to another user are ignored."""
    with _open_locked(path) as fd:
        if fd is None:
            return
        content = _content(fd)
        if isinstance(content, dict):
            _finish_from_note(path, content)
        else:
            _apply(path, list(_read_renames(path, content)))


def _journal_of(note: Path, content: dict[str, Any]) -> Path | None:
    """The journal that a note points to; None if there is none."""
    home = note.parent / str(content.get(_HOME))
    journals = (home / note.with_suffix(suffix).name for suffix in (".commit", ".undo"))
    return next(
        (journal for journal in journals if os.path.lexists(journal) and not os.path.samefile(journal, note)), None
    )


def _finish_from_note(note: Path, content: dict[str, Any]) -> None:
    """Finish the journal that a note points to; without one, nothing was begun or everything is done."""
    journal = _journal_of(note, content)
    if journal is None:
        note.unlink(missing_ok=True)
    else:
        _finish(journal)


def _apply(path: Path, renames: Sequence[Rename]) -> None:
    if path.suffix == ".commit":
        for rename in renames:
            rename.apply()
    else:
        for rename in reversed(renames):
            rename.take_back()
    _clear(path, renames)


def _clear(path: Path, renames: Sequence[Rename]) -> None:
    for parent in {rename.place.parent for rename in renames}:
        sync_folder(parent)
    for rename in renames:
        rename.release()
    path.unlink()
    sync_folder(path.parent)
    _drop_notes(path, renames)


def _drop_notes(path: Path, renames: Sequence[Rename]) -> None:
    for parent in {rename.place.parent for rename in renames}:
        (parent / path.with_suffix(".commit").name).unlink(missing_ok=True)


def _row(rename: Rename, folder: Path) -> dict[str, Any]:
    names = {key: os.path.relpath(getattr(rename, key), folder) for key in ("temporary", "place", "kept")}
    return {**names, "replaces": rename.replaces, "removes": rename.removes}


def _read_renames(path: Path, rows: Any) -> Iterator[Rename]:
    """The renames that a journal lists and may carry out: see the module; other names must derive from the place."""
    folder = path.parent
    try:
        renames = [
            Rename(
                **{key: folder / row[key] for key in ("temporary", "place", "kept")},
                replaces=bool(row["replaces"]),
                removes=bool(row.get("removes")),
            )
            for row in rows
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return
    for rename in renames:
        start = re.escape(f".{rename.place.name}.") + "[0-9a-f]{12}"
        names = ((rename.temporary, "partial"), (rename.kept, "kept"))
        belong = all(p.parent == rename.place.parent and re.fullmatch(rf"{start}\.{s}", p.name) for p, s in names)
        if belong and _has_note(path, rename.place.parent):
            yield rename


def _has_note(path: Path, folder: Path) -> bool:
    """Whether ``folder`` holds the journal at ``path``, or its note."""
    with suppress(OSError):
        return folder.samefile(path.parent) or _is_own_file((folder / path.with_suffix(".commit").name).lstat())
    return False


def link(path: Path, name: Path) -> bool:
    """Make ``name`` a hard link to ``path``; returns False if the file system has none."""
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _is_own_file(status: os.stat_result) -> bool:
    """Whether this is a small regular file that belongs to the user."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size <= _MOST_BYTES
