"""What verify expects of each training method's report, one module per method.

A new method adds a module with an ``EXPECTED``, and a row in ``METHODS``.
"""

from __future__ import annotations

import importlib
from functools import cache

from verify.methods.expected import ExpectedMethod

#: For each method name in reports, the module that holds its ``EXPECTED``; imported on first use.
METHODS: dict[str, str] = {
    "dp-sgd": "verify.methods.dp_sgd",
    "dp-zo": "verify.methods.dp_zo",
    "ferret": "verify.methods.ferret",
    "dpquant": "verify.methods.dpquant",
    "clipped": "verify.methods.clipped",
    "plain": "verify.methods.plain",
}


def expected_of(name: str | None) -> ExpectedMethod | None:
    """What verify expects of the method called ``name``; None for an unknown method."""
    return None if name is None or name not in METHODS else _loaded(METHODS[name])


@cache
def _loaded(module: str) -> ExpectedMethod:
    expected: ExpectedMethod = importlib.import_module(module).EXPECTED
    return expected
