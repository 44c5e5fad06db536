"""Command-line options from a method's settings class, and an instance of that class from parsed options."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

from privctl.domain.errors import CommandError
from privctl.train.method import OPTION, MethodSettings, Option, Settings, flag_of


def own_options(settings: type[MethodSettings]) -> list[Callable[[Any], Any]]:
    """A click option for each field that is declared as one, in their order."""
    return [_option(field, kind, option) for field, kind, option in _option_fields(settings)]


def own_settings(settings: type[Settings], options: Mapping[str, Any]) -> Settings:
    """The settings given by ``options``. Raises CommandError for values that do not fit."""
    given: dict[str, Any] = {}
    for field, kind, _ in _option_fields(settings):
        value = options[field.name]
        if value is None:
            given[field.name] = None
        elif kind is bytes:
            given[field.name] = _bytes(flag_of(field), value)
        else:
            given[field.name] = kind(value) if issubclass(kind, Enum) else value
    try:
        return settings(**given)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _option_fields(settings: type[MethodSettings]) -> Iterator[tuple[Field[Any], type, Option]]:
    hints = get_type_hints(settings)
    for field in fields(settings):
        if OPTION in field.metadata:
            yield field, _kind(hints[field.name]), field.metadata[OPTION]


def _kind(hint: Any) -> type:
    """The type of a given value: ``T`` for ``T | None``, and ``tuple`` for any tuple."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (member for member in get_args(hint) if member is not type(None))
    kind: type = get_origin(hint) or hint
    return kind


def _option(field: Field[Any], kind: type, option: Option) -> Callable[[Any], Any]:
    """``--flag`` with the field's default, which is shown where there is one."""
    default = None if field.default is MISSING else field.default
    shown = not option.required and default not in (None, ())
    parsed: Any = kind
    if issubclass(kind, Enum):
        parsed = click.Choice(list(option.choices or [str(member.value) for member in kind]))
        default = None if default is None else str(default)
    elif kind in (bytes, tuple):
        parsed = str
    # A default of None, where one is given, would count as an answer.
    answer: dict[str, Any] = {"required": True} if option.required else {"default": default}
    return click.option(
        flag_of(field),
        field.name,
        type=parsed,
        **answer,
        multiple=kind is tuple,
        show_default=shown,
        help=option.help,
    )


def _bytes(flag: str, value: str) -> bytes:
    try:
        content = bytes.fromhex(value)
    except ValueError:
        content = b""
    if not content:
        raise CommandError(f"{flag} is {value!r}; it must be hexadecimal, such as 00ff")
    return content
