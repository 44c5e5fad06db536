"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from privctl.data.several import DataPath

Command = TypeVar("Command", bound=Callable[..., Any])
#: The type of arguments that name a file or folder.
PATH = click.Path(path_type=Path)


def debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """The callback of ``--debug``, for commands that do not take all of ``common``."""
    if value:
        os.environ["PRIVCTL_DEBUG"] = "1"


_VERBOSE = "privctl.verbose"


def _verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_VERBOSE] = value


def verbose() -> bool:
    """Whether the current command was given ``--verbose``."""
    return bool(click.get_current_context().meta.get(_VERBOSE))


def to_standard_output(output: str | Path | None) -> bool:
    """Whether ``--output`` names standard output (``-`` or ``/dev/stdout``), which means the same as ``--json``."""
    return output is not None and str(output) in ("-", "/dev/stdout")


def common(command: Command) -> Command:
    """Add ``--json``, ``--quiet``, ``--verbose`` and ``--debug``."""
    for option in (
        click.option(
            "--debug", is_flag=True, is_eager=True, expose_value=False, callback=debug, help="Show tracebacks."
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_verbose,
            help="Show results in full.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress, no notes; only results and errors."),
        click.option("--json", "as_json", is_flag=True, help="Print the JSON report to standard output."),
    ):
        command = option(command)
    return command


def reports_at(paths: tuple[Path, ...], quiet: bool, *, examined: bool = False) -> tuple[Path, ...]:
    """Call ``privctl.reports.of_model.reports_at``, noting on standard error which reports it found."""
    from privctl.reports.of_model import reports_at as found
    from privctl.show.progress import note, progress

    return found(paths, partial(progress, quiet=quiet), partial(note, quiet=quiet), examined=examined)


def given(options: Mapping[str, Any]) -> set[str]:
    """The names of those ``options`` that the user gave, on the command line or otherwise."""
    context, default = click.get_current_context(), click.core.ParameterSource.DEFAULT
    return {name for name in options if context.get_parameter_source(name) is not default}


def show(text: str, *, as_json: bool = False) -> None:
    """Print a result. JSON is escaped, so that terminals and CI runners find no commands in it."""
    from privctl.show.plain import json_text

    click.echo(json_text(text) if as_json else text, nl=False)


TEXT_COLUMN = click.option("--text-column", metavar="NAME", help="Field of the text.  [default: text, source]")
LABEL_COLUMN = click.option("--label-column", metavar="NAME", help="Field of the label.  [default: label, target]")
COLUMNS = (TEXT_COLUMN, LABEL_COLUMN)


def _joined(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> DataPath | None:
    from privctl.data.several import data_at

    return data_at(value) if value else None


#: Click's settings of a repeatable option for paths of data, whose values become one ``DataPath``.
DATA_PATHS: Mapping[str, Any] = {"type": click.Path(), "multiple": True, "callback": _joined}


class OnceOption(click.Option):
    """An option that may be given once: a second value would replace the first, which nobody would notice."""


class AliasedOption(click.Option):
    """An option that is also accepted as ``alias``, a spelling that help, completion and error messages leave out.

    Settings files and environment variables may use either spelling.
    """

    def __init__(self, *args: Any, alias: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alias = alias

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option to click's parser under both spellings."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        parser.add_option(obj=self, opts=[self.alias], dest=self.name, action=action, nargs=self.nargs)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The text of the variable named after the option, or else of the one named after the alias."""
        value = super().resolve_envvar_value(ctx)
        if value is None and self.allow_from_autoenv and ctx.auto_envvar_prefix is not None:
            suffix = self.alias.removeprefix("--").replace("-", "_").upper()
            value = os.environ.get(f"{ctx.auto_envvar_prefix}_{suffix}") or None
        return value


def data_option(
    flag: str, text: str, *, required: bool = False, alias: str | None = None
) -> Callable[[Command], Command]:
    """An option for one or several paths of data (see ``DATA_PATHS``), with the help ``text``.

    ``alias`` is a second spelling of ``flag`` that the help does not show.
    """
    kind: dict[str, Any] = {} if alias is None else {"cls": AliasedOption, "alias": alias}
    return click.option(flag, required=required, help=text, **kind, **DATA_PATHS)


#: The argument DATA: one or several paths of data as one ``DataPath``.
DATA = click.argument("data", type=click.Path(), nargs=-1, required=True, callback=_joined)


def force(command: Command) -> Command:
    """Add ``--force``."""
    return click.option("-f", "--force", is_flag=True, help="Replace existing files, and folders of privctl.")(command)


#: A model: a ``.safetensors`` file or a Hugging Face directory. The reader checks that it exists, and gives a better
#: error than click would.
MODEL = click.Path(path_type=str)
