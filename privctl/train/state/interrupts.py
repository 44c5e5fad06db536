"""Delays Ctrl-C, SIGTERM and SIGHUP until the end of a step, so that the step's privacy cost is saved."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Seconds within which a second interrupt counts as the same one, delivered twice (by terminal and torchrun, say).
_SAME = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def deferred_interrupts(notify: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Inside, the first interrupt calls ``notify`` and makes the yielded function return True; the next one interrupts.

    A caller that gets True is expected to leave the block by an exception; otherwise KeyboardInterrupt is raised at its
    end. Signals that are ignored or have no Python handler keep their disposition, and outside the main thread, which
    receives no signals, nothing is changed.
    """
    arrived: list[float] = []

    def handle(number: int, frame: object) -> None:
        if not arrived:
            arrived.append(time.monotonic())
            # Writing fails where the terminal has hung up, or where the signal interrupted a write to it.
            with suppress(OSError, RuntimeError):
                notify()
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
