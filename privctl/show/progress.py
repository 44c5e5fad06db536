"""Progress on standard error: a bar on a terminal, timed lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from privctl.domain.progress import Advance, Detail
from privctl.domain.shown import upward
from privctl.show.plain import escape_hidden

_LINE_EVERY, _STILL_EVERY = 10.0, 30.0
_BAR_EVERY = 1.0


def note(message: str, *, quiet: bool = False) -> None:
    """Write one line to standard error, unless ``quiet``."""
    if not quiet and sys.stderr is not None:  # None where the caller closed it
        sys.stderr.write(f"privctl: {escape_hidden(message)}\n")
        sys.stderr.flush()


@contextmanager
def progress(
    label: str, total: float, unit: str = "bytes", detail: Detail | None = None, *, quiet: bool = False
) -> Iterator[Advance]:
    """Show the progress of ``total`` ``unit`` of work while the block runs; yields a function that adds work done.

    The measures that ``detail`` returns are shown next to it, updated once a second, or for each line without a
    terminal.
    """
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb":
        with _bar(label, total, unit, detail) as advance:
            yield advance
    else:
        with _lines(label, total, unit, detail) as advance:
            yield advance


@contextmanager
def _bar(label: str, total: float, unit: str, detail: Detail | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), amount]
    # A training's line itself says that the remaining time is to the last step.
    columns.append(TimeRemainingColumn() if detail is None else TextColumn("{task.fields[live]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, live="")
        pace = _Pace(total)

        def advance(done: float) -> None:
            pace.done += done
            if detail is not None and pace.due(_BAR_EVERY):
                bar.update(task, live=live_line(detail(), seconds_left=pace.left))
            bar.advance(task, done)

        yield advance


@contextmanager
def _lines(label: str, total: float, unit: str, detail: Detail | None) -> Iterator[Advance]:
    """A line every ten seconds of progress, or thirty without, and one at the end if the work took a second or more.

    So a program that watches the output can tell long work from work that hangs.
    """
    pace, ended = _Pace(total), threading.Event()

    def so_far() -> str:
        share = 100 * pace.done / total if total else 100
        return f"{label}: {share:.0f} % of {total:.0f} {unit} after {pace.elapsed:.0f} s"

    def wait() -> None:
        while not ended.wait(_STILL_EVERY):
            if pace.due(_STILL_EVERY):
                with suppress(OSError, ValueError):  # nobody reads it any more
                    note(so_far())

    def advance(amount: float) -> None:
        pace.done += amount
        if pace.due(_LINE_EVERY):
            left = pace.left
            if detail is not None:
                more = f"; {live_line(detail(), seconds_left=left)}"
            else:
                more = "" if left is None else f"; {clock_time(left)} left"
            note(f"{so_far()}{more}")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    try:
        yield advance
    finally:
        ended.set()
        waiting.join()
    if pace.elapsed >= 1:
        note(f"{label}: done in {pace.elapsed:.1f} s")


class _Pace:
    """The work ``done`` of ``total``, the time since the start, and the time since it was last shown."""

    def __init__(self, total: float) -> None:
        self.done = 0.0
        self._total = total
        self._started = self._shown = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float | None:
        """Seconds to the end at the average speed so far; None before any work is done."""
        return (self._total - self.done) * self.elapsed / self.done if self.done else None

    def due(self, every: float) -> bool:
        """Whether ``every`` seconds have passed since this last returned True."""
        now = time.monotonic()
        if now - self._shown < every:
            return False
        self._shown = now
        return True


def live_line(measures: Mapping[str, float], *, seconds_left: float | None = None) -> str:
    """``measures`` from ``privctl.train.logs.live`` and the time to the last step, on one line."""
    parts = []
    if "training_loss" in measures:
        parts.append(f"loss {measures['training_loss']:.4g}")
    if "epsilon" in measures:
        parts.append(f"epsilon {upward(measures['epsilon'], 3)} at step {measures['epsilon_at_step']:.0f}")
    for name, unit in _SPEEDS.items():
        if name in measures:
            parts.append(f"{_rounded(measures[name])} {unit}")
            break
    if "memory_bytes" in measures:
        parts.append(f"peak memory {measures['memory_bytes'] / 2**30:.2g} GiB")
    if seconds_left is not None:
        parts.append(f"{clock_time(seconds_left)} to the last step")
    return ", ".join(parts)


def clock_time(seconds: float) -> str:
    """A duration as hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


_SPEEDS = {
    "tokens_per_second": "tokens/s",
    "records_per_second": "records/s",
    "expected_records_per_second": "records/s expected",
}


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.2g}"
