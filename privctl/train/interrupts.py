"""Ctrl-C and polite kills wait for the end of a step, so that what it cost can be saved."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Seconds after an interrupt within which another is the same one told twice: by the terminal and by torchrun, say.
_SAME = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held(told: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Inside, the first interrupt calls ``told`` and makes the yielded function say True; another is one as ever.

    Whoever asks and hears True is expected to leave the block by an exception; else KeyboardInterrupt is raised at its
    end. What a signal does not interrupt (because it is ignored, or kills) is left as it is, and outside the main
    thread, where none arrives, everything is.
    """
    arrived: list[float] = []

    def handle(number: int, frame: object) -> None:
        if not arrived:
            arrived.append(time.monotonic())
            # A terminal that hung up cannot be written to, nor one that is being written to right now.
            with suppress(OSError, RuntimeError):
                told()
        elif time.monotonic() - arrived[0] > _SAME:
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _SIGNALS if callable(signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, handle)
        yield lambda: bool(arrived)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt
