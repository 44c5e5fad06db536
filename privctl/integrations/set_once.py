"""Attributes of a training that its steps and its report both go by, so that neither may change alone."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from privctl.domain.errors import CommandError

_Value = TypeVar("_Value")


class SetOnce(Generic[_Value]):
    """An attribute that keeps the first value it is given; raises CommandError for another."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is None:
            raise AttributeError(self._name)
        return cast("_Value", vars(instance)[self._name])

    def __set__(self, instance: Any, value: _Value) -> None:
        if self._name in vars(instance):
            raise CommandError(
                f"{self._name} cannot be changed in a training: all its steps are made and accounted for by the first "
                "one; call make_private with another"
            )
        vars(instance)[self._name] = value
