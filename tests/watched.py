"""A limit on processes that compute together, in time that they had and not in time that others took from them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: At most so many seconds between two looks.
_TICK = 1.0


class Watch:
    """Call ``end``, once, when the processes ``pids`` have had ``patience`` seconds.

    A second in which one of them was ready to compute and waited for a core does not count: on a busy machine the
    others may have been waiting for that one. Those that wait for each other, or never come to an end, do have theirs.
    Where the system does not tell how long threads waited for a core, every second counts.
    """

    def __init__(self, pids: Sequence[int], patience: float, end: Callable[[], object]) -> None:
        self._pids, self._patience, self._end = pids, patience, end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        had, last, before = 0.0, time.monotonic(), waits(self._pids)
        while not self._over.wait(min(_TICK, self._patience / 10)):
            now, found = time.monotonic(), waits(self._pids)
            had += now - last - max((wait - before.get(thread, 0.0) for thread, wait in found.items()), default=0.0)
            last, before = now, found
            if had >= self._patience:
                self._end()
                return


def waits(pids: Sequence[int]) -> dict[str, float]:
    """For each thread of the processes, the seconds it was ready to compute and waited for a core.

    From ``/proc/PID/task/TID/schedstat`` (Linux, Documentation/scheduler/sched-stats.rst), in nanoseconds there.
    """
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or the system has no such file
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    found[str(thread)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found
