"""privctl's commands, run in this process, with the time that their work took."""

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

#: Exit codes of a command that did its work: 1 says that an audit refuted a claim, which is a result.
_DONE, _INTERRUPTED = (0, 1), 130


class CommandFailed(Exception):
    """A privctl command ended with an error, which it has told on standard error."""


@dataclass(slots=True)
class Stopwatch:
    """Stands where the commands show progress, and so learns when the first step begins and when the last one ends.

    Loading, accounting, saving and writing the report lie outside. ``seconds`` are the processor's, which on a busy
    machine vary less than those of the clock on the wall, ``wall_seconds``.
    """

    seconds: float = 0.0
    wall_seconds: float = 0.0

    @contextlib.contextmanager
    def progress(
        self, label: str, total: float, unit: str = "bytes", detail: Detail | None = None, *, quiet: bool = False
    ) -> Iterator[Advance]:
        """As ``privctl.show.progress.progress``, silently; times are those to the last advance."""
        began, wall_began = time.process_time(), time.perf_counter()

        def advance(amount: float) -> None:
            self.seconds, self.wall_seconds = time.process_time() - began, time.perf_counter() - wall_began

        yield advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command printed as JSON, and the time of its progress."""

    answer: dict[str, Any]
    watch: Stopwatch


def command(*arguments: str) -> Outcome:
    """Run a privctl command with ``--quiet --json`` in this process, so that start-up counts for nobody.

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
    """Remove a model, what a stopped run left of it, and its audit's scores; reports stay.

    Weights and scores are large, and what is wanted of them has been read by then.
    """
    for folder in (output, output.with_name(output.name + ".run")):
        shutil.rmtree(folder, ignore_errors=True)
    output.with_name(output.name + ".audit.scores.safetensors").unlink(missing_ok=True)
