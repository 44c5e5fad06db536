"""The examples' modules, loaded by name."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

MODULES = ("settings", "records", "measuring", "showing", "run")


def modules(name: str) -> SimpleNamespace:
    """Each module of ``examples/NAME``, as an attribute."""
    return SimpleNamespace(**{module: importlib.import_module(f"examples.{name}.{module}") for module in MODULES})
