"""The examples' modules, loaded by name."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

MODULES = ("settings", "records", "measuring", "showing", "run")


def modules(name: str, *, without: str = "") -> SimpleNamespace:
    """Each module of ``examples/NAME``, as an attribute, but the one it does ``without``."""
    there = [module for module in MODULES if module != without]
    return SimpleNamespace(**{module: importlib.import_module(f"examples.{name}.{module}") for module in there})
