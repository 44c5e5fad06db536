"""The errors a user can meet, each with the exit code it ends in.

An error is one sentence: what, where, what was expected, what to do. Anything else that escapes is a defect.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns, with separate codes for *found* and *broke* (docs/reports.md#exit-codes)."""

    OK = 0
    REFUTED = 1
    USAGE = 2
    BAD_INPUT = 3
    FAILURE = 4
    INTERRUPTED = 130


#: Modules that are installed under another name.
_PACKAGES = {"flint": "python-flint"}


def missing_package(error: ImportError) -> str:
    """The package whose module is not there, by the name under which it is installed; empty for another fault."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _PACKAGES.get(name, name)


class PrivctlError(Exception):
    """Base of every error that is shown as one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.FAILURE


class CommandError(PrivctlError):
    """The call itself cannot be carried out: a flag is missing, out of range, or contradicts another."""

    exit_code = ExitCode.USAGE


class InputError(PrivctlError):
    """A file or value that was read is malformed, unsupported, or not what a report says it is."""

    exit_code = ExitCode.BAD_INPUT


class DivergedError(InputError):
    """A training's weights, or losses, are no longer finite numbers."""


class RunInterruptedError(PrivctlError):
    """The user, or whoever may end this process, asked for it to stop; the sentence says what was saved."""

    exit_code = ExitCode.INTERRUPTED


class FileSystemError(PrivctlError):
    """The operating system refused: no space, no permission, a file that vanished."""

    exit_code = ExitCode.FAILURE
