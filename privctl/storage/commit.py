"""Committing several outputs that belong together, such as a model and its report."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path

from privctl.domain.errors import CommandError
from privctl.storage.atomic import PendingFile, PendingFolder, takes_a_stream, write_bytes, writing
from privctl.storage.journal import Journal, Rename, drop_drafts, recover, unfinished
from privctl.storage.turns import turn

#: Attempts at recovering what killed processes left; others may leave more in the meantime.
_ATTEMPTS = 3


def commit_together(
    outputs: Sequence[PendingFile | PendingFolder], *, replace: bool = True, remove: Sequence[Path] = ()
) -> None:
    """Rename all ``outputs`` to their places and ``remove`` other files: all of it, or after an error none of it.

    Processes that commit in the same folder do so one after the other. After a kill, the next command that reads or
    writes in one of the folders completes the commit (``journal.recover``). Without ``replace``, and for a folder that
    does not replace one, raises CommandError if something is in an output's place, and keeps it.
    """
    for pending in outputs:
        pending.flush()
    if not outputs and not remove:
        return
    folders = {place.parent for place in (*(pending.place for pending in outputs), *remove)}
    with writing(outputs[0].path if outputs else remove[0]), _wait_for_turn(folders):
        for folder in folders:
            drop_drafts(folder)
        _commit(outputs, replace=replace, remove=remove)


@contextmanager
def _wait_for_turn(folders: Set[Path]) -> Iterator[None]:
    """Wait for other processes that commit in ``folders``, and first finish what killed ones left there.

    If their renames were carried out later, they would overwrite part of this set.
    """
    for _ in range(_ATTEMPTS):
        for folder in folders:
            recover(folder)
        with turn(folders):
            if not any(map(unfinished, folders)):
                yield
                return
    with turn(folders):  # what is still there was not written by us and is never carried out
        yield


def _commit(outputs: Sequence[PendingFile | PendingFolder], *, replace: bool, remove: Sequence[Path]) -> None:
    for pending in outputs:
        must_be_new = isinstance(pending, PendingFolder) and not (pending.replaces and pending.place.is_dir())
        if os.path.lexists(pending.place) and (not replace or must_be_new):
            raise CommandError(f"{pending.path} was created meanwhile and was kept; move it away and try again")
    mark = secrets.token_hex(6)
    renames = [Rename.to_place(pending.temporary, pending.place, mark) for pending in outputs]
    removals = [Rename.removal(path, mark) for path in remove if os.path.lexists(path)]
    if not renames and not removals:
        return
    journal = Journal(mark, [*renames, *removals])
    try:
        for pending, rename in zip(outputs, renames, strict=True):
            rename.keep()
            pending.rename(replace=replace)
        for removal in removals:
            removal.apply()
    except BaseException:
        journal.undo()
        journal.close()
        raise
    journal.close()


def write_together(contents: Mapping[Path, bytes], *, replace: bool = True, public: bool = False) -> None:
    """Write all files or none; devices and pipes are written last, as that cannot be undone.

    Raises as ``commit_together`` and ``write_bytes`` do.
    """
    streams = {path: data for path, data in contents.items() if takes_a_stream(path)}
    with ExitStack() as stack:
        outputs = []
        for path, data in contents.items():
            if path not in streams:
                outputs.append(stack.enter_context(PendingFile(path, public=public)))
                outputs[-1].write_at(0, data)
        if outputs:
            commit_together(outputs, replace=replace)
    for path, data in streams.items():
        write_bytes(path, data)
