"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from privctl.domain.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])


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
    """Whether ``--output`` asks for the JSON report on standard output, as ``--json`` does."""
    return output is not None and str(output) in ("-", "/dev/stdout")


def common(command: Command) -> Command:
    """``--json``, ``--quiet``, ``--verbose`` and ``--debug``."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=debug, help="Show tracebacks."),
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


def reports_at(
    paths: tuple[Path, ...], quiet: bool, known: Mapping[Path, frozenset[str]] | None = None
) -> tuple[Path, ...]:
    """``paths`` with each model replaced by the reports beside it that fit its weights, its own first.

    ``known`` are the digests of models whose weights were read already. Raises InputError where a model has no report
    of its own, or several.
    """
    from privctl.reports.of_model import given_reports, is_model, reports_of, weight_bytes, weight_digests
    from privctl.show.progress import note, progress

    found = {}
    for path in dict.fromkeys(filter(is_model, paths)):
        weights = (known or {}).get(path)
        if weights is None:
            try:
                size = weight_bytes(path)
            except InputError as error:
                raise InputError(f"{path} is neither a report nor a model: {error}") from None
            with progress("digests", size, quiet=quiet) as advance:
                weights = weight_digests(path, advance)
        found[path] = reports_of(path, weights)
        note(f"the reports of {path}: {', '.join(os.path.relpath(each) for each in found[path].all)}", quiet=quiet)
    return given_reports(paths, found)


def show(text: str, *, as_json: bool = False) -> None:
    """Print a result; JSON is escaped so that no terminal or CI runner interprets its content as commands."""
    from privctl.show.plain import json_text

    click.echo(json_text(text) if as_json else text, nl=False)


def force(command: Command) -> Command:
    """``--force``."""
    return click.option(
        "-f", "--force", is_flag=True, help="Replace files that exist, and folders that privctl wrote."
    )(command)


#: A model: a ``.safetensors`` file or a Hugging Face directory. The reader checks that it exists, and gives a better
#: error than click would.
MODEL = click.Path(path_type=str)
