"""The command line: a table of commands, each loaded only when it is called.

Each command has its own file, which parses the options, calls the engine, prints the result and exits. These files
import only click and the domain. Engines are imported inside functions, so that ``--help`` stays fast.
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
from privctl.cli.slow_start import reporting_slow_imports
from privctl.cli.unknown_options import known_by, taken_beside
from privctl.domain.errors import CommandError, ExitCode, PrivctlError, missing_package
from privctl.domain.version import VERSION
from privctl.show.plain import escape_hidden, plain

#: Heading -> command name -> (module and name of its click command, its line in ``privctl --help``).
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Measure and protect": {
        "audit": ("privctl.cli.audit:audit", "Attack a model: membership, canaries, extraction, secrets."),
        "retrain": ("privctl.cli.retrain:retrain", "Train a model privately, with clipping alone, or plainly."),
        "noise": ("privctl.cli.noise:noise", "Add calibrated Gaussian noise to finished weights."),
    },
    "Check and release": {
        "verify": ("privctl.cli.verify:verify", "Recompute what a report promises; check files and noise."),
        "gate": ("privctl.cli.gate:gate", "Check reports against a policy, for CI."),
        "report": ("privctl.cli.report:report", "Make a page or a model card from the reports of a model."),
        "sign": ("privctl.cli.sign:sign", "Sign reports with your own key, or check a signature."),
        "inspect": ("privctl.cli.inspect:inspect", "Show a checkpoint and the chain of reports behind it."),
    },
    "Plan and prepare": {
        "account": ("privctl.cli.account:account", "Plan a privacy budget and compare accountants."),
        "canary": ("privctl.cli.canary:canary", "Plant random secrets in training data, for an audit."),
        "secrets": ("privctl.cli.secrets:secrets", "Find secrets in training data, and plan their protection."),
        "shadow": ("privctl.cli.shadow:shadow", "Train shadow models, for the strongest membership attacks."),
    },
    "More": {
        "demo": ("privctl.cli.demo:demo", "Run the whole workflow on a small model."),
        "claims": ("privctl.cli.claims:claims", "Judge published privacy claims by checkable proofs."),
        "completion": ("privctl.cli.completion:completion", "Print a completion script for a shell."),
    },
}
COMMANDS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
_WIDTH = max(map(len, COMMANDS))


class LazyGroup(SuggestingGroup):
    """A group whose commands are imported on first use; the table has their one-line help texts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return the command called ``name``; None where there is no such command."""
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
    """Whether to colour output, following https://no-color.org and https://force-color.org.

    None leaves the choice to click, which colours output to a terminal.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def main() -> NoReturn:
    """Run the command line and exit with its exit code, which ``privctl --help`` explains."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, _interrupt)
    _buffer_standard_output()
    with reporting_slow_imports(sys.argv[1:]):
        code = run(sys.argv[1:])
    with suppress(ValueError):  # closed
        if sys.stdout is not None:  # None where the caller closed it
            try:
                sys.stdout.flush()
            except OSError:  # already reported; otherwise Python would flush again and change the exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _buffer_standard_output() -> None:
    """Buffer standard output even under PYTHONUNBUFFERED.

    Unbuffered, Python silently drops the rest of a write that a full disk or a size limit cuts short.
    """
    if sys.stdout is not None and isinstance(raw := getattr(sys.stdout, "buffer", None), io.FileIO):
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), sys.stdout.encoding, sys.stdout.errors)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Every error is printed as one sentence on standard error."""
    try:
        _check_names(arguments)
        code = root.main(_with_help_option(arguments), prog_name="privctl", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except PrivctlError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _print_usage_error(error)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        return _fail(INTERRUPTED, ExitCode.INTERRUPTED)
    except SystemExit:  # how click answers a closed pipe, with 1, which would say that a policy failed
        return ExitCode.FAILURE
    except Exception as error:
        return _fail(*_unhandled(error))


def _with_help_option(arguments: list[str]) -> list[str]:
    """``privctl help NAME`` rewritten as ``privctl NAME --help``; other arguments unchanged."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


def _print_usage_error(error: click.ClickException) -> None:
    """Print click's message about a malformed call, with control characters of the call escaped."""
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
        # click suggests only names with a similar spelling.
        if known := known_by(error):
            message = f"No such option {error.option_name!r}. Did you mean {' or '.join(map(repr, known))}?"
        elif takers := taken_beside(error):
            have = f"{takers[0]} has" if len(takers) == 1 else f"{', '.join(takers)} have"
            message = f"{context.command_path} has no option {error.option_name!r}; {have} it."
    click.echo(f"Error: {plain(message)}", err=True)


def _unhandled(error: Exception) -> tuple[str, int]:
    """The message and the exit code for an error that no command handles."""
    if isinstance(error, UnicodeEncodeError) and _NOT_UTF8.search(str(error.object)):
        return _not_utf8(str(error.object)), ExitCode.BAD_INPUT
    if isinstance(error, OSError):
        where = "" if error.filename is None else f" ({error.filename})"
        message = f"the operating system refused: {error.strerror or error}{where}; files written earlier are intact"
    elif isinstance(error, ImportError):
        missing = missing_package(error)
        problem = f"the package {missing} is not installed" if missing else str(error)
        message = f"{problem}; install privctl and its dependencies as the README says"
    elif _is_out_of_memory(error):
        message = "out of memory; process less at once, close other programs, or use a device with more memory"
    else:
        message = f"internal error, please report it: {type(error).__name__}: {error} (--debug shows the traceback)"
    return message, ExitCode.FAILURE


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python or torch ran out of memory. It looks at names only, so that torch need not be imported."""
    return isinstance(error, MemoryError) or any(
        words in f"{type(error).__name__}: {error}" for words in ("OutOfMemoryError", "DefaultCPUAllocator")
    )


#: The surrogates by which Python represents bytes of a file name that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
#: Commands that write no report.
_WITHOUT_REPORT = ("gate", "inspect", "report", "verify", "completion")


def _check_names(arguments: list[str]) -> None:
    """Raise CommandError for a name that is not UTF-8, which a JSON report cannot hold, before anything is read."""
    if arguments and arguments[0] not in _WITHOUT_REPORT:
        for argument in arguments:
            if _NOT_UTF8.search(argument):
                raise CommandError(_not_utf8(argument))


def _not_utf8(name: str) -> str:
    shown = name if len(name) <= 200 else f"...{name[-200:]}"
    return f"the name {shown} is not UTF-8, so no report can hold it; rename the file"


def _interrupt(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that temporary files are removed before exit."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    if os.environ.get("PRIVCTL_DEBUG"):
        traceback.print_exc()
    click.echo(f"privctl: {escape_hidden(' '.join(message.split()))}", err=True)
    return code
