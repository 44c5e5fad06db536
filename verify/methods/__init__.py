"""What is expected of each training method's report, one module a method.

A new method is such a module with an ``EXPECTED``, and a row in ``METHODS``.
"""

from __future__ import annotations

import importlib
from functools import cache

from verify.methods.expected import ExpectedMethod

#: Name of a method, as reports state it -> the module whose ``EXPECTED`` it is; imported on first use.
METHODS: dict[str, str] = {
    "dp-sgd": "verify.methods.dp_sgd",
    "dp-zo": "verify.methods.dp_zo",
    "ferret": "verify.methods.ferret",
    "dpquant": "verify.methods.dpquant",
    "clipped": "verify.methods.clipped",
    "plain": "verify.methods.plain",
}


def expected_of(name: str | None) -> ExpectedMethod | None:
    """What is expected of the method called ``name``; None for one that is not known here."""
    return None if name is None or name not in METHODS else _loaded(METHODS[name])


@cache
def _loaded(module: str) -> ExpectedMethod:
    expected: ExpectedMethod = importlib.import_module(module).EXPECTED
    return expected
