"""In a fresh checkout, the workers of pytest compile each file once between them.

Each would otherwise compile all that it imports, and rewrite the asserts of all tests: more processor time than all
else that collecting takes. They begin at ends of their own and walk towards each other; what another has compiled is
passed over. Files that have changed since are left to their import.
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _pytest.assertion import rewrite

from tests.bytecode import PACKAGES

if TYPE_CHECKING:
    import pytest

#: Few tests import these.
_LEFT_OUT = ("tests/bench", "tests/gpu")


def compile_together(config: pytest.Config, root: Path) -> None:
    """Compile what no other worker has compiled; nothing outside xdist's workers, and where nothing may be cached."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in walk(sources(root), number, count):
        compile_one(path, config)


def compile_one(path: Path, config: pytest.Config) -> None:
    """Compile ``path`` where nothing is cached; what is wrong with a file, its import says."""
    if path.name.startswith("test_") or path.name == "conftest.py":
        _rewrite(path, config)
    elif not Path(importlib.util.cache_from_source(path)).exists():
        py_compile.compile(str(path), quiet=2)


def sources(root: Path) -> list[Path]:
    """The Python files that tests import, in one order for all workers."""
    left_out = tuple(root / name for name in _LEFT_OUT)
    found = (path for name in PACKAGES for path in (root / name).rglob("*.py"))
    return sorted(path for path in found if not any(folder in path.parents for folder in left_out))


def walk(paths: Sequence[Path], number: int, count: int) -> Iterator[Path]:
    """All ``paths`` as worker ``number`` of ``count`` takes them: two and two share a stretch, one from each end."""
    pairs = -(-count // 2)
    pair, backwards = divmod(number, 2)
    start = (pair + backwards) * len(paths) // pairs
    if backwards:
        yield from reversed([*paths[start:], *paths[:start]])
    else:
        yield from [*paths[start:], *paths[:start]]


def _rewrite(path: Path, config: pytest.Config) -> None:
    """Put the code with rewritten asserts where pytest looks for it."""
    folder = rewrite.get_cache_dir(path)
    place = folder / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
    if place.exists() or not rewrite.try_makedirs(folder):
        return
    try:
        source, code = rewrite._rewrite_test(path, config)
    except SyntaxError:
        return
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, place)
