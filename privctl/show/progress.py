"""Progress on standard error: a bar on a terminal, timed lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from privctl.domain.progress import Advance, Detail
from privctl.domain.shown import upward
from privctl.show.plain import escape_hidden

_LINE_EVERY = 10.0
_BAR_EVERY = 1.0


def note(message: str, *, quiet: bool = False) -> None:
    """One line of log."""
    if not quiet and sys.stderr is not None:  # None where the caller closed it
        sys.stderr.write(f"privctl: {escape_hidden(message)}\n")
        sys.stderr.flush()


@contextmanager
def progress(
    label: str, total: float, unit: str = "bytes", detail: Detail | None = None, *, quiet: bool = False
) -> Iterator[Advance]:
    """Show work of ``total`` ``unit`` under ``label`` while the block runs; yields the function that advances it.

    Measures of ``detail`` stand beside it, asked for once a second, or for each line where there is no terminal.
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
    # A training's own line says what the remaining time is the time to.
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
    """A line now and then while the work lasts, and one at the end if it lasted long enough to wonder."""
    pace = _Pace(total)

    def advance(amount: float) -> None:
        pace.done += amount
        if pace.due(_LINE_EVERY):
            share = 100 * pace.done / total if total else 100
            left = pace.left
            if detail is not None:
                more = f"; {live_line(detail(), seconds_left=left)}"
            else:
                more = "" if left is None else f"; {clock_time(left)} left"
            note(f"{label}: {share:.0f} % of {total:.0f} {unit} after {pace.elapsed:.0f} s{more}")

    yield advance
    if pace.elapsed >= 1:
        note(f"{label}: done in {pace.elapsed:.1f} s")


class _Pace:
    """How much of ``total`` is ``done``, since when, and when it was last shown."""

    def __init__(self, total: float) -> None:
        self.done = 0.0
        self._total = total
        self._started = self._shown = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float | None:
        """Seconds to the end at the pace so far."""
        return (self._total - self.done) * self.elapsed / self.done if self.done else None

    def due(self, every: float) -> bool:
        """Whether ``every`` seconds have gone since this was last true."""
        now = time.monotonic()
        if now - self._shown < every:
            return False
        self._shown = now
        return True


def live_line(measures: Mapping[str, float], *, seconds_left: float | None = None) -> str:
    """``measures`` as ``privctl.train.logs.live`` gives them, and how long it is to the last step."""
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
    """Hours, minutes and seconds, as a clock shows them."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


_SPEEDS = {
    "tokens_per_second": "tokens/s",
    "records_per_second": "records/s",
    "expected_records_per_second": "records/s expected",
}


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.2g}"
