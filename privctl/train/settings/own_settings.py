"""Builds a method's settings from options by name. Imports nothing heavy."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from privctl.domain.errors import CommandError
from privctl.train.settings.method_settings import OPTION, MethodSettings, Option, Settings, flag_of


def own_settings(settings: type[Settings], options: Mapping[str, Any]) -> Settings:
    """The settings given by ``options``. Raises CommandError for invalid values."""
    given: dict[str, Any] = {}
    try:
        for field, kind, _ in option_fields(settings):
            value = options[field.name]
            if value is None:
                given[field.name] = None
            elif kind is bytes:
                given[field.name] = _bytes(flag_of(field), value)
            else:
                given[field.name] = kind(value) if issubclass(kind, Enum) else value
        return settings(**given)
    except ValueError as error:
        raise CommandError(str(error)) from None


def option_fields(settings: type[MethodSettings]) -> Iterator[tuple[Field[Any], type, Option]]:
    """Each field that is declared as an option, with the type of its value if one is given."""
    hints = get_type_hints(settings)
    for field in fields(settings):
        if OPTION in field.metadata:
            yield field, _value_type(hints[field.name]), field.metadata[OPTION]


def _value_type(hint: Any) -> type:
    """The type of a value other than None: ``T`` for ``T | None``, and ``tuple`` for any tuple."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (member for member in get_args(hint) if member is not type(None))
    kind: type = get_origin(hint) or hint
    return kind


def _bytes(flag: str, value: str) -> bytes:
    try:
        content = bytes.fromhex(value)
    except ValueError:
        content = b""
    if not content:
        raise CommandError(f"{flag} is {value!r}; it must be hexadecimal, such as 00ff")
    return content
