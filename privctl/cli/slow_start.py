"""A message on the terminal while slow imports run, as after an installation or a restart."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: Seconds until the message is printed.
_AFTER = 2.0
#: Packages that are slow to import, in the order in which the message prefers to name them.
_ENGINES = ("transformers", "torch", "opacus", "scipy", "numpy")
_OWN = ("privctl", "audits", "verify")


@contextmanager
def reporting_slow_imports(arguments: Sequence[str], after: float = _AFTER) -> Iterator[None]:
    """A context that prints once, ``after`` this many seconds, which library is being imported.

    It prints nothing where standard error is no terminal, in CI, and with ``--quiet`` among the ``arguments``.
    """
    if not _is_wanted(arguments):
        yield
        return
    timer = threading.Timer(after, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_wanted(arguments: Sequence[str]) -> bool:
    quiet = {"-q", "--quiet"}.intersection(arguments)
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        return False
    return not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def _tell() -> None:
    if (name := being_imported()) is not None:
        sys.stderr.write(f"privctl: still importing {name}; that is quicker when it was used lately\n")
        sys.stderr.flush()


def being_imported() -> str | None:
    """The name of the library that is being imported; of several, the first in the list above. None without any."""
    begun = {
        name.partition(".")[0] for name, module in list(sys.modules.items())
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    }  # fmt: skip
    return next((name for name in (*_ENGINES, *_OWN) if name in begun), None)
