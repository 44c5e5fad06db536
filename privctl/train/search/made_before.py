"""The log of searches for an output, next to it, with an entry made before a search draws anything.

A search that is abandoned and begun again costs privacy that neither search counts. The log lists all searches that
were begun for the same output on the same data, released or not. It does not cover searches elsewhere, single runs, or
entries removed with the log. It holds no secret, so anyone who can write it can forge it.
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
from privctl.train.release.searched import earlier_searches_warning

SUFFIX = ".searches"
_CHAIN = Chain(root=blake3(b"privctl searches 1").hexdigest(length=16), prefix=b" ")


def log_of(output: Path) -> Path:
    """The log of searches for ``output``."""
    return output.with_name(output.name + SUFFIX)


@contextmanager
def log_search(output: Path, folder: Path, data: str, notify: Notify) -> Iterator[None]:
    """Log that a search of the data with digest ``data`` begins, and notify of earlier ones.

    If ``folder`` exists, it holds an unfinished search, which continues, and nothing is logged. No other process logs a
    search while the block makes the folder. Raises InputError for a log that was edited.
    """
    if os.path.lexists(folder):
        yield
        return
    with log_file(log_of(output)) as file:
        if not os.path.lexists(folder):  # another process may have made it while this one waited
            links = _links(file)
            if earlier := _count_links(links, data):
                notify(earlier_searches_warning(earlier))
            line, _ = _CHAIN.line(links[-1].digest if links else _CHAIN.root, f"{now()} {data}".encode())
            file.add(line)
            file.sync()
        yield


def count_searches(output: Path, data: str) -> int:
    """The number of searches begun on the data with digest ``data``. Raises as ``log_search`` does."""
    if not log_of(output).exists():
        return 0
    with log_file(log_of(output)) as file:
        return _count_links(_links(file), data)


def _count_links(links: Sequence[Link], data: str) -> int:
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
    if cut:  # a partial line of a killed process, whose search drew nothing
        file.cut(len(content) - len(cut))
    return links
