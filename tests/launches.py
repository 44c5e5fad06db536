"""What a computation would ask of a GPU, counted on the processor: operations started, and looks at their results."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations that tell Python, or another operation's shape, what was computed: a GPU's queue must run empty for them.
_LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim")


class Launches(TorchDispatchMode):
    """Inside, ``kernels`` counts operations that compute something, and ``syncs`` those that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        masked = name.startswith("index") and any(str(t.dtype) == "torch.bool" for t in _tensors(args[1:]))
        if name in _LOOKS or masked:
            self.syncs[name] += 1
        elif not func.is_view and _computes(func, args, result) and name not in ("detach", "empty"):
            self.kernels[name] += 1
        return result


def _computes(func: Any, args: Any, result: Any) -> bool:
    """Whether there are numbers in what is returned, or in what is written to where nothing is returned."""
    return any(t.numel() for t in _tensors(result if func._schema.returns else args))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
