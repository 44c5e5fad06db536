"""Packages that are called as the function of their name: ``privctl.noise(...)`` and ``privctl.gate(...)``."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is called as the function of its name in ``privctl.api``."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See the function in ``privctl.api``."""
        return self._function()(*arguments, **options)

    def _function(self) -> Any:
        return getattr(importlib.import_module("privctl.api"), self.__name__.rpartition(".")[2])


def make_callable(package: str) -> None:
    """Let the imported ``package`` be called."""
    sys.modules[package].__class__ = CallablePackage
