"""Progress on standard error: a bar on a terminal, timed lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from privctl.domain.progress import Advance
from privctl.show.plain import escape_hidden

_LINE_EVERY = 10.0


def note(message: str, *, quiet: bool = False) -> None:
    """One line of log."""
    if not quiet and sys.stderr is not None:  # None where the caller closed it
        sys.stderr.write(f"privctl: {escape_hidden(message)}\n")
        sys.stderr.flush()


@contextmanager
def progress(label: str, total: float, unit: str = "bytes", *, quiet: bool = False) -> Iterator[Advance]:
    """Show work of ``total`` ``unit`` under ``label`` while the block runs; yields the function that advances it."""
    if quiet or sys.stderr is None:
        yield lambda _: None
    elif sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb":
        with _bar(label, total, unit) as advance:
            yield advance
    else:
        with _lines(label, total, unit) as advance:
            yield advance


@contextmanager
def _bar(label: str, total: float, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _lines(label: str, total: float, unit: str) -> Iterator[Advance]:
    """A line now and then while the work lasts, and one at the end if it lasted long enough to wonder."""
    started = shown = time.monotonic()
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done, shown
        done += amount
        now = time.monotonic()
        if now - shown >= _LINE_EVERY:
            shown = now
            share = 100 * done / total if total else 100
            note(f"{label}: {share:.0f} % of {total:.0f} {unit} after {now - started:.0f} s")

    yield advance
    elapsed = time.monotonic() - started
    if elapsed >= 1:
        note(f"{label}: done in {elapsed:.1f} s")
