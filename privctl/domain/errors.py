"""The errors shown to users, each with its exit code.

An error is one sentence: what, where, what was expected, what to do. Any other exception that escapes is a bug.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the process; findings and failures have different codes (docs/reports.md#exit-codes)."""

    OK = 0
    REFUTED = 1
    USAGE = 2
    BAD_INPUT = 3
    FAILURE = 4
    INTERRUPTED = 130


#: Modules whose package has another name on PyPI.
_PACKAGES = {"flint": "python-flint", "PIL": "pillow", "sklearn": "scikit-learn"}


def missing_package(error: ImportError) -> str:
    """The name under which to install the package that ``error`` misses; empty if no module is missing."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _PACKAGES.get(name, name)


class PrivctlError(Exception):
    """Base of every error that is shown as one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.FAILURE


class CommandError(PrivctlError):
    """The command cannot run as given: an option is missing, out of range, or contradicts another."""

    exit_code = ExitCode.USAGE


class InputError(PrivctlError):
    """An input file or value is malformed, unsupported, or not what a report says it is."""

    exit_code = ExitCode.BAD_INPUT


class DivergedError(InputError):
    """Training diverged: weights or losses are NaN or infinite."""


class NoStepsLeftError(InputError):
    """Every step of a run was begun and lost in kills, so nothing would be trained."""


class RunInterruptedError(PrivctlError):
    """The run was stopped by a signal; the message says what was saved."""

    exit_code = ExitCode.INTERRUPTED


class FileSystemError(PrivctlError):
    """The operating system reported an error: no space, no permission, a file that vanished."""

    exit_code = ExitCode.FAILURE


def in_one_line(error: Exception, most: int = 200) -> str:
    """The class of ``error`` and the first line of its message, at ``most`` so many characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:most]
