"""The journal of a set of renames that belong together, and what finishes them after a kill.

A journal ``.privctl.MARK.commit`` asks whoever finds it to carry out the renames it lists; once it is called
``.privctl.MARK.undo`` it asks to take them back. Its writer holds a lock on it for as long as it lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"\.privctl\.[0-9a-f]{12}\.(commit|undo)")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One output: its ``temporary`` name, its final ``place``, and the name under which a replaced file is ``kept``."""

    temporary: Path
    place: Path
    kept: Path
    replaces: bool

    @classmethod
    def planned(cls, temporary: Path, place: Path, mark: str) -> Rename:
        """The rename of ``temporary`` to ``place``, in a set known by ``mark`` (12 hexadecimal digits)."""
        kept = place.with_name(f".{place.name}.{mark}.kept")
        return cls(temporary=temporary, place=place, kept=kept, replaces=place.exists())

    def keep(self) -> None:
        """Give the file that will be replaced a second name."""
        if self.replaces and not self.kept.exists():
            os.link(self.place, self.kept)

    def run_training(self) -> None:
        """Rename, where that has not happened yet."""
        if not os.path.lexists(self.temporary):
            return
        if self.temporary.is_dir():
            os.rename(self.temporary, self.place)
            return
        os.replace(self.temporary, self.place)
        self.temporary.unlink(missing_ok=True)  # still there where both were names of one file

    def take_back(self) -> None:
        """The old file under its name again, or nothing where there was none; also after half of the rename."""
        if self.replaces:
            if self.kept.exists():
                os.replace(self.kept, self.place)
        elif not os.path.lexists(self.temporary):
            if self.place.is_dir():
                shutil.rmtree(self.place, ignore_errors=True)
            else:
                self.place.unlink(missing_ok=True)


class Journal:
    """A journal on disk, locked by this process until it is closed."""

    def __init__(self, folder: Path, mark: str, renames: Sequence[Rename]) -> None:
        """Write it, whole and durable before it has its name."""
        self.path = folder / f".privctl.{mark}.commit"
        self.renames = tuple(renames)
        draft = self.path.with_suffix(".draft")
        self._fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, json.dumps([_row(rename, folder) for rename in renames]).encode())
            os.fsync(self._fd)
            os.rename(draft, self.path)
            sync_folder(folder)
        except BaseException:
            os.close(self._fd)
            draft.unlink(missing_ok=True)
            raise

    def undo(self) -> None:
        """From here on the renames are to be taken back; take them back."""
        undone = self.path.with_suffix(".undo")
        os.rename(self.path, undone)
        self.path = undone
        sync_folder(undone.parent)
        for rename in reversed(self.renames):
            rename.take_back()

    def close(self) -> None:
        """All stands, or nothing does: forget the old files and the journal."""
        _clear(self.path, self.renames)
        os.close(self._fd)


def recover(folder: Path) -> None:
    """Finish what a killed process began in ``folder``; what a living one has in hand is left to it.

    A folder that may not be written is left as it is.
    """
    with suppress(OSError):
        for name in [entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]:
            _finish(folder / name)


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _finish(path: Path) -> None:
    """Carry out or take back a dead writer's renames; a journal that somebody else wrote is not believed."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_size > _MOST_BYTES:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not path.exists():
            return
        renames = list(_listed(path.parent, os.read(fd, _MOST_BYTES)))
        for rename in renames if path.suffix == ".commit" else reversed(renames):
            if path.suffix == ".commit":
                rename.run_training()
            else:
                rename.take_back()
        _clear(path, renames)
    finally:
        os.close(fd)


def _clear(path: Path, renames: Sequence[Rename]) -> None:
    for parent in {rename.place.absolute().parent for rename in renames}:
        sync_folder(parent)
    for rename in renames:
        rename.kept.unlink(missing_ok=True)
    path.unlink()
    sync_folder(path.parent)


def _row(rename: Rename, folder: Path) -> dict[str, Any]:
    names = {key: os.path.relpath(getattr(rename, key), folder) for key in ("temporary", "place", "kept")}
    return {**names, "replaces": rename.replaces}


def _listed(folder: Path, content: bytes) -> Iterator[Rename]:
    """What a journal lists, as far as each temporary and kept name belongs to its place."""
    try:
        rows: Any = json.loads(content)
        found = [
            Rename(**{key: folder / row[key] for key in ("temporary", "place", "kept")}, replaces=bool(row["replaces"]))
            for row in rows
        ]
    except (ValueError, TypeError, KeyError):
        return
    for rename in found:
        start = re.escape(f".{rename.place.name}.") + "[0-9a-f]{12}"
        names = ((rename.temporary, "partial"), (rename.kept, "kept"))
        if all(p.parent == rename.place.parent and re.fullmatch(rf"{start}\.{s}", p.name) for p, s in names):
            yield rename
