"""The ways to train, one module or folder each: its settings, its step and its part of the report.

A new one is such a module with a ``METHOD``, and its row here.
"""

from __future__ import annotations

import importlib
from functools import cache

from privctl.train.method import Method

#: Name of the command -> the module whose ``METHOD`` it is; imported on first use.
METHODS: dict[str, str] = {
    "dp-sgd": "privctl.train.methods.dp_sgd",
    "ferret": "privctl.train.methods.ferret",
    "dpquant": "privctl.train.methods.dpquant",
    "clipped": "privctl.train.methods.clipped",
    "plain": "privctl.train.methods.plain",
}


@cache
def method_named(name: str) -> Method:
    """The method of that name; raises ValueError where there is none."""
    if name not in METHODS:
        raise ValueError(f"the method {name!r} is not one of {', '.join(METHODS)}")
    method: Method = importlib.import_module(METHODS[name]).METHOD
    return method
