"""How much work a call does, counted: seconds say more of the machine and its other work than of the code."""

from __future__ import annotations

import os
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from privctl.storage.digest import file_digest
from privctl.storage.reader import SafetensorsFile


def calls(function: Callable[[], object]) -> int:
    """How many functions, of Python and of C, ``function`` calls in this thread."""
    count = 0

    def noted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def memory(function: Callable[[], object]) -> int:
    """The most bytes that ``function`` holds at a time beyond what was held before, arrays included."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextmanager
def ends(seconds: float = 100.0) -> Iterator[None]:
    """Fails where the block does not end within CPU time far beyond what it needs; only the main thread's tests."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"it took more than {seconds:g} s of CPU time, and may never end")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def bytes_read(function: Callable[[], object]) -> Counter[str]:
    """How many bytes ``function`` reads of each file that it digests or whose tensors it reads, by the file's path.

    Headers count too, as often as the file is opened.
    """
    read: Counter[str] = Counter()
    whole, part = file_digest.__code__, SafetensorsFile.read_into.__code__

    def noted(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is whole:
            path = frame.f_locals["path"]
            read[os.path.abspath(path)] += path.stat().st_size
        elif event == "call" and frame.f_code is part:
            read[os.path.abspath(frame.f_locals["self"].path)] += len(frame.f_locals["buffer"])

    before = sys.getprofile()
    sys.setprofile(noted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return read
