"""The command line: a table of commands, each loaded only when it is called.

One file a command: parse, call, render, exit. Files here import click and the domain; engines are imported inside the
functions, so that ``--help`` stays as quick as Python itself.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import click

from privctl.cli.groups import SuggestingGroup
from privctl.cli.interrupted import INTERRUPTED
from privctl.cli.slow_start import telling_of_slow_imports
from privctl.cli.unknown_options import known_by, taken_beside
from privctl.domain.errors import CommandError, ExitCode, PrivctlError, missing_package
from privctl.domain.version import VERSION
from privctl.show.plain import escape_hidden, plain

#: Heading -> command name -> (where its click command is, one line for ``privctl --help``): what one does first, first.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Measure and protect": {
        "audit": ("privctl.cli.audit:audit", "Attack a model: membership, canaries, extraction, secrets."),
        "retrain": ("privctl.cli.retrain:retrain", "Train a model privately, with clipping alone, or plainly."),
        "noise": ("privctl.cli.noise:noise", "Add calibrated Gaussian noise to finished weights."),
    },
    "Check and release": {
        "verify": ("privctl.cli.verify:verify", "Recompute what a report promises; check files and noise."),
        "gate": ("privctl.cli.gate:gate", "Check reports against a policy, for CI."),
        "report": ("privctl.cli.report:report", "Make a page or a model card of all known about a model."),
        "sign": ("privctl.cli.sign:sign", "Sign reports with your own key, or check a signature."),
        "inspect": ("privctl.cli.inspect:inspect", "Show a checkpoint and the chain of reports behind it."),
    },
    "Plan and prepare": {
        "account": ("privctl.cli.account:account", "Plan a privacy budget: every accountant side by side."),
        "canary": ("privctl.cli.canary:canary", "Plant random secrets in training data, for an audit."),
        "secrets": ("privctl.cli.secrets:secrets", "Find secrets in training data, and plan their protection."),
        "shadow": ("privctl.cli.shadow:shadow", "Train shadow models, for the strongest membership attacks."),
    },
    "More": {
        "demo": ("privctl.cli.demo:demo", "Train plainly, with noise and privately; attack each."),
        "claims": ("privctl.cli.claims:claims", "Judge published privacy claims by checkable proofs."),
        "completion": ("privctl.cli.completion:completion", "Print a completion script for a shell."),
    },
}
COMMANDS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
_WIDTH = max(map(len, COMMANDS))


class LazyGroup(SuggestingGroup):
    """A group whose commands are imported on first use; their one-line helps come from the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command called ``name``, or None."""
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        for heading, rows in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(_WIDTH), line) for name, (_, line) in rows.items()])


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "PRIVCTL",
    },
)
@click.version_option(VERSION, "-V", "--version", prog_name="privctl", allow_from_autoenv=False)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Measure what a trained model reveals about its training data, and make it reveal less, with a bound.

    Exit codes: 0 success, 1 a claim was refuted or a policy failed, 2 usage error, 3 bad input or inconclusive, 4 I/O
    or internal error, 130 interrupted. Any option can be set by a variable (PRIVCTL_NOISE_EPSILON) or in
    ./privctl.toml ([noise] epsilon = 1).

    \b
    Example:
      privctl demo
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl
    """
    ctx.color = _colour()


def _colour() -> bool | None:
    """Whether to colour output, as https://no-color.org and https://force-color.org say; None asks the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def main() -> NoReturn:
    """Run the command line and exit with the code that says what happened."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup sets this, and means it
            signal.signal(number, _interrupt)
    _write_whole()
    with telling_of_slow_imports(sys.argv[1:]):
        code = run(sys.argv[1:])
    with suppress(ValueError):  # closed
        try:
            sys.stdout.flush()
        except OSError:  # said before; Python would try again, and exit with a code of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _write_whole() -> None:
    """With PYTHONUNBUFFERED Python drops what a full disk or a size limit cuts off a write, and says nothing."""
    if sys.stdout is not None and isinstance(raw := getattr(sys.stdout, "buffer", None), io.FileIO):
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), sys.stdout.encoding, sys.stdout.errors)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error becomes one sentence on standard error."""
    try:
        _check_names(arguments)
        code = root.main(_spelled_out(arguments), prog_name="privctl", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except PrivctlError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _show(error)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        return _fail(INTERRUPTED, ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except Exception as error:
        return _fail(*_unexpected(error))


def _spelled_out(arguments: list[str]) -> list[str]:
    """``privctl help NAME`` as ``privctl NAME --help``."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


def _show(error: click.ClickException) -> None:
    """Print click's message on a malformed call, with control characters from the call made harmless."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the help itself
        click.echo(error.format_message(), err=True)
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        click.echo(context.get_usage(), err=True)
        if context.command.get_help_option(context) is not None:
            click.echo(f"Try '{context.command_path} {context.help_option_names[0]}' for help.\n", err=True)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and context is not None:
        # click keeps only names that are spelled alike.
        if known := known_by(error):
            message = f"No such option {error.option_name!r}. Did you mean {' or '.join(map(repr, known))}?"
        elif takers := taken_beside(error):
            have = f"{takers[0]} has" if len(takers) == 1 else f"{', '.join(takers)} have"
            message = f"{context.command_path} has no option {error.option_name!r}; {have} it."
    click.echo(f"Error: {plain(message)}", err=True)


def _unexpected(error: Exception) -> tuple[str, int]:
    """The sentence and exit code for an error that no command expects."""
    if isinstance(error, UnicodeEncodeError) and _NOT_UTF8.search(str(error.object)):
        return _unnameable(str(error.object)), ExitCode.BAD_INPUT
    if isinstance(error, OSError):
        where = "" if error.filename is None else f" ({error.filename})"
        message = f"the operating system refused: {error.strerror or error}{where}; files written earlier are intact"
    elif isinstance(error, ImportError):
        missing = missing_package(error)
        told = f"the package {missing} is not installed" if missing else str(error)
        message = f"{told}; install privctl and its dependencies as the README says"
    elif _is_short_of_memory(error):
        message = "out of memory; process less at once, close other programs, or use a device with more memory"
    else:
        message = f"internal error, please report it: {type(error).__name__}: {error} (--debug shows the traceback)"
    return message, ExitCode.FAILURE


def _is_short_of_memory(error: Exception) -> bool:
    """Whether Python or torch, which is not imported for this, ran out of memory."""
    return isinstance(error, MemoryError) or any(
        words in f"{type(error).__name__}: {error}" for words in ("OutOfMemoryError", "DefaultCPUAllocator")
    )


#: Bytes of a name that are not UTF-8, as Python holds them.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
#: Commands that write no report.
_WITHOUT_REPORT = ("gate", "inspect", "report", "verify", "completion")


def _check_names(arguments: list[str]) -> None:
    """Raise CommandError for a name that is not UTF-8, before anything is read: a JSON report cannot hold it."""
    if arguments and arguments[0] not in _WITHOUT_REPORT:
        for argument in arguments:
            if _NOT_UTF8.search(argument):
                raise CommandError(_unnameable(argument))


def _unnameable(name: str) -> str:
    shown = name if len(name) <= 200 else f"...{name[-200:]}"
    return f"the name {shown} is not UTF-8, so no report can hold it; rename the file"


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM and SIGHUP end like Ctrl-C: temporary files are removed before exit."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    if os.environ.get("PRIVCTL_DEBUG"):
        traceback.print_exc()
    click.echo(f"privctl: {escape_hidden(' '.join(message.split()))}", err=True)
    return code
