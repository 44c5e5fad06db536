"""The training methods, one module or folder each, with settings, steps and part of the report.

A new method is a module with a ``METHOD``, and a row in ``METHODS``.
"""

from __future__ import annotations

import importlib
from functools import cache

from privctl.train.runs.method import TrainingMethod

#: The module of each method, by the name of its command; imported on first use.
METHODS: dict[str, str] = {
    "dp-sgd": "privctl.train.methods.dp_sgd",
    "dp-zo": "privctl.train.methods.dp_zo",
    "ferret": "privctl.train.methods.ferret",
    "dpquant": "privctl.train.methods.dpquant",
    "clipped": "privctl.train.methods.clipped",
    "plain": "privctl.train.methods.plain",
}


@cache
def method_named(name: str) -> TrainingMethod:
    """The method called ``name``. Raises ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"the method {name!r} is not one of {', '.join(METHODS)}")
    method: TrainingMethod = importlib.import_module(METHODS[name]).METHOD
    return method
