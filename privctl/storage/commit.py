"""Several outputs that belong together (a model and its report) get their names together."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from privctl.domain.errors import UsageFault
from privctl.storage.atomic import PendingFile, PendingFolder, writing
from privctl.storage.journal import Journal, Rename


def commit_together(outputs: Sequence[PendingFile | PendingFolder], *, replace: bool = True) -> None:
    """Rename all ``outputs`` to their places, in order; after an error none of them has happened.

    After a kill the next command that reads or writes in the folder of the first carries out the rest
    (``journal.recover``). Without ``replace``, and always for a folder, what stands in an output's place is kept and
    UsageFault raised.
    """
    for pending in outputs:
        pending.flush()
        if os.path.lexists(pending.place) and (not replace or isinstance(pending, PendingFolder)):
            raise UsageFault(f"{pending.path} came to exist meanwhile and was kept; choose another --output")
    mark = secrets.token_hex(6)
    renames = [Rename.planned(pending.temporary, pending.place, mark) for pending in outputs]
    with writing(outputs[0].path):
        journal = Journal(outputs[0].place.absolute().parent, mark, renames)
        try:
            for pending, rename in zip(outputs, renames, strict=True):
                rename.keep()
                pending.rename(replace=replace)
        except BaseException:
            journal.undo()
            journal.close()
            raise
        journal.close()
