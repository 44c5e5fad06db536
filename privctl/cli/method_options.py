"""Make command-line options from the settings class of a training method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any

import click

from privctl.train.settings.method_settings import MethodSettings, Option, flag_of
from privctl.train.settings.own_settings import option_fields


def own_options(settings: type[MethodSettings]) -> list[Callable[[Any], Any]]:
    """A click option for each field of ``settings`` that is declared as an option, in the order of the fields."""
    return [_option(field, kind, option) for field, kind, option in option_fields(settings)]


def _option(field: Field[Any], kind: type, option: Option) -> Callable[[Any], Any]:
    """The click option of one field, with the field's default."""
    default = None if field.default is MISSING else field.default
    shown = not option.required and default not in (None, ())
    parsed: Any = kind
    if issubclass(kind, Enum):
        parsed = click.Choice(list(option.choices or [str(member.value) for member in kind]))
        default = None if default is None else str(default)
    elif kind in (bytes, tuple):
        parsed = str
    # click would treat an explicit default of None as a value of a required option.
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
