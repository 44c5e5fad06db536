"""A line on a terminal where importing libraries takes long, as after an installation or a restart."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: Seconds after which it is said.
_AFTER = 2.0
#: What takes long to import: what comes first is named first.
_ENGINES = ("transformers", "torch", "opacus", "scipy", "numpy")
_OWN = ("privctl", "audits", "verify")


@contextmanager
def telling_of_slow_imports(arguments: Sequence[str], after: float = _AFTER) -> Iterator[None]:
    """Inside, say once what is being imported ``after`` so many seconds, if standard error is a terminal."""
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
    """The library whose import has begun and not ended; of several the one that imports the others."""
    begun = {
        name.partition(".")[0] for name, module in list(sys.modules.items())
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    }  # fmt: skip
    return next((name for name in (*_ENGINES, *_OWN) if name in begun), None)
