"""Machine code of the kernel for this processor, by llvmlite; never used before it has passed its test."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding

from privctl.randomness.compiled.program import assembly

_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64
#: LLVM's own optimizations are for loops that are yet to be made of vectors; choosing instructions well is enough.
_LEVEL = 2


class MachineCode:
    """The functions of ``program.assembly`` for one format, callable from several threads at once."""

    def __init__(self, kind: str) -> None:
        """Compile; raises RuntimeError where LLVM cannot make code for this machine."""
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        target = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=_LEVEL
        )
        # The code lives as long as the engine does.
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(assembly(kind)), target)
        self._engine.finalize_object()
        self.release: Callable[..., int] = self._function("release", ctypes.c_uint32, [_ADDRESS] * 6 + [_COUNT])
        self.deviates: Callable[..., None] = self._function("deviates", None, [_ADDRESS] * 5 + [ctypes.c_float, _COUNT])

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self._engine.get_function_address(name))


_made: dict[str, MachineCode] = {}
_making = threading.Lock()


def machine_code(kind: str) -> MachineCode:
    """Code for numbers stored as ``kind``, made once a process; raises RuntimeError as ``MachineCode`` does."""
    with _making:
        if kind not in _made:
            _made[kind] = MachineCode(kind)
        return _made[kind]
