"""Settings from a file in the current folder: ``privctl.toml``, or ``[tool.privctl]`` in ``pyproject.toml``.

Each command has a table, such as ``[retrain.dp-sgd]``, with the names of its options: ``batch-size = 512``. The command
line overrides the environment (``PRIVCTL_RETRAIN_DP_SGD_BATCH_SIZE``), which overrides the file.

The author of a folder may not be the person who runs privctl in it. So the names of the settings that are taken are
always printed, though never their values. A file cannot configure a command that judges, and cannot set an option that
weakens a protection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from privctl.domain.errors import CommandError
from privctl.show.plain import plain

FILE, PROJECT = "privctl.toml", "pyproject.toml"
#: Commands that judge or sign what others made. They take no settings from files.
JUDGES = ("gate", "verify", "sign")
#: Parameters that no file can set, in all commands and in some. They overwrite files, print private measurements, hide
#: messages, move the log of audits, send a training's measures to a service, keep exact scores of private records, void
#: the guarantee of noise, or make canaries predictable.
GUARDED = ("force", "show_unprotected", "quiet", "debug")
GUARDED_IN = {
    "audit": ("log", "leaks", "keep_scores", "cache"),
    "canary": ("seed",),
    "noise": ("seed",),
    "retrain": ("log",),
}
#: The most bytes of a settings file.
_LARGEST = 1 << 20
_PLACE = "privctl.settings-file"


def _read_settings(ctx: click.Context) -> None:
    """Make the settings in the current folder's file, if there is one, the defaults of the commands of ``ctx``.

    Raises CommandError for a file that is not TOML or cannot be read, and where both files hold settings.
    """
    defaults = dict(_files())
    if len(defaults) > 1:
        raise CommandError(f"{FILE} and {PROJECT} both hold settings of privctl; keep them in one")
    for place, settings in defaults.items():
        ctx.meta[_PLACE] = place
        ctx.default_map = settings


def apply_settings(ctx: click.Context, name: str, command: click.Command) -> None:
    """Check the settings for the ``command`` that the group of ``ctx`` is about to run, and make them its defaults.

    Raises CommandError for a key that is no command or option, for an option that no file can set, and for settings of
    a command that takes none.
    """
    if ctx.parent is None:
        _read_settings(ctx)
    place = ctx.meta.get(_PLACE)
    own_settings: Mapping[str, Any] = ctx.default_map or {}
    if place is None:
        return
    assert isinstance(ctx.command, click.Group)
    commands = ctx.command.list_commands(ctx)
    # The table of a group that is also a command holds its own options and the tables of its subcommands.
    alone = getattr(ctx.command, "alone", None)
    for key in own_settings:
        if key not in commands and (alone is None or isinstance(own_settings[key], dict)):
            raise CommandError(
                f"{place} has {_key_text(ctx, key)}, and there is no such command; choose from {', '.join(commands)}"
            )
    if ctx.parent is None and (judges := [judge for judge in JUDGES if judge in own_settings]):
        raise CommandError(
            f"{place} has settings for {judges[0]}, which takes none from a file that is found; remove them, and give "
            "options or, for the gate, a policy"
        )
    section = own_settings.get(name, {})
    if not isinstance(section, dict):
        raise CommandError(f"{place}: {_key_text(ctx, name)} must be a table of options; see docs/cli.md")
    section = {key: value for key, value in section.items() if key not in getattr(command, "subcommands", ())}
    if section and not isinstance(command, click.Group):
        ctx.default_map = {name: dict(_defaults(ctx, name, command, section))}
        keys = ", ".join(plain(key) for key in section)
        click.echo(f"privctl: settings from {place}, {_key_text(ctx, name)}: {keys}", err=True)


def _files() -> Iterator[tuple[str, dict[str, Any]]]:
    if (data := _bytes(FILE)) is not None:
        yield FILE, _parsed(FILE, data)
    data = _bytes(PROJECT)
    # Searching for the name is faster than parsing, and most projects have no settings for privctl.
    if data is not None and b"privctl" in data:
        tool = _parsed(PROJECT, data).get("tool", {})
        settings = tool.get("privctl", {}) if isinstance(tool, dict) else {}
        # The gate reads its own policy from this table.
        settings = settings if isinstance(settings, dict) else {}
        if others := {key: value for key, value in settings.items() if key != "gate"}:
            yield PROJECT, others


def _bytes(name: str) -> bytes | None:
    path = Path(name)
    if not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}; move it away, or make it readable") from None
    if len(data) > _LARGEST and name == FILE:
        raise CommandError(f"{name} has more than 1 MiB, which no settings have")
    return data if len(data) <= _LARGEST else None


def _parsed(name: str, data: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{name} is not TOML: {plain(str(error))}") from None


def _defaults(
    ctx: click.Context, name: str, command: click.Command, section: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    place = ctx.meta[_PLACE]
    options = {
        flag.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
        for flag in (*option.opts, *option.secondary_opts, *filter(None, [getattr(option, "alias", None)]))
        if flag.startswith("--")
    }
    for key, value in section.items():
        option = options.get(key)
        if option is None or option.name is None:
            raise CommandError(
                f"{place}, {_key_text(ctx, name)}: {plain(key)} is no option of this command; see privctl "
                f"{_path(ctx, name)} --help"
            )
        if option.name in (*GUARDED, *GUARDED_IN.get(_path(ctx, name).split()[0], ())):
            raise CommandError(
                f"{place}, {_key_text(ctx, name)}: a file may not set --{key}; give it on the command line"
            )
        if isinstance(value, dict):
            raise CommandError(f"{place}, {_key_text(ctx, name)}: {plain(key)} is an option and takes no table")
        if isinstance(value, list) and not option.multiple and option.nargs == 1:
            raise CommandError(f"{place}, {_key_text(ctx, name)}: {plain(key)} is given {len(value)} values; give one")
        yield option.name, [value] if option.multiple and not isinstance(value, list) else value


def _path(ctx: click.Context, name: str) -> str:
    names, place = [name], ctx
    while place.parent is not None:
        names.insert(0, place.info_name or "")
        place = place.parent
    return " ".join(names)


def _key_text(ctx: click.Context, name: str) -> str:
    return f"[{plain('.'.join(_path(ctx, name).split()))}]"


def own_environment(command: click.Command) -> None:
    """Stop click from setting options of ``command`` by environment variables, for a command that reads its own."""
    for option in command.params:
        if isinstance(option, click.Option):
            option.allow_from_autoenv = False
