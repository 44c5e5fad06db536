"""Makes glibc keep the memory that a training step or forward pass frees, so that the next one can reuse it.

By default glibc returns freed memory at the end of its heap to the system, and every freed block above 32 MiB. The next
step requests it again, and every page is then a page fault: up to 150,000 in a step, about 5 % of its time.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = -1
#: Values to restore, since mallopt cannot read the current ones: the default of M_MMAP_MAX, and the values that glibc's
#: dynamic thresholds reach in any process that has freed a large block.
_BLOCKS, _LARGEST, _KEPT_AT_THE_END = 65_536, 32 << 20, 64 << 20

_lock = threading.Lock()
_inside = 0


@contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Within the block, the process keeps freed CPU memory, for work on ``device``.

    It is returned afterwards, and what is free at the start is returned then. Does nothing if the C library is not
    glibc, if the environment configures malloc, or on a GPU.
    """
    library = _glibc()
    if library is None or device.type != "cpu" or _is_set_by_user():
        yield
        return
    _count(library, 1)
    try:
        yield
    finally:
        _count(library, -1)


def trim_kept_memory() -> None:
    """Return what is kept now; call it after work that takes more memory than what follows."""
    library = _glibc()
    if library is not None and _inside:
        library.malloc_trim(0)


def _count(library: Any, more: int) -> None:
    """Count the threads within the block; as they share the heap, the first and the last of them change settings."""
    global _inside
    with _lock:
        before, _inside = _inside, _inside + more
        if before == 0:
            library.mallopt(_MMAP_MAX, 0)
            library.mallopt(_TRIM_THRESHOLD, _NEVER)
            library.malloc_trim(0)
        elif _inside == 0:
            library.mallopt(_MMAP_MAX, _BLOCKS)
            library.mallopt(_MMAP_THRESHOLD, _LARGEST)
            library.mallopt(_TRIM_THRESHOLD, _KEPT_AT_THE_END)
            library.malloc_trim(0)


def _is_set_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in os.environ)


@cache
def _glibc() -> Any:
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - other libraries have a mallopt that may mean something else
        library.mallopt.argtypes, library.malloc_trim.argtypes = [ctypes.c_int] * 2, [ctypes.c_size_t]
    except (AttributeError, OSError, TypeError):
        return None
    return library
