"""Which searches were begun at a place: a log beside the output, entered before a search draws anything.

A search that is thrown away and begun again costs privacy that neither counts. The log tells of those that were begun
for the same output on the same data, released or not. It cannot know of searches elsewhere, of single runs, or of what
was removed together with the log: nothing in it is secret, so whoever can write it can write another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from privctl.domain.errors import InputError
from privctl.domain.progress import Notify
from privctl.reports.files import now
from privctl.storage.hash_chain import BrokenChainError, Chain, Link, LogFile, log_file
from privctl.train.release.searched import told_of_earlier

SUFFIX = ".searches"
_CHAIN = Chain(root=blake3(b"privctl searches 1").hexdigest(length=16), prefix=b" ")


def log_of(output: Path) -> Path:
    """The log of searches for ``output``."""
    return output.with_name(output.name + SUFFIX)


@contextmanager
def entered(output: Path, folder: Path, data: str, notify: Notify) -> Iterator[None]:
    """Note that a search of the data with this digest begins, and tell how many there were; not where ``folder`` is.

    That holds an unfinished search, which goes on. No other process enters a search while the block makes the folder.
    Raises InputError for a log that was edited.
    """
    if os.path.lexists(folder):
        yield
        return
    with log_file(log_of(output)) as file:
        if not os.path.lexists(folder):  # another process may have made it while this one waited
            links = _links(file)
            if earlier := _counted(links, data):
                notify(told_of_earlier(earlier))
            line, _ = _CHAIN.line(links[-1].digest if links else _CHAIN.root, f"{now()} {data}".encode())
            file.add(line)
            file.sync()
        yield


def begun(output: Path, data: str) -> int:
    """How many searches of the data with this digest were begun. Raises as ``entered``."""
    if not log_of(output).exists():
        return 0
    with log_file(log_of(output)) as file:
        return _counted(_links(file), data)


def _counted(links: Sequence[Link], data: str) -> int:
    return sum(link.body.endswith(b" " + data.encode()) for link in links)


def _links(file: LogFile) -> tuple[Link, ...]:
    content = file.content()
    try:
        links, cut = _CHAIN.read(content)
    except BrokenChainError as error:
        raise InputError(
            f"{file.path} was edited ({error}), so earlier searches of these data cannot be counted; put it back, or "
            "give another --output and count them yourself"
        ) from None
    if cut:  # what a killed process left of a line: its search drew nothing
        file.cut(len(content) - len(cut))
    return links
