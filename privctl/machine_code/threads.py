"""Runs compiled code on the examples of a batch, in the threads that torch has."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from privctl.machine_code.compiling import CompiledModule

Code = TypeVar("Code")

#: What OpenMP tells a thread: its number, and the size of its team.
_OPENMP = ("omp_get_thread_num", "omp_get_num_threads")
_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64


@dataclass(frozen=True, slots=True)
class SharedCode:
    """Code for ``run``: ``work_on(work, first, last, scratch)`` and ``share(work)`` of ``building.WorkFunction``."""

    work_on: Callable[..., None]
    share: object
    module: CompiledModule  # keeps the code alive

    @classmethod
    def of(cls, module: CompiledModule, name: str) -> SharedCode:
        """The code of ``module`` whose first function has this ``name``."""
        work_on = module.function(name, None, [_ADDRESS, _COUNT, _COUNT, _ADDRESS])
        return cls(work_on, module.function("share", None, [_ADDRESS]), module)


def tested(compiled: Callable[[], Code], is_right: Callable[[Code], bool]) -> Code | None:
    """What ``compiled`` gives; None without llvmlite, if LLVM cannot compile it, or if it is not right."""
    try:
        code = compiled()
    except (ImportError, RuntimeError, OSError):
        return None
    return code if is_right(code) else None


def tested_by_lanes(
    name: str, assembly: Callable[[int], str], is_right: Callable[[SharedCode], bool]
) -> tuple[SharedCode, int] | None:
    """The function ``name`` of ``assembly`` for registers of so many lanes as this processor's, and their number.

    None as from ``tested``. ``assembly`` may import what needs llvmlite.
    """

    def compiled() -> tuple[SharedCode, int]:
        from privctl.machine_code.compiling import CompiledModule, vector_lanes

        lanes = vector_lanes()
        return SharedCode.of(CompiledModule(assembly(lanes)), name), lanes

    return tested(compiled, lambda found: is_right(found[0]))


@dataclass(frozen=True, slots=True)
class _Team:
    """Torch's own threads: other threads would wait while these spin after each operation."""

    run: Callable[..., None]
    functions: tuple[int, int]


@cache
def _team() -> _Team | None:
    """The OpenMP that torch uses; None if it runs threads in another way."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        run = library.GOMP_parallel
        functions = [ctypes.cast(library[name], _ADDRESS).value for name in _OPENMP]
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = [_ADDRESS, _ADDRESS, ctypes.c_uint, ctypes.c_uint], None
    return _Team(run, (functions[0] or 0, functions[1] or 0))


def bits_of(number: float) -> int:
    """The bits of a float64 number, as an integer of an array of work."""
    (bits,) = struct.unpack("=q", struct.pack("=d", number))
    return int(bits)


def can_share() -> bool:
    """Whether code may run in as many threads as torch does."""
    return torch.get_num_threads() == 1 or _team() is not None


def run(code: SharedCode, examples: int, scratch_numbers: int, fields: Sequence[int]) -> None:
    """Run ``code`` on all ``examples``. Each thread has ``scratch_numbers`` float32 zeros.

    ``fields`` follow ``building.HEADER`` in the array of work.
    """
    team = _team()
    threads = max(1, min(torch.get_num_threads(), examples)) if team else 1
    scratch = torch.zeros(threads, scratch_numbers)
    functions = team.functions if team else (0, 0)
    work = torch.tensor([*functions, examples, scratch.data_ptr(), scratch_numbers, *fields])
    if team and threads > 1:
        team.run(code.share, work.data_ptr(), threads, 0)
    else:
        code.work_on(work.data_ptr(), 0, examples, scratch.data_ptr())
