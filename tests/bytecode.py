"""Compiled code of this checkout in pytest's cache, where ``PYTHONDONTWRITEBYTECODE`` keeps it from beside the sources.

Images of containers often set it. Every process would compile what it imports, and every worker rewrite the asserts of
all tests: more processor time than all else that collecting takes. Nothing is written anywhere else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

#: Where the process that forks finds the folder.
PLACE = "PRIVCTL_TESTS_COMPILED"
#: The packages of a checkout.
PACKAGES = ("privctl", "audits", "verify", "tests")


def keep_in(folder: Path, root: Path) -> None:
    """From here on, this process keeps compiled code of the packages in ``root`` in ``folder``, and writes no other."""
    if not sys.dont_write_bytecode:
        return
    loading: Any = sys.modules["_frozen_importlib_external"]
    beside, write = loading.cache_from_source, SourceFileLoader._cache_bytecode
    own = tuple(f"{root / name}{os.sep}" for name in PACKAGES)

    def place(path: Any, *args: Any, **named: Any) -> str:
        found: str = beside(path, *args, **named)
        return str(folder / Path(found).relative_to(root)) if os.fspath(path).startswith(own) else found

    def written(loader: Any, source: str, place: str, data: bytes) -> None:
        if source.startswith(own):
            write(loader, source, place, data)

    loading.cache_from_source = importlib.util.cache_from_source = place
    SourceFileLoader._cache_bytecode = written
    sys.dont_write_bytecode = False
    os.environ[PLACE] = str(folder)


def search_path(root: Path) -> str:
    """``PYTHONPATH`` of a process on the bare checkout in ``root``, which finds compiled code where some is kept."""
    return os.pathsep.join([str(root / "tests" / "started"), str(root)] if PLACE in os.environ else [str(root)])


def keep_rewritten_in(folder: Path, root: Path) -> None:
    """As ``keep_in``, and pytest's code with rewritten asserts too."""
    from _pytest.assertion import rewrite

    if sys.dont_write_bytecode:
        rewrite.get_cache_dir = lambda path: folder / path.relative_to(path.anchor).parent
    keep_in(folder, root)
