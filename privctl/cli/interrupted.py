"""The message after Ctrl-C ended a training or shadow models: what is saved, and how to continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privctl.domain.errors import RunInterruptedError

#: The message of all other commands. Files are written under temporary names and renamed when they are complete.
INTERRUPTED = "interrupted; every file under its final name is complete"


@contextmanager
def explaining_interrupts(output: Path) -> Iterator[None]:
    """A context for a training into ``output``. Ctrl-C raises RunInterruptedError, which says how to continue."""
    before = _written(output)
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError(_message(output, before)) from None


@contextmanager
def explaining_interrupts_of_shadows(folder: Path, count: int) -> Iterator[None]:
    """A context for training ``count`` shadow models into ``folder``. Ctrl-C raises RunInterruptedError."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError(_message_on_shadows(folder, count)) from None


def _message_on_shadows(folder: Path, count: int) -> str:
    from audits.membership.shadows import REPORT_NAME, shadow_paths

    stored = len(shadow_paths(folder))
    if stored >= count:
        return f"interrupted after all {count} shadow models were finished; {folder / REPORT_NAME} lists them"
    if stored:
        return (
            f"interrupted; {stored} of {count} shadow models are finished, and their scores are in {folder}: run the "
            "same command again, and only the others are trained"
        )
    return "interrupted before a shadow model was finished: nothing is saved, so run the same command again"


def _message(output: Path, before: tuple[int, int] | None) -> str:
    from privctl.train.preparation.places import STATE, report_path, run_folder

    after = _written(output)
    if after is not None and after != before:
        return f"interrupted after {output} was finished; {report_path(output).name} is its report"
    folder, search = run_folder(output), output.with_name(output.name + ".search")
    if search.is_dir():
        return f"interrupted; the search is kept in {search}: continue with --resume and the same settings"
    if (folder / STATE).is_file():
        return f"interrupted; the state saved last is in {folder}: continue with --resume and the same settings"
    if folder.is_dir():
        return (
            f"interrupted before a state was saved; {folder} counts the steps that were begun: with --resume and the "
            "same settings the training starts again from the first step"
        )
    return "interrupted before the training began: there is no state to resume, so run the same command again"


def _written(output: Path) -> tuple[int, int] | None:
    """The inode and modification time (nanoseconds) of the report beside ``output``; None where there is none."""
    try:
        status = output.with_name(f"{output.name}.report.json").stat()
    except (OSError, ValueError):  # a name such as / has none beside it
        return None
    return status.st_ino, status.st_mtime_ns
