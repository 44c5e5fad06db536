"""Corpora in memory-mapped files: one process per machine writes them, and all processes of the machine read them.

The tokens are as private as the data. With a single process the files have no names. Otherwise they are named, in a
hidden folder, until every process has mapped them, so a killed process leaves files behind only during that time.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from privctl.domain.errors import FileSystemError
from privctl.models.corpora import COLUMNS, Corpus, EncodedRecord, write_columns
from privctl.parallel import ALONE, Workers
from privctl.storage.scratch import ScratchFile, ScratchFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TokenCache:
    """A ``Shelf`` on disk for the duration of a block, hidden beside ``path``, whose folder must have room.

    It takes 5 bytes per token and 36 per example. All ``workers`` must request the same corpora in the same order.
    """

    def __init__(self, path: Path, workers: Workers = ALONE) -> None:
        self._path = path
        self._workers = workers
        self._stack = ExitStack()
        self._folder: ScratchFolder | None = None

    def corpus(self, records: Iterable[EncodedRecord]) -> Corpus:
        """See ``Shelf``. Only one process per machine reads ``records``.

        Raises FileSystemError if the disk is full, or if a process cannot read what another wrote.
        """
        if self._workers.size == 1:
            files, shortened = self._written(records)
            return Corpus.of({name: _mapped(file.descriptor, name) for name, file in files.items()}, shortened)
        announced = json.loads(self._workers.once_per_machine(lambda: self._announced(records)))
        columns, fault = {}, None
        try:
            columns = {name: _open_array(Path(announced["folder"], name), name) for name in COLUMNS}
        except OSError as error:
            fault = f"{announced['folder']} cannot be read by process {self._workers.rank}: {error.strerror}"
        (failed,) = self._workers.any_of(fault is not None)
        if failed:
            raise FileSystemError(f"{fault or 'a process cannot read the tokens'}; choose another folder for --output")
        if self._folder is not None:
            self._folder.empty()
        return Corpus.of(columns, announced["shortened"])

    def _announced(self, records: Iterable[EncodedRecord]) -> bytes:
        _, shortened = self._written(records)
        assert self._folder is not None
        return json.dumps({"folder": str(self._folder.folder.absolute()), "shortened": shortened}).encode()

    def _written(self, records: Iterable[EncodedRecord]) -> tuple[Mapping[str, ScratchFile], int]:
        if self._folder is None:
            self._folder = self._stack.enter_context(ScratchFolder(self._path))
        files = {}
        for name in COLUMNS:
            files[name] = self._folder.file(name, named=self._workers.size > 1)
            self._stack.callback(files[name].close)
        return files, write_columns(records, {name: file.append for name, file in files.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def _open_array(path: Path, name: str) -> NDArray[Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _mapped(descriptor, name)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, name: str) -> NDArray[Any]:
    """The column in a file, memory-mapped. The file must not be truncated, which would kill the process."""
    size = os.fstat(descriptor).st_size
    if not size:
        return np.empty(0, COLUMNS[name])
    return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), COLUMNS[name])
