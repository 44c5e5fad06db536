"""Run commands of privctl in this process and measure their time."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from privctl.cli import run
from privctl.domain.progress import Advance, Detail

#: Exit codes of commands that ran to the end. 1 means that an audit refuted a claim, which is a result.
_DONE, _INTERRUPTED = (0, 1), 130


class CommandFailed(Exception):
    """A privctl command failed, and printed its error on standard error."""


@dataclass(slots=True)
class Stopwatch:
    """Measures the time from the first to the last step of a command, by replacing its progress bar.

    Loading, accounting, saving and writing the report are not included. ``seconds`` is processor time, which varies
    less on a busy machine than elapsed time, ``wall_seconds``.
    """

    seconds: float = 0.0
    wall_seconds: float = 0.0

    @contextlib.contextmanager
    def progress(
        self, label: str, total: float, unit: str = "bytes", detail: Detail | None = None, *, quiet: bool = False
    ) -> Iterator[Advance]:
        """Like ``privctl.show.progress.progress``, without output. The times are those until the last advance."""
        began, wall_began = time.process_time(), time.perf_counter()

        def advance(amount: float) -> None:
            self.seconds, self.wall_seconds = time.process_time() - began, time.perf_counter() - wall_began

        yield advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The JSON that a command printed, and its times."""

    answer: dict[str, Any]
    watch: Stopwatch


def command(*arguments: str) -> Outcome:
    """Run a privctl command with ``--quiet --json`` in this process, so that no start-up time is measured.

    Raises CommandFailed where it fails, KeyboardInterrupt where it was interrupted.
    """
    printed, watch = io.StringIO(), Stopwatch()
    with patch("privctl.show.progress.progress", watch.progress), contextlib.redirect_stdout(printed):
        code = run([*arguments, "--quiet", "--json"])
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code not in _DONE:
        raise CommandFailed(f"privctl {' '.join(arguments)} ended with {code}")
    return Outcome(answer=json.loads(printed.getvalue()), watch=watch)


def remove_model(output: Path) -> None:
    """Remove a model, the state of an interrupted run, and its audit's scores, which are large. Reports are kept."""
    for folder in (output, output.with_name(output.name + ".run")):
        shutil.rmtree(folder, ignore_errors=True)
    output.with_name(output.name + ".audit.scores.safetensors").unlink(missing_ok=True)
