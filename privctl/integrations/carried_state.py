"""What a function of losses carries from one call to the next: a copy to which it can be returned.

A network may keep a running mean of its inputs, or its latest output, in plain attributes; a loop may do so in its
variables. If losses are computed from that, a record changes what records of later batches add, which no noise covers.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

#: Attributes of a module that hold no state of the user's: parameters, modules below, hooks.
_OF_TORCH = frozenset(vars(nn.Module())) - {"_buffers", "training"}
_CONTAINERS = (list, dict, set, deque)
#: Larger tensors (in bytes) and containers (in entries) are rather data than state, and are not copied.
_LARGEST_TENSOR, _LONGEST_CONTAINER = 64 << 20, 10_000
#: Where libraries are, whose variables are not the user's.
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class CarriedState:
    """A copy of what ``function`` and ``network`` carry: attributes of modules, variables, and what containers hold.

    These are the attributes of all modules and of objects of the user's own classes, and the variables and global
    names that ``function`` and the user's functions that it refers to read. Tensors are copied, and containers with
    what is in them, unless they are large; other objects are only put back.
    """

    def __init__(self, function: Callable[..., Any], network: nn.Module) -> None:
        self._seen = set[int]()
        #: What puts back one variable each, outermost first.
        self._restoring: list[Callable[[], object]] = []
        for module in network.modules():
            self._note_module(module)
        self._note_all([function])

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for put_back in self._restoring:
                put_back()

    def _note_module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        own = {name: value for name, value in vars(module).items() if name not in _OF_TORCH}
        self._restoring.append(lambda: _put_back(vars(module), own))
        self._note_all(own.values())

    def _note(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            for module in value.modules():
                self._note_module(module)
            return
        if id(value) in self._seen or isinstance(value, nn.Parameter):
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            self._note_tensor(value)
        elif isinstance(value, MethodType):
            self._note(value.__self__)
            self._note(value.__func__)
        elif isinstance(value, FunctionType):
            self._note_variables(value)
        elif type(value) in _CONTAINERS and len(value) <= _LONGEST_CONTAINER:
            held = value.copy()
            self._restoring.append(lambda: _refill(value, held))
            self._note_all(held.values() if isinstance(held, dict) else held)
        elif hasattr(value, "__dict__") and _is_own(type(value)) and not isinstance(value, type | Dataset):
            attributes = dict(vars(value))
            self._restoring.append(lambda: _put_back(vars(value), attributes))
            self._note_all(attributes.values())

    def _note_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._note(value.func if isinstance(value, partial) else value)

    def _note_tensor(self, tensor: Tensor) -> None:
        plain = tensor.is_leaf and tensor.layout is torch.strided and not tensor.is_inference()
        if plain and not tensor.requires_grad and tensor.nbytes <= _LARGEST_TENSOR:
            copied = tensor.clone()
            self._restoring.append(lambda: _write(tensor, copied))

    def _note_variables(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            for content in _contents(cell):
                self._restoring.append(partial(setattr, cell, "cell_contents", content))
                self._note_all([content])
        if not _is_own(function):
            return
        variables = function.__globals__
        names = [name for name in function.__code__.co_names if name in variables]
        read = {name: variables[name] for name in names if not isinstance(variables[name], type)}
        self._restoring.append(lambda: variables.update(read))
        self._note_all(read.values())


def _is_own(thing: Any) -> bool:
    """Whether a class or function is of the user's code, not of a library."""
    module = thing.__module__ or ""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.split(".")[0] != "privctl" and not file.startswith(_LIBRARIES) and module != "builtins"


def _contents(cell: CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # not assigned yet
        return


def _put_back(attributes: dict[str, Any], own: dict[str, Any]) -> None:
    for name in [name for name in attributes if name not in own and name not in _OF_TORCH]:
        del attributes[name]
    attributes.update(own)


def _write(tensor: Tensor, copied: Tensor) -> None:
    if tensor.shape != copied.shape or tensor.dtype != copied.dtype:
        tensor.data = copied.clone()
    elif not torch.equal(tensor, copied):
        tensor.copy_(copied)


def _refill(container: Any, held: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(held)
