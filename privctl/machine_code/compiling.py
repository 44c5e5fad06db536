"""Machine code for this processor, compiled by LLVM at run time; importing this needs llvmlite."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding

#: Optimization level of code generation. The programs given are vectorized, so LLVM's own loop passes are not needed.
_LEVEL = 2


def processor_features() -> frozenset[str]:
    """LLVM's names of the instruction sets that this processor has, such as ``avx2``."""
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def vector_lanes() -> int:
    """The float32 numbers of a register; half of them on a processor whose registers are shorter than 32 bytes."""
    return 16 if "avx512f" in processor_features() else 8


class CompiledModule:
    """The compiled functions of a module in LLVM IR. They release the interpreter's lock, and may run in threads."""

    def __init__(self, assembly: str) -> None:
        """Compile ``assembly``; raises RuntimeError if LLVM cannot compile it for this machine."""
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        target = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=_LEVEL
        )
        # The code lives as long as the engine does.
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(assembly), target)
        self._engine.finalize_object()

    def function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """The function ``name`` with ctypes' types of its ``result`` and ``arguments``; keep the module beside it."""
        return ctypes.CFUNCTYPE(result, *arguments)(self._engine.get_function_address(name))
