"""What the tensors of a computation hold, byte for byte: what a GPU would hold, but for its libraries' own room."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class TensorBytes(TorchDispatchMode):
    """Between ``start`` and ``stop``, what tensors that are made ``held``, and the ``most`` that they held at once.

    Tensors from before are not counted, and a tensor that shares another's memory once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0
        self._known: set[int] = set()
        self._running = False

    def start(self) -> None:
        """Begin."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self._running = True

    def stop(self) -> None:
        """End, unless it has ended."""
        if self._running:
            self._running = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forget_most(self) -> None:
        """Let ``most`` begin anew."""
        self.most = self.held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(result, (args, kwargs))
        return result

    def count(self, result: Any, given: Any) -> None:
        """Count the tensors in the ``result`` of an operation, but not those that share memory with one ``given``."""
        shared: set[int] | None = None
        for made in _tensors(result):
            storage = made.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
            if place in self._known:
                continue
            if shared is None:
                shared = {tensor.untyped_storage()._cdata for tensor in _tensors(given)}
            if place in shared:
                continue
            self._known.add(place)
            self.held += size
            self.most = max(self.most, self.held)
            weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.held -= size


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results of an operation, which nest them in nothing but these containers."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def bytes_of(network: nn.Module) -> int:
    """The bytes of the network's parameters and buffers, each once."""
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
