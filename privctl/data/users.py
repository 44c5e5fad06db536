"""The user that a record belongs to, or with ``users_of`` its users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privctl.data.columns import name_of
from privctl.data.names import field_of, folded
from privctl.domain.errors import InputError

_ONE = (
    "records of several users are trained on by retrain dp-sgd --max-records-per-user with --shared-records, and by "
    "nothing else, so give a string or an integer"
)
_ONE_GROUP = "a record of several groups has no coin; give a string or an integer, or use another field"


def user_of(row: Mapping[str, Any], unit: str, where: str, otherwise: str = _ONE) -> str:
    """The user in the field that ``unit`` names.

    Raises InputError, naming ``where``, for a list, since its other users would be ignored, and for a string that is a
    JSON array, as in a table's cell (``otherwise`` ends the message); and as ``name_of`` does.
    """
    value = row.get(field := field_of(unit))
    if isinstance(value, list) or (isinstance(value, str) and _is_list(value)):
        raise InputError(f"{where} has a list as {field!r}, and {otherwise}")
    return _user_name(row, unit, where)


def group_of(row: Mapping[str, Any], unit: str, where: str) -> str:
    """As ``user_of``, for a record that is audited by group."""
    return user_of(row, unit, where, _ONE_GROUP)


def users_of(row: Mapping[str, Any], unit: str, where: str) -> tuple[str, ...]:
    """The distinct users, in order, in a field that holds one user or a list.

    A string that begins with a bracket is read as a JSON array, since cells of tables cannot hold lists. Raises
    InputError, naming ``where``, for an empty list and for anything in it but printable strings and integers.
    """
    value = row.get(field := field_of(unit))
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{where} has a bracket in {field!r} and no JSON array of users after it") from None
    if isinstance(value, dict):
        raise InputError(
            f"{where} has an object as {field!r}; expected a user (a string or an integer) or a list of users"
        )
    if not isinstance(value, list):
        return (_user_name(row, unit, where),)
    if not value:
        raise InputError(f"{where} has an empty list as {field!r}; name at least one user or remove the record")
    return tuple(dict.fromkeys(_user_name({**row, field: user}, unit, where) for user in value))


def _user_name(row: Mapping[str, Any], unit: str, where: str) -> str:
    field = field_of(unit)
    if field == unit:
        return name_of(row, unit, where)
    if unit in row:
        raise InputError(f"{where} has a field {unit!r}, which would mean the folded names in {field!r}; rename it")
    return folded(name_of(row, field, where))


def _is_list(text: str) -> bool:
    """Whether ``text`` is a JSON array, which a table's cell may hold to name several users."""
    if not text.lstrip().startswith("["):
        return False
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False
