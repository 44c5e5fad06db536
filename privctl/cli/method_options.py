"""Options made of a method's settings, and settings made of options: one frozen class on both sides."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

from privctl.domain.errors import UsageFault
from privctl.train.method import OPTION, MethodSettings, Option, Settings


def own_options(settings: type[MethodSettings]) -> list[Callable[[Any], Any]]:
    """A click option for each field that is one, in their order."""
    return [_option(each, kind, asked) for each, kind, asked in _asked(settings)]


def own_settings(settings: type[Settings], options: Mapping[str, Any]) -> Settings:
    """The settings that ``options`` ask for. Raises UsageFault for values that do not fit."""
    given: dict[str, Any] = {}
    for each, kind, asked in _asked(settings):
        value = options[each.name]
        if value is None:
            given[each.name] = None
        elif kind is bytes:
            given[each.name] = _bytes(_flag(each, asked), value)
        else:
            given[each.name] = kind(value) if issubclass(kind, Enum) else value
    try:
        return settings(**given)
    except ValueError as error:
        raise UsageFault(str(error)) from None


def _asked(settings: type[MethodSettings]) -> Iterator[tuple[Field[Any], type, Option]]:
    hints = get_type_hints(settings)
    for each in fields(settings):
        if OPTION in each.metadata:
            yield each, _kind(hints[each.name]), each.metadata[OPTION]


def _kind(hint: Any) -> type:
    """The type of a value that is given: that of ``T`` in ``T | None``, of tuples ``tuple``."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (member for member in get_args(hint) if member is not type(None))
    kind: type = get_origin(hint) or hint
    return kind


def _flag(each: Field[Any], asked: Option) -> str:
    return asked.flag or "--" + each.name.replace("_", "-")


def _option(each: Field[Any], kind: type, asked: Option) -> Callable[[Any], Any]:
    """``--flag`` with the field's default, which is shown where there is one."""
    default = None if each.default is MISSING else each.default
    shown = not asked.required and default not in (None, ())
    parsed: Any = kind
    if issubclass(kind, Enum):
        parsed = click.Choice(list(asked.choices or [str(member.value) for member in kind]))
        default = None if default is None else str(default)
    elif kind in (bytes, tuple):
        parsed = str
    return click.option(
        _flag(each, asked),
        each.name,
        type=parsed,
        default=default,
        required=asked.required,
        multiple=kind is tuple,
        show_default=shown,
        help=asked.help,
    )


def _bytes(flag: str, value: str) -> bytes:
    try:
        found = bytes.fromhex(value)
    except ValueError:
        found = b""
    if not found:
        raise UsageFault(f"{flag} is {value!r}; it must be hexadecimal, such as 00ff")
    return found
